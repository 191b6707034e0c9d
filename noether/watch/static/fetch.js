// Fetch data from the server, noether watch.

export class Gone extends Error {}

/** Return the JSON at an address; throw Gone if the server no longer answers. */
export async function fetchJson(address, signal) {
  let answer;
  try {
    answer = await fetch(address, { signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone("no answer");
  }
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.json();
}
