"""Two models with different tokenizers on code and English, and whether the intervals cover.

    python benchmarks/compare.py --bytes 4000 --figure docs/figures/compare.png
    python benchmarks/compare.py --coverage 400

The first compares the embedded model with the TinyStories model of `CHARWISE_DATA`, on text that
neither was trained on. The second draws series whose mean is known and counts how many of the
intervals of 95 % have it inside.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import charwise
from charwise.evaluation.resampling import by_blocks, by_texts
from texts import data_folder, lines_from, path_of

Floats = NDArray[np.float64]

#: What is compared on: code and English that no model saw.
PASSAGES = {
    "code, statistics": ("statistics", 20000),
    "English": ("text/wikitext103_test_64k.txt", 30000),
}

#: Share that each byte carries of the one before, and bytes, of the series that are drawn.
SERIES = ((0.0, 300), (0.5, 1000), (0.8, 2000), (0.8, 4000))

#: Texts of a draw.
TEXTS = (20, 50, 100)


def passages(size: int) -> dict[str, bytes]:
    """The texts, by name."""
    found = {}
    for what, (source, start) in PASSAGES.items():
        found[what] = lines_from(path_of(source).read_bytes(), start)[:size]
    return found


def compared(size: int, figure: Path | None) -> list[dict[str, object]]:
    """A comparison on each text by itself; the figure is of both together."""
    models = {"embedded": "embedded", "tinystories-3m": data_folder() / "models/tinystories-3m"}
    table = Table("text", "", "bits/byte", "95 % interval", "error", "clear", "block")
    out: list[dict[str, object]] = []
    for name, text in passages(size).items():
        found = charwise.compare(models, {name: text})
        for row in found.rows():
            out.append({"text": name, "bytes": len(text), "block": found.lengths, **row})
            interval = f"({row['low']:.4f}, {row['high']:.4f})"
            clear = "" if row["clear"] is None else str(row["clear"])
            cells = (f"{row['bits_per_byte']:.4f}", interval, f"{row['error']:.1e}", clear)
            table.add_row(name, row["name"], *cells, f"{found.lengths[0]}")
        for word in found.words(5):
            out.append({"text": name, **word._asdict()})
            Console().print(name, repr(word.text), f"{word.first:.1f} {word.second:.1f}")
        if figure is not None:
            place = figure.with_stem(f"{figure.stem}-{name.split(',')[0].lower()}")
            found.plot().savefig(place, dpi=110)
    Console(width=120).print(table)
    return out


def dependent(rng: np.random.Generator, size: int, carried: float, columns: int) -> Floats:
    """Skewed values of mean 0, each of which carries a share of the one before."""
    drawn = rng.exponential(size=(size + 100, columns)) - 1
    for t in range(1, len(drawn)):
        drawn[t] += carried * drawn[t - 1]
    return np.asarray(drawn[100:])


def coverage(draws: int, resamples: int = 400) -> list[dict[str, object]]:
    """How many intervals of 95 % have the true mean inside, and the true difference of pairs."""
    rng, out = np.random.default_rng(0), list[dict[str, object]]()
    table = Table("units", "series", "mean", "difference", "bytes of a block")
    for carried, size in SERIES:
        inside, length = np.zeros(2), 0
        for n in range(draws):
            own, shared = dependent(rng, size, carried, 2), dependent(rng, size, carried, 1)
            both = own + 3 * shared
            columns = np.column_stack([both[:, 0], both[:, 0] - both[:, 1]])
            found = by_blocks([columns], resamples, n)
            inside += [mean.low <= 0 <= mean.high for mean in found.means]
            length += found.lengths[0]
        what = f"{size:,} bytes, carrying {carried:g}"
        shares = [f"{100 * share / draws:.1f} %" for share in inside]
        table.add_row("blocks", what, *shares, f"{length / draws:.1f}")
        out.append({"series": what, "inside": (inside / draws).tolist()})
    for count in TEXTS:
        hits = 0
        for n in range(draws):
            sizes = rng.integers(10, 60, count)
            levels = 2 * rng.gamma(4.0, 0.25, count)
            series = [np.full((s, 1), level) for s, level in zip(sizes, levels, strict=True)]
            [mean] = by_texts(series, resamples, n).means
            hits += mean.low <= 2 <= mean.high
        table.add_row("texts", f"{count} texts", f"{100 * hits / draws:.1f} %", "", "")
        out.append({"series": f"{count} texts", "inside": hits / draws})
    Console(width=120).print(table)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=4000)
    parser.add_argument("--coverage", type=int, metavar="DRAWS")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    done = compared(options.bytes, options.figure) if not options.coverage else []
    found = coverage(options.coverage) if options.coverage else done
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
