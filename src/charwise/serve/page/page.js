// What is typed is looked at with every key; what takes longer, once the keys pause.
import { byId, el, showCompletions, showNext, showSurprisal, showTokens } from "./panels.js";
import { listen as listenToTree, showCovering } from "./tree.js";
import { listen as listenToSteps, showSteps } from "./steps.js";

const EXAMPLES = [
  "class Node:\n    pass\n\ndef get_node(self, value) -> Nod",
  "def sweep(self):\n    self.sw",
  "raise ValueErr",
  "for i in rang",
  'if __name__ == "__mai',
  "# see http:",
];
const PAUSE = 120; // milliseconds without a key
const END = "\n\n"; // completions end at an empty line
const SCORED = 240; // characters whose surprisal is shown
const box = byId("text");
byId("address").textContent = location.origin;
let key = sessionStorage.getItem("charwise-key") ?? "";
let under_way = new AbortController();
let pause = 0;

class Refused extends Error {}

async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(`/v1/${path}`, {
    method: "POST", headers, signal, body: JSON.stringify(body),
  });
  if (answer.status === 401 || answer.status === 403) {
    byId("key-form").hidden = false;
    throw new Refused("The key is missing or wrong.");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Refused(said.error?.message ?? "The server cannot answer that: the text may be too long.");
  }
  return answer.json();
}

const stale = (is, ...ids) => ids.forEach((id) => byId(id).classList.toggle("stale", is));

async function typed() {
  const began = performance.now();
  const text = box.value;
  under_way.abort();
  delete document.body.dataset.looked;
  delete document.body.dataset.shown;
  clearTimeout(pause);
  under_way = new AbortController();
  const { signal } = under_way;
  stale(true, "completions", "surprisal", "steps");
  try {
    const [cut, next, covering] = await Promise.all([
      ask("steps", { prompt: text, max_bytes: 0 }, signal),
      ask("next", { prompt: text, top: 9 }, signal),
      text ? ask("covering", { prompt: text, top: 60 }, signal) : null,
    ]);
    showTokens(cut);
    showNext(next, type);
    showCovering(covering, type);
    byId("status").textContent = "";
    requestAnimationFrame(() => setTimeout(() => {
      const took = performance.now() - began;
      byId("took").textContent = `The last key was shown in ${Math.round(took)} ms.`;
      document.body.dataset.took = took;
      document.body.dataset.looked = text;
    }));
    pause = setTimeout(() => paused(text, signal), PAUSE);
  } catch (error) {
    failed(error);
  }
}

async function paused(text, signal) {
  try {
    const exact = { prompt: text, max_tokens: 64, max_bytes: 32, stop: END };
    const [plain, healed, answer] = await Promise.all([
      ask("steps", { prompt: text, rule: "off" }, signal),
      ask("steps", { prompt: text }, signal),
      ask("completions", exact, signal),
    ]);
    showCompletions({ plain: plain.text, healed: healed.text, exact: answer.choices[0].text }, text);
    stale(false, "completions");
    showSteps(healed);
    stale(false, "steps");
    const letters = [...text];
    const scored = letters.slice(-SCORED).join("");
    const context = letters.slice(-2 * SCORED, -SCORED).join("");
    const score = text && await ask("score", { text: scored, context }, signal);
    showSurprisal(score, letters.length > SCORED);
    stale(false, "surprisal");
    document.body.dataset.shown = text;
  } catch (error) {
    failed(error);
  }
}

function failed(error) {
  if (error.name === "AbortError") return; // overtaken by a key
  byId("status").textContent = error instanceof Refused
    ? error.message : "The server does not answer. Is it still running?";
}

// Write at the end of the text, as if it had been typed.
function type(more) {
  box.value += more;
  box.focus();
  box.setSelectionRange(box.value.length, box.value.length);
  typed();
}

function listen() {
  box.addEventListener("input", typed);
  for (const example of EXAMPLES) {
    byId("examples").append(el("button", {
      type: "button", text: example.split("\n").at(-1).trim(),
      onclick: () => { box.value = ""; type(example); },
    }));
  }
  byId("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key = byId("key").value;
    sessionStorage.setItem("charwise-key", key);
    byId("key-form").hidden = true;
    typed();
  });
  listenToTree();
  listenToSteps();
}

listen();
type(EXAMPLES[0]);
