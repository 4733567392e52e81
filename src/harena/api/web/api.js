// Client of the server's API. Every call sends this browser's client id, and calls that change something also send the
// session's token. Errors are an ApiError with the server's message and hint.

const CLIENT_KEY = "harena.client";

export class ApiError extends Error {
  constructor(status, body) {
    super(body.detail || `The server answered with status ${status}.`);
    this.status = status;
    this.code = body.code || "";
    this.hint = body.hint || "";
    this.requestId = body.request_id || "";
  }
}

function fresh() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // a page that came over plain http has no randomUUID
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

function kept() {
  try {
    const known = localStorage.getItem(CLIENT_KEY) || fresh();
    localStorage.setItem(CLIENT_KEY, known);
    return known;
  } catch {
    return fresh(); // storage is off: the id lasts until this tab is closed
  }
}

export const clientId = kept();

let known = null; // the last response of GET /v1

export async function session(again = false) {
  if (!known || again) {
    known = call("GET", "/v1").catch((error) => {
      known = null;
      throw error;
    });
    known.then((state) => dispatchEvent(new CustomEvent("harena-session", { detail: state })), () => {});
  }
  return known;
}

export const may = (state, scope) => Boolean(state.me?.scopes.some((one) => one === scope || one === "admin"));

export function address(path, query = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}

async function headers(method) {
  const head = { Accept: "application/json", "X-Client-Id": clientId };
  if (method === "GET") return head;
  const csrf = (await session()).me?.csrf;
  return csrf ? { ...head, "X-CSRF-Token": csrf } : head;
}

export async function call(method, path, { query, json, signal, text = false } = {}) {
  const head = await headers(method);
  if (json !== undefined) head["Content-Type"] = "application/json";
  const body = json === undefined ? undefined : JSON.stringify(json);
  const answer = await reached(() =>
    fetch(address(path, query), { method, headers: head, body, signal, credentials: "same-origin" }),
  );
  if (!answer.ok) throw new ApiError(answer.status, parsed(await answer.text()));
  if (answer.status === 204) return null;
  return text ? answer.text() : answer.json();
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const environment = (envId, signal) =>
  get(`/v1/environments/${envId.split("/").map(encodeURIComponent).join("/")}`, {}, signal);
export const post = (path, json) => call("POST", path, { json: json ?? {} });

// Sends a form with files. `progress` is called with the share that was sent, from 0 to 1.
export async function upload(path, form, progress) {
  const head = await headers("POST");
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(head)) request.setRequestHeader(name, value);
    request.upload.addEventListener(
      "progress",
      (event) => event.lengthComputable && progress(event.loaded / event.total),
    );
    request.addEventListener("error", () => reject(unreachable()));
    request.addEventListener("load", () => {
      const body = parsed(request.responseText);
      if (request.status >= 200 && request.status < 300) resolve(body);
      else reject(new ApiError(request.status, body));
    });
    request.send(form);
  });
}

// Files that only the owner may read need this browser's headers, so they are fetched and then offered as a download.
export async function download(path, name) {
  const answer = await reached(() => fetch(path, { headers: { "X-Client-Id": clientId } }));
  if (!answer.ok) throw new ApiError(answer.status, parsed(await answer.text()));
  const url = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function reached(request) {
  try {
    return await request();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
}

const unreachable = () =>
  new ApiError(
    0,
    { code: "unreachable", detail: "The server cannot be reached.", hint: "Check that it is running, then try again." },
  );

function parsed(text) {
  try {
    const body = JSON.parse(text);
    return body && typeof body === "object" ? body : {};
  } catch {
    return {};
  }
}
