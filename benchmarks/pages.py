"""Write the tables of the other scripts into docs/.

    python benchmarks/pages.py build/benchmarks

The folder is that of `make benchmarks`. Table n of a script becomes docs/results/SCRIPT-n.csv, and
docs/results/runs.csv says how each script was run. docs/for-editors.md gets the ratios of the
present version, between two markers.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cursor import ROWS
from harness import ROOT, table

RESULTS = ROOT / "docs" / "results"
EDITORS = ROOT / "docs" / "for-editors.md"
BEGIN, END = "<!-- benchmark: editors -->\n", "<!-- end -->"


def cells(table: str) -> list[list[str]]:
    """The head and the rows of a table in Markdown."""
    lines = [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|")]
    return [lines[0], *lines[2:]]


def write(name: str, rows: Sequence[Sequence[Any]]) -> None:
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def ratios(run: dict[str, Any]) -> str:
    """The table for editors: each step at a cursor, by the present version."""
    found = [one["after"] for one in run["figures"]]
    lines = [
        [row, of, f"{statistics.median(one[row] for one in found):.2f}"] for row, of in ROWS.items()
    ]
    return table("Ratios, the median of several prompts", ["", "compared with", "ratio"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the JSON files")
    folder = parser.parse_args().folder
    runs = {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))}
    how = ["command", "seconds", "commit", "base", "machine"]
    write("runs", [how, *([run[key] for key in how] for run in runs.values())])
    for name, run in runs.items():
        for number, found in enumerate(run["tables"], 1):
            write(f"{name}-{number}", cells(found))
    if "cursor" in runs:
        text = EDITORS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        EDITORS.write_text(f"{before}{BEGIN}\n{ratios(runs['cursor'])}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
