"""How soon a model forgets how a text was tokenized: what lending rests on.

    python benchmarks/forgetting.py

Pairs of contexts that spell the same text, by the number of last tokens on which they agree: the
Jensen-Shannon distance of their next-token distributions. Rounds take one token to be enough.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import charwise
import texts
from charwise.evaluation.distance import js_distance
from charwise.known_text.effort import Effort
from charwise.known_text.lattice import Lattice
from charwise.known_text.rounds import Rounds
from charwise.known_text.vertex import Vertex
from charwise.known_text.windows import stretches
from charwise.tokens.prompts import split

#: Agreements that are counted together.
GROUPS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64))

#: Little is lent here, so that contexts which agree for long are there to be compared. Pairs with a
#: context of a smaller share than a tenth of θ are left out.
EFFORTS = {"hard": Effort(1e-3, 0.95, lookahead=4), "easy": Effort(1e-6, 0.95, lookahead=4)}


def pairs(lattice: Lattice) -> list[tuple[Vertex, Vertex]]:
    """Two contexts at the same position, both of some weight."""
    found = []
    for position, here in enumerate(lattice.at):
        least = lattice.log_prefix[position] + math.log(lattice.effort.theta / 10)
        heavy = [vertex for vertex in here if lattice.log_weight(vertex) > least]
        found += [(one, other) for n, one in enumerate(heavy) for other in heavy[:n]]
    return found


def distances(rounds: Rounds) -> dict[tuple[int, int], list[float]]:
    """The distances of all pairs of contexts, by how many last tokens they agree on."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    tree = rounds.evaluated.tree
    for pair in track(pairs(rounds.lattice), "comparing", transient=True):
        one, other = (tree.tokens(vertex.node)[::-1] for vertex in pair)
        equal = [x == y for x, y in zip(one, other, strict=False)]
        agreed = equal.index(False) if False in equal else len(equal)
        p, q = (rounds.evaluated.row(vertex.node).in_order for vertex in pair)
        group = next((g for g in GROUPS if g[0] <= agreed <= g[1]), None)
        if group is not None:
            found[group].append(float(js_distance((p / p.sum())[None], (q / q.sum())[None])[0]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=600, help="length of each text")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cases = {"hard": (charwise.load(), texts.hard_text(args.bytes))}
    stories = texts.tinystories()
    if stories is not None:
        cases["easy"] = (stories, texts.easy_text(stories, args.bytes))
    else:
        print("The easy text is left out: no tinystories-3m in CHARWISE_DATA.")
    results = {}
    for name, (lm, text) in cases.items():
        opening, whole = split(lm.vocabulary, text)
        table = Table("tokens agreed on", "pairs", "mean", "median", "90 % are below", title=name)
        rows: dict[tuple[int, int], list[float]] = defaultdict(list)
        for _, rounds in stretches(lm.engine, lm.index, opening, whole, EFFORTS[name], retain=True):
            for group, values in distances(rounds).items():
                rows[group] += values
        for low, high in sorted(rows):
            values = rows[low, high]
            figures = (np.mean(values), np.median(values), np.quantile(values, 0.9))
            label = str(low) if low == high else f"{low} to {high}"
            table.add_row(label, str(len(values)), *(f"{figure:.3f}" for figure in figures))
        Console(width=100).print(table)
        results[name] = {f"{low}-{high}": values for (low, high), values in rows.items()}
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
