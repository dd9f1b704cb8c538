"""A region that a model rewrites: with the part before the cursor free, and known.

    python benchmarks/edits.py [--model smollm2]

Regions are six lines of unseen modules. Their third line stops where somebody types, inside a
token, and the model writes the region anew after Sweep's prompt (the text before, the text now).
*free* writes it from its first byte; *known* conditions on all up to the cursor, and goes on there.
*completion* goes on there without such a prompt, after the text before the cursor alone.
*changed* is the share whose typed text comes out otherwise, *next 3* that of the right next three
characters, *tokens* the mean length of what was written, *seconds* those of the processor.
"""

from __future__ import annotations

import random

import texts
from charwise import CharLM
from harness import arguments, clock, finish, lm_of, table

#: Lines of a region, those before it that the model reads, and regions of a module.
REGION, BEFORE, EACH = 6, 12, 6


def edits(name: str) -> list[tuple[str, str, str, str]]:
    """Of a module: the prompt of each region, what is before, what is typed, and what follows."""
    rng, cases = random.Random(name), list[tuple[str, str, str, str]]()
    lines = texts.path_of(name).read_text(encoding="utf-8").splitlines(keepends=True)
    while len(cases) < EACH:
        at = rng.randrange(60, len(lines) - 20)
        region, line = lines[at : at + REGION], lines[at + 2].rstrip()
        indent = len(line) - len(line.lstrip())
        if len(line) < indent + 16 or any(len(one) > 90 for one in region):
            continue
        cursor = rng.randrange(indent + 6, len(line) - 6)
        typed = "".join(region[:2]) + line[:cursor]
        original = "".join(region[:2] + region[3:])
        file = f"{name}.py"
        prompt = (
            f"<|file_sep|>{file}\n{''.join(lines[at - BEFORE : at])}"
            f"<|file_sep|>original/{file}\n{original}"
            f"<|file_sep|>current/{file}\n{typed}\n{''.join(region[3:])}"
            f"<|file_sep|>updated/{file}\n"
        )
        rest = line[cursor:] + "\n" + "".join(region[3:])
        cases.append((prompt, "".join(lines[at - BEFORE : at]), typed, rest))
    return cases


def measure(lm: CharLM, cases: list[tuple[str, str, str, str]], way: str) -> list[float]:
    """The row of a way: the means over all regions."""
    changed = right = tokens = seconds = 0.0
    for prompt, before, typed, rest in cases:
        known = typed if way != "free" else ""
        start = clock()
        size = len((typed + rest).removeprefix(known).encode()) + 8
        options = {"max_new_bytes": size, "stop": ["<|file_sep|>"]}
        [one] = lm.complete((before if way == "completion" else prompt) + known, **options)  # type: ignore[arg-type]
        seconds += clock() - start
        region = known + one.text
        changed += not region.startswith(typed)
        right += region.startswith(typed + rest[:3])
        tokens += len(lm.vocabulary.encode(one.raw))
    return [one / len(cases) for one in (changed, right, tokens, seconds)]


def main() -> None:
    args = arguments(__doc__ or "", "smollm2").parse_args()
    names = texts.HELD_OUT[:1] if args.quick else texts.HELD_OUT
    cases = [one for name in names for one in edits(name)]
    lm = lm_of(args.model)
    rows = {way: measure(lm, cases, way) for way in ("free", "known", "completion")}
    columns = ["way", "changed", "next 3", "tokens", "seconds"]
    finish(table(f"{len(cases)} regions, {args.model}", columns, rows))


if __name__ == "__main__":
    main()
