// Formats numbers and times for display.

const MINUS = "\u2212";
const DASH = "\u2013";

export function num(value, digits) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  const places = digits ?? (Number.isInteger(value) && size < 1e6 ? 0 : size >= 1000 ? 0 : size >= 100 ? 1 : 2);
  if (size >= 1e9) return value.toExponential(2).replace("-", MINUS);
  return value.toFixed(places).replace("-", MINUS);
}

// All scores of a board have the same number of digits, so that they align.
export function digitsFor(values) {
  const known = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (known.every(Number.isInteger)) return 0;
  const size = Math.max(0, ...known.map(Math.abs));
  return size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
}

export function range(low, high, digits) {
  if (low === null || low === undefined || high === null || high === undefined) return "";
  return `${num(low, digits)} to ${num(high, digits)}`;
}

// Points: show decimals only where there are halves or thirds.
export const points = (value) => (typeof value === "number" ? num(
  value,
  Number.isInteger(value) ? 0 : Number.isInteger(value * 2) ? 1 : 2,
) : DASH);

export const percent = (share) => `${Math.round(share * 100)} %`;

export function count(value, one, many = `${one}s`) {
  return `${Number(value).toLocaleString("en")} ${value === 1 ? one : many}`;
}

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return DASH;
  if (seconds < 0.00095) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.9995) return `${num(seconds * 1000, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 90) return `${num(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return count(Math.round(seconds / 86400), "day");
}

export function ago(iso, now = Date.now()) {
  const seconds = (now - Date.parse(iso)) / 1000;
  if (!Number.isFinite(seconds)) return DASH;
  if (seconds < 10) return "just now";
  return `${duration(Math.max(10, seconds))} ago`;
}

export const dateText = (iso) => (iso ? `${iso.slice(0, 10)} ${iso.slice(11, 16)} UTC` : DASH);

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  if (size < 1024 ** 2) return `${num(size / 1024, 1)} kB`;
  return `${num(size / 1024 ** 2, 1)} MB`;
}
