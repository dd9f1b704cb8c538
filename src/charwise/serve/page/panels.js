// The panels that show a text at once. Text becomes text only: nothing here makes markup of it.

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\r", "␍").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

// A probability, for people: percent, or one in so many.
export function chance(p) {
  if (p >= 0.9995 && p < 1) return (100 * p).toFixed(2) + " %";
  if (p >= 0.001) return Number((100 * p).toPrecision(3)) + " %";
  if (p < 1e-12) return "nothing";
  return "1 in " + Number((1 / p).toPrecision(2)).toLocaleString("en");
}

export function chip(text, kind = "") {
  return el("span", { class: ("chip " + kind).trim(), text: visible(text) });
}

export function track(p) {
  const fill = el("div", { class: "fill" });
  fill.style.width = 100 * Math.min(1, p) + "%";
  return el("div", { class: "track", "aria-hidden": "true" }, fill);
}

const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

export function showTokens(seen) {
  const shown = [
    ...seen.kept.map((text) => (text ? chip(text) : chip("start", "special"))),
    ...seen.removed.map((text) => chip(text, "back")),
  ];
  if (seen.left_out) shown.unshift(el("span", { class: "hint", text: `… ${seen.left_out} before` }));
  byId("chips").replaceChildren(...shown);
  const said = byId("healing");
  if (!seen.removed.length) {
    said.replaceChildren("No longer piece of the list could begin here: there is nothing to heal.");
    return;
  }
  said.replaceChildren(
    `Healing removes the last ${count(seen.removed.length, "piece")}. What they spelled, `,
    chip(seen.forced, "forced"),
    `, is forced: the model must write it again, and ${seen.allowed.toLocaleString("en")} of its ` +
    `${count(seen.vocabulary, "token")} may come first.`);
}

// The three completions: what differs from the exact one is marked.
export function showCompletions(found, text) {
  const line = text.slice(text.lastIndexOf("\n") + 1);
  const exact = [...found.exact];
  for (const name of ["plain", "healed", "exact"]) {
    const letters = [...found[name]];
    let same = 0;
    while (same < letters.length && letters[same] === exact[same]) same += 1;
    const parts = [el("span", { class: "before", text: line }), letters.slice(0, same).join("")];
    if (same < letters.length) parts.push(el("mark", { text: letters.slice(same).join("") }));
    const pre = byId(name).querySelector("pre");
    pre.replaceChildren(...parts);
    pre.dataset.text = found[name];
  }
}

export function showNext(next, type) {
  const letters = next.chars.filter(({ text, prob }) => text !== "<eos>" && prob > 1e-6).slice(0, 8);
  const rows = letters.map(({ text, prob }) => bar(
    el("button", { type: "button", onclick: () => type(text) }), chip(text), prob));
  const others = letters.reduce((left, { prob }) => left - prob, 1 - next.eos);
  rows.push(bar(el("div"), el("span", { class: "chip special", text: "the end" }), next.eos),
    bar(el("div"), el("span", { class: "chip special", text: "others" }), Math.max(0, others)));
  byId("bars").replaceChildren(...rows);
  byId("rest").textContent = `Letters that were not looked for: ${chance(next.chars_missing)}. The ` +
    `bars may be off by ${chance(next.error)} in all.`;
}

function bar(row, name, p) {
  row.append(name, track(p), el("span", { class: "share", text: chance(p) }));
  return el("li", {}, row);
}

export function showSurprisal(score, shortened) {
  const characters = score?.spans ?? [];
  byId("heat").replaceChildren(...characters.map(({ text, surprisal: own }) => {
    const span = el("span", { text, title: own < 9999 ? own.toFixed(2) + " bits" : "impossible" });
    const strength = Math.min(1, own / 12);
    span.style.backgroundColor = `rgba(var(--heat), ${(0.85 * strength).toFixed(3)})`;
    return span;
  }));
  byId("bits").textContent = characters.length
    ? (shortened ? `The last ${characters.length} letters: ` : "") +
      `${(-score.logprob / Math.LN2).toFixed(1)} bits in all, ${score.bits_per_byte.toFixed(2)} for ` +
      "each byte. The stronger the colour of a letter, the less the model expected it: a bit is one " +
      "halving."
    : "";
}
