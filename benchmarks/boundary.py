"""Move the boundary between prompt and continuation: does the preference between two change?

Usage: ``python benchmarks/boundary.py [--model FOLDER] [--json FILE]``

The introduction of Vieira et al. 2025 asks a tokenized model about a prompt with and without its
trailing space, and gets two answers. Here each pair of continuations is asked about with the
prompt cut in different places: before a space, after it, inside a word. The characters are the
same every time, and so are the probabilities of characters. With the prompt's own tokens fixed,
they are not. Printed: log p(first) − log p(second), in nats, at each cut; positive prefers the
first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

import charwise
from charwise import CharLM, Effort

FINE = Effort(64, 1e-6)


class Pair(NamedTuple):
    """A context, what is common to both continuations, and how they differ."""

    context: str
    common: str  # the boundary moves through this
    first: str
    second: str


PAIRS = (
    Pair("for i in", " ran", "ge(", "dom."),
    Pair("import", " nu", "mpy", "mbers"),
    Pair("        raise", " Val", "ueError(", "idationError("),
    Pair("    def", " __in", "it__(self", "dex__(self"),
    Pair("        return", " se", "lf.", "t("),
    Pair("    if x is", " no", "t None", "ne:"),
    Pair("from typing", " im", "port Any", "pl Any"),
    Pair("        elif is", "insta", "nce(", "ll("),
)


def preference(lm: CharLM, pair: Pair, cut: int, *, exact: bool) -> float:
    """log p(first) − log p(second), after a prompt of `cut` bytes of what is common."""
    prompt, rest = pair.context + pair.common[:cut], pair.common[cut:]
    if exact:
        state = lm.state(prompt, preset=FINE)
        one, other = (_extended(state, rest + end) for end in (pair.first, pair.second))
    else:
        # The prompt's own tokens stay; the continuation may use any tokens.
        ids: list[Any] = [
            *lm.vocabulary.bos_ids,
            *lm.vocabulary.encode(lm.vocabulary.lead + prompt.encode()),
        ]
        one, other = (
            lm.prefix_logprob([*ids, rest + end], preset=FINE) for end in (pair.first, pair.second)
        )
    return one - other


def _extended(state: charwise.cursor.state.State, text: str) -> float:
    for character in text:
        state = state + character
    return state.logprob


def rows(lm: CharLM, pairs: tuple[Pair, ...] = PAIRS) -> list[dict[str, Any]]:
    """One row for each pair and place of the boundary: at the start, after a space, at the end."""
    found = []
    for pair in pairs:
        places = sorted({0, 1 if pair.common.startswith(" ") else 2, len(pair.common)})
        for cut in places:
            row: dict[str, Any] = {**pair._asdict(), "cut": cut}
            row["plain"] = preference(lm, pair, cut, exact=False)
            row["exact"] = preference(lm, pair, cut, exact=True)
            found.append(row)
    return found


def changes(found: list[dict[str, Any]], method: str) -> int:
    """For how many pairs a method's preference depends on where the boundary is."""
    signs: dict[tuple[str, str], set[bool]] = {}
    for row in found:
        signs.setdefault((row["context"], row["common"]), set()).add(row[method] > 0)
    return sum(len(seen) > 1 for seen in signs.values())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="folder or name on the hub; default: the embedded model")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = rows(charwise.load(args.model))
    table = Table(title="log p(first) − log p(second), nats", title_justify="left")
    for column in ("prompt ✂ continuation", "first", "second", "plain", "exact"):
        table.add_column(column, justify="right" if column in ("plain", "exact") else "left")
    last = ""
    for row in found:
        common, cut = row["common"].replace(" ", "␣"), row["cut"]
        if row["context"] + common != last and last:
            table.add_section()
        last = row["context"] + common
        line = f"{row['context'].strip()}{common[:cut]} ✂ {common[cut:]}"
        numbers = [f"{row[name]:+.2f}" for name in ("plain", "exact")]
        table.add_row(Text(line), row["first"], row["second"], *numbers)
    Console(width=100).print(table)
    pairs = len(PAIRS)
    counts = {name: changes(found, name) for name in ("plain", "exact")}
    print(f"pairs whose preference moves with the boundary, of {pairs}: {counts}")
    if args.json:
        facts = {"model": args.model or "embedded", "pairs": pairs, "changes": counts}
        args.json.write_text(json.dumps({**facts, "rows": found}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
