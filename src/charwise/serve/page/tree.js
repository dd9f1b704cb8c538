// The covering as a tree: it is kept from key to key, so that branches come and go where they are.
import { byId, chance, chip, el, track } from "./panels.js";

const folded = new Set();

export function showCovering(found, type) {
  const tree = byId("tree");
  const root = byId("covering-root");
  if (!found) {
    tree.replaceChildren();
    root.replaceChildren("There is nothing to divide yet.");
    byId("covering-rest").textContent = "";
    return;
  }
  const paths = found.members.map(({ ids }) => ids.slice(0, -1));
  const common = paths.reduce((n, path) => alike(n, path, paths[0]), paths[0]?.length ?? 0);
  const start = found.members[0]?.tokens.slice(0, common).join("");
  root.replaceChildren(...(start ? ["All begin with ", chip(last(start)), " and go on:"] : []));
  update(tree, branches(found.members, common), 1, type);
  const rest = found.members.reduce((left, { prob }) => left - prob, 1);
  byId("covering-rest").textContent = `Paths that are not shown: ${chance(Math.max(0, rest))}.`;
  const items = [...tree.querySelectorAll("[role=treeitem]")];
  if (!items.some((item) => item.tabIndex === 0) && items.length) items[0].tabIndex = 0;
}

// How many tokens two paths begin with alike, n at most.
function alike(n, one, other) {
  let same = 0;
  while (same < n && same < one.length && one[same] === other[same]) same += 1;
  return same;
}

// The members as a tree, from the nth token on, the heaviest branch first. Each share is a sum.
function branches(members, n, before = "") {
  const nodes = new Map();
  for (const member of members) {
    const id = member.ids[n];
    const leaf = n === member.ids.length - 1;
    const key = `${before}/${id}${leaf ? "." : ""}`;
    const node = nodes.get(key) ?? { key, share: 0, text: member.tokens[n], leaf, members: [] };
    nodes.set(key, node);
    node.share += member.prob;
    node.members.push(member);
  }
  for (const node of nodes.values()) {
    if (node.leaf) Object.assign(node, node.members[0]);
    else node.children = branches(node.members, n + 1, node.key);
  }
  return [...nodes.values()].sort((one, other) => other.share - one.share);
}

const last = (text) => (text.length > 40 ? "…" + text.slice(-40) : text);

// Items of the same key stay, others come and go.
function update(list, nodes, level, type) {
  const old = new Map([...list.children].map((item) => [item.dataset.key, item]));
  const items = nodes.map(joined).map((node) => {
    const item = old.get(node.key) ?? el("li", {
      role: "treeitem", tabindex: "-1", class: "new", "data-key": node.key,
    });
    if (old.has(node.key)) item.classList.remove("new");
    fill(item, node, level, type);
    return item;
  });
  list.replaceChildren(...items);
}

// What does not branch is one row, with all of its tokens.
function joined(node) {
  const texts = [node.text];
  while (node.children?.length === 1 && node.children[0].children) {
    node = node.children[0];
    texts.push(node.text);
  }
  return { ...node, texts };
}

function fill(item, node, level, type) {
  item.ariaLevel = String(level);
  item.dataset.share = node.share;
  delete item.dataset.beyond; // a leaf may have become a branch
  item.act = () => {};
  const share = el("span", { class: "share", text: chance(node.share) });
  const row = el("div", { class: "node" });
  const inner = item.querySelector(":scope > ul");
  if (node.children) {
    item.ariaExpanded = String(!folded.has(node.key));
    item.act = () => fold(item, item.ariaExpanded === "true");
    row.append(el("span", { class: "twist", text: item.ariaExpanded === "true" ? "▾" : "▸" }),
      ...node.texts.map((text) => chip(text)), share);
    const list = inner ?? el("ul", { role: "group" });
    update(list, node.children, level + 1, type);
    item.replaceChildren(row, list);
  } else {
    item.removeAttribute("aria-expanded");
    row.append(el("span", { class: "twist", text: "·" }));
    const written = chip(node.within);
    written.append(el("span", { class: "beyond", text: chip(node.beyond).textContent }));
    row.append(written, share);
    item.dataset.beyond = node.beyond;
    if (node.text) item.act = () => type(node.text);
    item.replaceChildren(row);
  }
  row.addEventListener("click", () => { focus(item); item.act(); });
}

function fold(item, folding) {
  folding ? folded.add(item.dataset.key) : folded.delete(item.dataset.key);
  item.ariaExpanded = String(!folding);
  item.querySelector(".twist").textContent = folding ? "▸" : "▾";
}

function focus(item) {
  for (const other of byId("tree").querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
  item.tabIndex = 0;
  item.focus({ preventScroll: false });
}

// Arrows as in any tree; Enter does what a click does.
export function listen() {
  byId("tree").addEventListener("keydown", (event) => {
    const item = event.target.closest("[role=treeitem]");
    const items = [...byId("tree").querySelectorAll("[role=treeitem]")].filter(shown);
    const at = items.indexOf(item);
    const moves = {
      ArrowDown: () => items[at + 1], ArrowUp: () => items[at - 1],
      Home: () => items[0], End: () => items.at(-1),
      ArrowLeft: () => (item.ariaExpanded === "true"
        ? fold(item, true) : item.parentElement.closest("[role=treeitem]")),
      ArrowRight: () => (item.ariaExpanded === "false" ? fold(item, false) : items[at + 1]),
      Enter: () => item.act(), " ": () => item.act(),
    };
    if (!moves[event.key] || at < 0) return;
    event.preventDefault();
    const next = moves[event.key]();
    if (next) focus(next);
  });
}

const shown = (item) => !item.parentElement.closest("[aria-expanded='false']");
