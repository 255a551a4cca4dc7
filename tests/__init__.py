"""What Detent's tests are: see CONTRIBUTING.md."""
