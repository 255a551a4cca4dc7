// Asking the server. What it answers is JSON; what goes wrong is a Problem. The token, where one is asked for, is kept
// for as long as the tab is open.

import { ask } from "./parts.js";

const TOKEN = "detent-token";
let asking = null;

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

/** One dialog for however many requests were refused. */
function askForToken() {
  asking ??= ask({
    title: "A token is needed",
    text: "This server asks for a token: the content of the file that its settings name (web.token_file).",
    fields: [{ name: "token", label: "Token", type: "password", required: true }],
    yes: "Go on",
  }).then((given) => {
    asking = null;
    if (given?.token) sessionStorage.setItem(TOKEN, given.token.trim());
    return Boolean(given?.token);
  });
  return asking;
}

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "Not reachable", "the server does not answer");
  }
  if (answer.status === 401) {
    sessionStorage.removeItem(TOKEN);
    if (await askForToken()) return request(path, options);
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, said.title ?? answer.statusText, said.detail);
}

function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams();
  for (const [name, value] of given) for (const one of [value].flat()) search.append(name, one);
  return given.length ? `/api/v1${path}?${search}` : `/api/v1${path}`;
}

export async function get(path, query = {}, signal = undefined) {
  return (await request(address(path, query), { signal })).json();
}

export async function command(job, action) {
  const answer = await request(address(`/jobs/${encodeURIComponent(job)}/commands`, {}), {
    method: "POST",
    headers: { "content-type": "application/json", "x-detent-request": "1" },
    body: JSON.stringify({ action }),
  });
  return answer.json();
}

/** Server-sent events, read with fetch so that the token goes in a header and never in an address. */
export async function stream(path, query, signal, heard) {
  const answer = await request(address(path, query), { signal, headers: { accept: "text/event-stream" } });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    left += value;
    const messages = left.split("\n\n");
    left = messages.pop();
    for (const message of messages) {
      const fields = Object.fromEntries(message.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
      heard(fields.event ?? "", fields.data ? JSON.parse(fields.data) : null);
    }
  }
}
