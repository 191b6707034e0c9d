// Asks the program behind the page.

export class Gone extends Error {}

/** Returns the JSON at an address of this page; raises Gone where nothing answers there any more. */
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
