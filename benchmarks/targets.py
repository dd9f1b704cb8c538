"""The targets of known-text scoring, before and after, from what the other scripts have written.

    python benchmarks/targets.py build/benchmarks [--write]

The folder is that of `make benchmarks`, with `scoring.json`, `calibration.json`, `cursor.json` and
others. With `--write` all tables go into docs/, between the markers of their scripts:

    <!-- benchmark: cursor -->
    <!-- end -->
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from calibration import OFF, WORSE, counts, worse
from cursor import ROWS
from harness import ROOT, table
from scoring import mean

#: Pages with tables that scripts write.
PAGES = ("benchmarks", "for-editors", "scoring")

Line = list[str]


def accuracy(rows: list[Any], preset: str, js: float, contexts: float, calls: float | None) -> Line:
    """The target of a preset on unseen code."""
    target = f"JS ≤ {js:.4f} at ≤ {contexts:g} contexts a byte"
    target += f" and ≤ {calls:g} calls for 400 bytes" if calls else ""
    line = [f"`{preset}`, unseen code", target]
    for version in ("before", "after"):
        found = [mean(rows, key, "code", preset, version) for key in ("js", "contexts", "calls")]
        met = found[0] <= js and found[1] <= contexts and found[2] <= (calls or 1e9)
        line.append(marked(met, "{:.4f} at {:.2f}, {:.0f} calls".format(*found)))
    return line


def easy(rows: list[Any], speeds: dict[str, Any]) -> Line:
    """The target on easy text."""
    line = ["`fast`, easy text", "≤ 0.45 contexts a byte, ≤ 5 calls, ≥ 0.5 × a plain pass"]
    for version in ("before", "after"):
        contexts = mean(rows, "contexts", "easy", "fast", version)
        calls = mean(rows, "calls", "easy", "fast", version) * 320 / 400
        speed = next(iter(speeds.values()))[version]
        ratio = speed["fast"] / speed["plain"]
        met = contexts <= 0.45 and calls <= 5 and ratio >= 0.5
        line.append(marked(met, f"{contexts:.2f}, {calls:.1f} calls, {ratio:.2f} ×"))
    return line


def far(rows: list[Any]) -> Line:
    """The target far out of the model's domain."""
    before, after = (mean(rows, "nats", "far", "default", v) for v in ("before", "after"))
    cells = [f"{before:.4f}", marked(after <= before, f"{after:.4f}")]
    return ["far out of domain, `default`", "at most before's nats a byte", *cells]


def repeats(rows: list[Any]) -> Line:
    """The target on repeats."""
    found = worse(rows)
    names = ", ".join(dict.fromkeys(row["passage"] for row in found))
    size = sum(row["kind"] == "repeat" for row in rows)
    target = f"none worse by > {WORSE:g} nats a byte, unless its stated error is within × 3"
    return ["repeats", target, "", marked(not found, f"{len(found)} of {size} {names}".rstrip())]


def stated(rows: list[Any]) -> Line:
    """The target of the stated error, on texts that chose no constant."""
    rows = [row for row in rows if row["half"] == "judging"]
    target = f"within × 3 on ≥ 80 % of texts off by > {OFF:g} nats; under a tenth on ≤ 3 %"
    line = ["stated error", target]
    for version in ("before", "after"):
        found = counts(rows, version)
        shares = [100 * found[key] / max(1, found["off"]) for key in ("calibrated", "silent")]
        met = shares[0] >= 80 and shares[1] <= 3
        line.append(marked(met, "{:.0f} %; {:.0f} %".format(*shares) + f" of {found['off']}"))
    return line


def speed(speeds: dict[str, Any]) -> Line:
    """The target of speed: the least of the texts, and the median."""
    line = ["speed of `default`", "≥ 1.5 × before's `accurate`, ≥ 1 × before's `default`", "1 ×"]
    texts = [found for name, found in speeds.items() if name.startswith("embedded")]
    ratios = [
        [found["after"]["default"] / found["before"][of] for found in texts]
        for of in ("accurate", "default")
    ]
    met = min(ratios[0]) >= 1.5 and min(ratios[1]) >= 1
    cells = [f"{min(found):.2f} (median {statistics.median(found):.2f})" for found in ratios]
    return [*line, marked(met, "; ".join(cells))]


def marked(met: bool, cell: str) -> str:
    """A cell that says whether its target is met."""
    return f"{cell} {'✓' if met else '✗'}"


def targets(folder: Path) -> str:
    """The table of targets."""
    scoring = json.loads((folder / "scoring.json").read_text())["figures"]
    errors = json.loads((folder / "calibration.json").read_text())["figures"]["rows"]
    rows, speeds = scoring["rows"], scoring["speeds"]
    lines = [
        accuracy(rows, "default", 0.0035, 4.8, 16),
        accuracy(rows, "accurate", 0.0025, 8, None),
        accuracy(rows, "fast", 0.0065, 3, None),
        easy(rows, speeds),
        far(rows),
        repeats(errors),
        stated(errors),
        speed(speeds),
    ]
    return table("Targets", ["", "target", "before", "after"], lines)


def editors(folder: Path) -> str:
    """The table of latencies for authors of editors."""
    ratios = [one["after"] for one in json.loads((folder / "cursor.json").read_text())["figures"]]
    lines = [
        [row, of, f"{statistics.median(one[row] for one in ratios):.2f}"]
        for row, of in ROWS.items()
    ]
    return table("Ratios, the median of several prompts", ["", "compared with", "ratio"], lines)


def sections(folder: Path) -> dict[str, str]:
    """The text between the markers, by the name of the script."""
    found = {"targets": targets(folder)}
    if (folder / "cursor.json").exists():
        found["editors"] = editors(folder)
    for path in sorted(folder.glob("*.json")):
        run = json.loads(path.read_text())
        head = f"`{run['command']}`, {run['seconds']} seconds, at commit {run['commit']}."
        found[path.stem] = "\n".join([head, "", *run["tables"]])
        found.setdefault("machine", f"{run['machine']}. Before is commit {run['base']}.\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the JSON files")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/")
    args = parser.parse_args()
    found = sections(args.folder)
    print(found["targets"])
    for page in PAGES if args.write else ():
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
