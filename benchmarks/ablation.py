"""What each named constant of scoring is worth: a row for each value that differs from its own.

    python benchmarks/ablation.py [--set NAME=VALUE] [--preset default] [--quick] [--json FILE]

`CONSTANTS` lists the values to try. `--set LOOKAHEAD=4` tries one of your own in place of them,
several at once if they are joined by a comma. A constant is a module attribute somewhere in
`charwise.scoring`; it is set in every module that has it. A constant that is only read when a
module is imported, as the default of an argument is, cannot be varied this way.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from typing import Any

import numpy as np

from charwise import Effort
from harness import Arrays, arguments, finish, lm_of, table, versions
from references import difference, reference, scored, selected
from texts import MODELS, SENTENCES, Passage

#: The package whose constants are set, and the values to try of each. Edit these two only. `CURVE`
#: is read when presets are made, and `WIDEST` only counts with a tolerance: neither is varied.
PACKAGE = "charwise.scoring"
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "MEMORY": (3,),
    "FIRST": (1.0,),
    "LOOKAHEAD": (4,),
    "FINE_ROUNDS": (2,),
    "SPAN": (1,),
    "ROOM": (2,),
    "PASSES": (1,),
    "PORTION": (64,),
    "SHORT": (1,),
    "LOAN_ERROR": (0.1,),
    "CHANGE_ERROR": (0.0,),
}

#: Hard texts are so many of each kind.
HARD = {"repeat": 4, "far": 3}

Settings = dict[str, Any]


def scored_with(passage: Passage, preset: str, settings: Settings) -> Arrays:
    """A score with these constants; afterwards they are those of the source again.

    Raises:
        LookupError: no module has a constant of that name.
    """
    package = importlib.import_module(PACKAGE)
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
    modules = [package, *map(importlib.import_module, names)]
    own = [(m, name, getattr(m, name)) for m in modules for name in settings if hasattr(m, name)]
    if missing := set(settings) - {name for _, name, _ in own}:
        raise LookupError(f"no module of {PACKAGE} has {', '.join(sorted(missing))}.")
    for module, name, _ in own:
        setattr(module, name, settings[name])
    try:
        return scored(passage, preset)
    finally:
        for module, name, value in own:
            setattr(module, name, value)


def parsed(text: str) -> Settings:
    """Constants by name, from NAME=VALUE, several joined by commas.

    >>> parsed("ROUNDS=0,FINER=1.5")
    {'ROUNDS': 0, 'FINER': 1.5}
    """
    pairs = [part.split("=") for part in text.split(",")]
    return {name: float(value) if "." in value else int(value) for name, value in pairs}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--half", default="judging", choices=["choosing", "judging"])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="+", type=parsed, help="NAME=VALUE, in place of the list")
    args, started = parser.parse_args(), time.perf_counter()
    listed = [{name: value} for name, values in CONSTANTS.items() for value in values]
    cases: list[Settings] = [{}, *(args.set or listed)]
    passages = selected(args.half, args.quick, "code")
    passages += [
        passage
        for kind, count in HARD.items()
        for passage in selected(args.half, args.quick, kind)[:count]
    ]
    rows = []
    with versions(args) as both:
        true = {passage.name: reference(both, passage) for passage in passages}
        for settings in cases:
            try:
                rows.append(figures(both["after"], settings, args.preset, passages, true))
            except RuntimeError as error:
                rows.append({"constants": settings, "failed": str(error)})
    lines = [[named(row["constants"]), *cells(row)] for row in rows]
    columns = ["constants", "code, JS", "nats", "contexts", "calls", "hard, nats", "stated"]
    columns += ["contexts"]
    title = f"Ablation at `{args.preset}`: {len(passages)} texts"
    tables = [table(title, columns, lines)]
    columns = ["model", "constants", "nats", "worst", "contexts", "calls"]
    title = f"{len(SENTENCES[args.half])} sentences at `{args.preset}`, nats a sentence"
    tables.append(table(title, columns, sentences(args.half, args.preset)))
    finish(args, tables, rows, started)


def figures(
    version: Any, settings: Settings, preset: str, passages: list[Passage], true: dict[str, Arrays]
) -> dict[str, Any]:
    """Means over the unseen code, and over the hard texts."""
    found: dict[str, list[float]] = {}
    for passage in passages:
        score = version.kept(scored_with, passage, preset, settings)
        away, size = difference(score, true[passage.name]), len(passage.text)
        kind = "code" if passage.kind == "code" else "hard"
        values = {"js": away.js, "nats": away.nats, "contexts": int(score["contexts"]) / size}
        values |= {
            "calls": int(score["calls"]) * 400 / size,
            "stated": float(score["error"].mean()),
        }
        for name, value in values.items():
            found.setdefault(f"{kind} {name}", []).append(value)
    return {"constants": settings, **{name: float(np.mean(v)) for name, v in found.items()}}


def sentences(half: str, preset: str) -> list[list[str]]:
    """How far sentences are from a width of 64 and θ = 1e-5, with `SHORT` and without."""
    lines = []
    for model in MODELS[:2]:
        lm, settings = lm_of(model), [{}, {"SHORT": 1}]
        true = [lm.prefix_logprob(text, preset=Effort(64, 1e-5)) for text in SENTENCES[half]]
        for constants in settings:
            scores = [
                scored_with(Passage(model, text, "sentence", text.encode()), preset, constants)
                for text in SENTENCES[half]
            ]
            away = [abs(s["logprobs"].sum() - t) for s, t in zip(scores, true, strict=True)]
            size = sum(len(text) for text in SENTENCES[half])
            contexts = sum(int(score["contexts"]) for score in scores) / size
            calls = np.mean([int(score["calls"]) for score in scores])
            line = [f"{np.mean(away):.3f}", f"{max(away):.2f}", f"{contexts:.2f}", f"{calls:.1f}"]
            lines.append([model, named(constants), *line])
    return lines


def named(settings: Settings) -> str:
    """The constants of a row."""
    return ", ".join(f"`{name} = {value}`" for name, value in settings.items()) or "as it is"


def cells(row: dict[str, Any]) -> list[str]:
    """The figures of a row, or why there are none."""
    if "failed" in row:
        return [row["failed"], *[""] * 6]
    return [
        f"{row['code js']:.4f}",
        f"{row['code nats']:.4f}",
        f"{row['code contexts']:.2f}",
        f"{row['code calls']:.0f}",
        f"{row['hard nats']:.4f}",
        f"{row['hard stated']:.4f}",
        f"{row['hard contexts']:.1f}",
    ]


if __name__ == "__main__":
    main()
