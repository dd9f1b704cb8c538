// One healing, a step at a time, as one would explain it on paper.
import { byId, chance, chip, el, track } from "./panels.js";

let story = [];
let at = 0;

export function showSteps(healing) {
  story = told(healing);
  at = 0;
  show();
}

const said = (...parts) => el("p", {}, ...parts);
const chips = (...some) => el("div", { class: "chips" }, ...some);

function told(healing) {
  const kept = healing.kept.slice(-8).map((text) => (text ? chip(text) : chip("start", "special")));
  const copy = () => kept.map((one) => one.cloneNode(true));
  const pages = [[
    said("This is how your text falls into pieces."),
    chips(...copy(), ...healing.removed.map((text) => chip(text))),
  ]];
  if (healing.removed.length) {
    pages.push([
      said("The last pieces may be the beginning of longer ones, so they are removed. What " +
        "they spelled stays: it must be written again."),
      chips(...copy(), ...healing.removed.map((text) => chip(text, "back"))),
      said("Forced: ", chip(healing.forced, "forced")),
    ]);
  } else {
    pages.push([said("No longer piece could begin here: nothing is removed, and nothing is forced."),
      chips(...copy())]);
  }
  for (const step of healing.steps) pages.push(page(step, copy, healing.vocabulary));
  return pages;
}

function page(step, copy, vocabulary) {
  const [taken] = step.candidates;
  const all = vocabulary.toLocaleString("en");
  const parts = [chips(...copy(), ...(step.written ? [chip(step.written)] : []),
    ...(step.left ? [chip(step.left, "forced")] : []))];
  if (step.left) {
    parts.push(said("Still to write: ", chip(step.left, "forced"),
      `. ${step.allowed.toLocaleString("en")} of ${all} tokens may come: those that begin with it, ` +
      "and those that are a beginning of it. The model would have chosen one of them with " +
      `probability ${chance(step.mass)}.`));
  } else {
    parts.push(said("Nothing is left to write again. From here on, every token may come."));
  }
  parts.push(el("ul", { class: "candidates" }, ...step.candidates.map((one) => candidate(one, step, taken))));
  parts.push(said("The likeliest is taken: ", chip(taken.end ? "the end" : taken.text),
    taken.then_left ? "; still to write is then " : ".",
    ...(taken.then_left ? [chip(taken.then_left, "forced"), "."] : [])));
  return parts;
}

function candidate(one, step, taken) {
  const written = chip(one.end ? "the end" : one.within);
  if (one.beyond) written.append(el("span", { class: "beyond", text: chip(one.beyond).textContent }));
  const why = !step.left ? "" : one.then_left ? "a beginning of it" : "begins with it";
  return el("li", { class: "candidate" + (one === taken ? " taken" : ""), "data-id": one.id },
    el("span", {}, written, el("span", { class: "why", text: why })), track(one.share),
    el("span", { class: "share", text: chance(one.share) }));
}

function show() {
  byId("figure").replaceChildren(...(story[at] ?? []));
  byId("step").textContent = story.length ? `Step ${at + 1} of ${story.length}` : "";
  byId("back").disabled = at === 0;
  byId("forward").disabled = at >= story.length - 1;
}

function go(by) {
  at = Math.max(0, Math.min(story.length - 1, at + by));
  show();
}

export function listen() {
  byId("back").addEventListener("click", () => go(-1));
  byId("forward").addEventListener("click", () => go(1));
  byId("steps").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") go(-1);
    if (event.key === "ArrowRight") go(1);
  });
}
