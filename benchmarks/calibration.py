"""The stated error against the true one, on all kinds of text, repeats and runs included.

    python benchmarks/calibration.py [--half choosing] [--quick] [--json FILE]

*stated* is the mean of `Score.error`, *true* the mean |Δ log p| against the references of
`references.py`, both in nats a byte. A text is *off* if its true error is over 0.05. Repeats are
judged on both halves: the texts that issue reports named are in the half `choosing`.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

from harness import PRESETS, Versions, arguments, finish, table, versions
from references import KINDS, difference, reference, scored, selected
from texts import Passage

#: Nats a byte: a text with a larger true error is off, and one with less than `EQUAL` has none.
OFF, EQUAL = 0.05, 1e-5

#: A stated error within this factor of the true one is calibrated.
FACTOR = 3.0

#: By so many nats a byte a repeat may be worse than before, if its error is not calibrated.
WORSE = 0.02

Row = dict[str, Any]


def measure(both: Versions, passage: Passage, half: str) -> list[Row]:
    """A row for each preset: stated and true error of both versions."""
    true, rows = reference(both, passage), list[Row]()
    for preset in PRESETS:
        row: Row = {"half": half, "passage": passage.name, "kind": passage.kind, "preset": preset}
        row["reference"] = str(true["by"])
        for version, found in both.kept(scored, passage, preset).items():
            row[version] = {
                "true": difference(found, true).nats,
                "stated": float(found["error"].mean()),
                "contexts": int(found["contexts"]) / len(passage.text),
            }
        rows.append(row)
    return rows


def calibrated(found: Row) -> bool:
    """Whether the stated error is within `FACTOR` of the true one."""
    stated, true = max(found["stated"], EQUAL), max(found["true"], EQUAL)
    return bool(true / FACTOR <= stated <= true * FACTOR)


def counts(rows: list[Row], version: str) -> Row:
    """How many texts are off, and how many of them say so."""
    found = [row[version] for row in rows]
    off = [one for one in found if one["true"] > OFF]
    return {
        "texts": len(found),
        "off": len(off),
        "calibrated": sum(map(calibrated, off)),
        "silent": sum(one["stated"] < one["true"] / 10 for one in off),
        "calibrated, all": sum(map(calibrated, found)),
    }


def worse(rows: list[Row]) -> list[Row]:
    """The repeats that are worse than before and do not say so."""
    return [
        row
        for row in rows
        if row["kind"] == "repeat"
        and row["after"]["true"] > row["before"]["true"] + WORSE
        and not calibrated(row["after"])
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--half", nargs="*", default=["judging", "choosing"])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    args, started = parser.parse_args(), time.perf_counter()
    rows = list[Row]()
    with versions(args) as both:
        for half in args.half:
            # Constants were chosen on the other passages of that half.
            kinds = args.kinds if half == "judging" else [k for k in args.kinds if k == "repeat"]
            for passage in selected(half, args.quick, *kinds):
                rows += measure(both, passage, half)
    summary = []
    for preset in PRESETS:
        here = [row for row in rows if row["preset"] == preset]
        for version in ("before", "after"):
            summary.append([preset, version, *counts(here, version).values()])
    columns = ["preset", "version", *counts([], "after")]
    tables = [table("Texts that are off by more than 0.05 nats a byte", columns, summary)]
    columns = ["before", "stated", "contexts", "after", "stated", "contexts"]
    title = "Means over each kind of text at `default`, nats a byte"
    tables.append(table(title, ["kind", "texts", *columns], by_kind(rows, "default")))
    lines = [[row["passage"], row["preset"], *cells(row)] for row in worse(rows)]
    title = "Repeats that are worse than before by over 0.02, and state another error"
    tables.append(table(title, ["text", "preset", *columns], lines))
    finish(args, tables, {"rows": rows}, started)


def by_kind(rows: list[Row], preset: str) -> list[list[str]]:
    """A line for each kind of text: mean true and stated error, and contexts."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        here = [row for row in rows if (row["kind"], row["preset"]) == (kind, preset)]
        means: Row = {
            version: {
                key: fmean(row[version][key] for row in here)
                for key in ("true", "stated", "contexts")
            }
            for version in ("before", "after")
        }
        lines.append([kind, str(len(here)), *cells(means)])
    return lines


def cells(row: Row) -> list[str]:
    """True and stated error and contexts a byte, before and after."""
    found = [row[version] for version in ("before", "after")]
    return [
        cell
        for one in found
        for cell in (f"{one['true']:.4f}", f"{one['stated']:.4f}", f"{one['contexts']:.1f}")
    ]


if __name__ == "__main__":
    main()
