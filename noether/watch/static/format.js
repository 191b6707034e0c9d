// Format numbers and times.

const EN_DASH = "–";
const plain = new Intl.NumberFormat("en-GB");

/** Format by `toFixed` or `toExponential`, but round ties to even, as in Python. */
function rounded(value, way, decimals) {
  const [exact, power] = value[way](100).split("e");
  const cut = exact.slice(0, exact.indexOf(".") + 1 + decimals);
  return /^50*$/.test(exact.slice(cut.length)) && /[02468]$/.test(cut) ? [cut, power].join(power ? "e" : "") : value[way](decimals);
}

/** Format a number with `digits` significant digits, like `number_text` of `common/numbers.py`. */
export function number(value, digits = 4) {
  if (typeof value !== "number" || !Number.isFinite(value)) return EN_DASH;
  const [mantissa, power] = rounded(value, "toExponential", digits - 1).split("e");
  const exponent = Number(power);
  if (Number(mantissa) === 0) return "0";
  if (exponent <= -4 || exponent >= 6) return `${mantissa}e${exponent}`;
  const decimals = Math.max(0, digits - 1 - exponent);
  return Number(`${mantissa}e${power}`).toLocaleString("en-GB", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/** Format a number without trailing zeros, for ticks and shares. */
export const brief = (value, digits = 3) => number(value, digits).replace(/(\.\d*?)0+(e|$)/, "$1$2").replace(/\.(e|$)/, "$1");

export const count = (value) => (typeof value === "number" ? plain.format(value) : EN_DASH);

export const percent = (value, digits = 3) => (typeof value === "number" && Number.isFinite(value) ? `${brief(100 * value, digits)}\u202f%` : EN_DASH);

/** Format a share of 1 as a percentage, like `percent_text` of `common/numbers.py`. */
function share(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return EN_DASH;
  const size = Math.abs(value);
  return `${value === 0 || (size >= 1e-4 && size < 1e4) ? rounded(100 * value, "toFixed", 2) : number(100 * value, 3)}\u202f%`;
}

/** Format a metric's value without its unit, except for the percent sign; a score below 1 is never rounded up to 1. */
export function valueText(metric, value) {
  if (metric.score && value >= 0.99995 && value < 1) return Math.min(value, 1 - 1e-6).toFixed(6);
  return metric.unit === "%" ? share(value) : number(value);
}

/** Format a tick of a metric's axis. */
export const tickText = (metric, value) => (metric.unit === "%" ? percent(value, 3) : brief(value));

/** Return a metric's title with its unit. */
export const titled = (metric) => { const text = `${metric.title[0].toUpperCase()}${metric.title.slice(1)}`; return metric.unit && metric.unit !== "%" ? `${text}, ${metric.unit}` : text; };

/** Format a time at an axis: 30 s, 5 min, 2 h. */
export const tickTime = (seconds) => (seconds < 120 ? `${brief(seconds)} s` : seconds < 7200 ? `${brief(seconds / 60)} min` : `${brief(seconds / 3600)} h`);

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return EN_DASH;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Format how long ago a time was, in one unit because there is little space. */
export function ago(then, now) {
  if (typeof then !== "number") return EN_DASH;
  const seconds = Math.max(0, Math.round(now - then));
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return `${seconds} s ago`;
}

export function clock(seconds) {
  const moment = new Date(1000 * seconds);
  const time = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return moment.toDateString() === new Date().toDateString() ? time : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

export const words = (name) => String(name).replaceAll("_", " ");
