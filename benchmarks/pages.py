"""Write the tables of the other scripts into docs/.

    python benchmarks/pages.py build/benchmarks

The folder is that of `make benchmarks`. A table goes between the markers of its script:

    <!-- benchmark: cursor -->
    <!-- end -->
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from cursor import ROWS
from harness import ROOT, table

#: Pages with tables that scripts write.
PAGES = ("benchmarks", "for-editors")


def sections(runs: dict[str, Any]) -> dict[str, str]:
    """The text between the markers, by the name of the script."""
    found = {}
    for name, run in runs.items():
        head = f"`{run['command']}`, {run['seconds']} seconds, at commit {run['commit']}."
        found[name] = "\n".join([head, "", *run["tables"]])
        found["machine"] = f"{run['machine']}. Before is commit {run['base']}.\n"
    if "cursor" in runs:
        ratios = [one["after"] for one in runs["cursor"]["figures"]]
        lines = [
            [row, of, f"{statistics.median(one[row] for one in ratios):.2f}"]
            for row, of in ROWS.items()
        ]
        title = "Ratios, the median of several prompts"
        found["editors"] = table(title, ["", "compared with", "ratio"], lines)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the JSON files")
    folder = parser.parse_args().folder
    found = sections({p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))})
    for page in PAGES:
        path = ROOT / "docs" / f"{page}.md"
        text = path.read_text(encoding="utf-8")
        for name, section in found.items():
            begin, end = f"<!-- benchmark: {name} -->\n", "<!-- end -->"
            before, marker, rest = text.partition(begin)
            if marker:
                text = f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
