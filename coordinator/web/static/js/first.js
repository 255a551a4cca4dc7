// Before anything is painted: the theme that was chosen, so that the page never flashes in the other one.
const chosen = localStorage.getItem("detent-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
