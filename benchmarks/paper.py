"""Error, surprisal and speed of the paper's beam and of charwise (Vieira et al. 2025, section 4).

    python benchmarks/paper.py TEXT [--model smollm2] [--K 2,4,8,16] [--figure FILE]

docs/benchmarks.md says what is compared, and what the columns are. Times are of walks that compute
surprisals alone, the methods taking turns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise import CharLM
from charwise.coverings.beam import Beam
from charwise.coverings.windows import Window
from charwise.evaluation.resampling import Mean, intervals, units_of
from harness import arguments, clock, finish, lm_of, table, with_interval

Floats = NDArray[np.float64]

COLUMNS = {
    "JS distance": ".2e",
    "ΔS bits": ".2e",
    "bits/byte": ".4f",
    "bytes/s": ",.0f",
    "contexts/byte": ".2f",
}


class Walk(NamedTuple):
    """`[n]` log p(byte | all before), `[n, 257]` distributions, contexts and model calls."""

    logprobs: Floats
    distributions: Floats | None
    contexts: int
    calls: int


def walk_beam(lm: CharLM, text: bytes, k: int, *, rows: bool = False) -> Walk:
    """Bundled beam summing, byte by byte (Appendix D); the text must fit into the window."""
    opening, data = lm.vocabulary.split_prompt(text)
    [window] = Window.plan(lm.engine, lm.index, opening, data)
    tree = lm.engine.tree(window.prompt_ids)
    beam, size, logs, masses = Beam.start(tree, 0, k), 0, [0.0], []
    for byte in data:
        if rows:
            masses.append(beam.next_byte_masses()[0])
        beam = beam.step(byte)
        logs.append(beam.prefix_logprob)
        if tree.size - size > 4 * k + 256:
            tree.keep(beam.nodes())
            size = tree.size
    lead = len(opening.implied_prefix)
    distributions = np.reshape([m / m.sum() for m in masses[lead:]], (-1, 257)) if rows else None
    return Walk(np.diff(logs)[lead:], distributions, tree.contexts, tree.calls)


def walk_canonical(lm: CharLM, text: bytes, *, rows: bool = False) -> Walk:
    """One pass over the canonical tokens: plain perplexity, without distributions of bytes."""
    opening, data = lm.vocabulary.split_prompt(text)
    [window] = Window.plan(lm.engine, lm.index, opening, data)
    tree, tokens = lm.engine.tree(window.prompt_ids), window.canonical
    nodes = [0, *tree.extend([(0, tokens[:-1])])[0]]
    logprobs, sizes = np.zeros(len(data)), [lm.index.length(token) for token in tokens]
    spelling = tree.logprobs(nodes)[np.arange(len(tokens)), tokens].double().cpu().numpy()
    logprobs[np.cumsum([0, *sizes[:-1]])] = spelling
    return Walk(logprobs[len(opening.implied_prefix) :], None, tree.contexts, tree.calls)


def walk_rounds(lm: CharLM, text: bytes, preset: str, *, rows: bool = False) -> Any:
    """Refinement in rounds, as `CharLM.score` does it."""
    if rows:
        return lm.scores_with_rows([text], contexts=[""], preset=preset)[0]
    return lm.score(text, preset=preset)


def js_distance(p: Floats, q: Floats) -> Floats:
    """Of each row √([KL(p‖m) + KL(q‖m)] / 2) in bits, where m = (p + q) / 2."""
    middle, divergence = (p + q) / 2, np.zeros(len(p))
    for one in (p, q):
        ratio = np.divide(one, middle, out=np.ones_like(one), where=one > 0)
        divergence += (one * np.log2(ratio)).sum(axis=-1) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


def mean(values: Floats) -> Mean:
    """The mean of `[n]` values of bytes, with an interval over parts of the text."""
    return intervals(units_of([values[:, None]]))[0]


def methods(ks: list[int], presets: list[str]) -> dict[str, Callable[..., Any]]:
    """Ways to walk a text: beams of every width, presets, and the canonical tokens."""
    beams = {f"beam K={k}": partial(walk_beam, k=k) for k in ks}
    rounds = {preset: partial(walk_rounds, preset=preset) for preset in presets}
    return {**beams, **rounds, "canonical": walk_canonical}


def measure(
    lm: CharLM, text: bytes, compared: dict[str, Any], reference: int, repeat: int
) -> dict[str, dict[str, Any]]:
    """The row of each method, compared with a beam of width `reference`, which is the last one."""
    widest = f"beam K={reference}"
    compared = compared | {widest: partial(walk_beam, k=reference)}
    true = compared[widest](lm, text, rows=True)
    rows: dict[str, dict[str, Any]] = {name: {} for name in compared}
    for name, walk in compared.items():
        result, row = true if name == widest else walk(lm, text, rows=True), rows[name]
        if result.distributions is not None and name != widest:
            row["JS distance"] = mean(js_distance(result.distributions, true.distributions))
            row["ΔS bits"] = mean(np.abs(result.logprobs - true.logprobs) / math.log(2))
        row["bits/byte"] = mean(-result.logprobs / math.log(2))
    times: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(repeat):
        for name, walk in compared.items():
            started = clock()
            rows[name]["contexts/byte"] = walk(lm, text).contexts / len(text)
            times[name].append(clock() - started)
    for name, row in rows.items():
        row["bytes/s"] = len(text) / statistics.median(times[name])
    return rows


def figure(rows: dict[str, dict[str, Any]], title: str) -> Any:
    """The distance and the surprisal against speed; the canonical surprisal is a dotted line."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(9, 4), layout="constrained")
    page.suptitle(title, fontsize="medium")
    for axes, column in zip(page.subplots(1, 2), ("JS distance", "bits/byte"), strict=True):
        axes.set(xscale="log", xlabel="speed (bytes/s)", ylabel=f"{column}, mean over bytes")
        axes.grid(alpha=0.25, which="both")
        axes.margins(x=0.15)
        for name, row in rows.items():
            if name == "canonical" or column not in row:
                continue
            colour = "#0072B2" if name.startswith("beam") else "#D55E00"
            at, (value, low, high) = row["bytes/s"], row[column]
            bars = [[value - low], [high - value]]
            axes.errorbar(at, value, bars, color=colour, marker="o", capsize=2)
            style: Any = {"textcoords": "offset points", "rotation": 45, "fontsize": "small"}
            axes.annotate(name.removeprefix("beam "), (at, value), (3, 3), color=colour, **style)
        if column == "JS distance":
            axes.set_yscale("log")
        else:
            axes.axhline(rows["canonical"][column].value, linestyle=":", color="#555555")
    return page


def main() -> None:
    parser = arguments(__doc__ or "", "smollm2")
    parser.add_argument("text", type=Path, help="the file to walk, any bytes")
    parser.add_argument("--K", default="2,4,8,16", help="widths of beams")
    parser.add_argument("--reference-K", type=int, default=64, help="width of the reference beam")
    parser.add_argument("--bytes", type=int, default=400, help="walk no more than so many")
    parser.add_argument("--repeat", type=int, default=3, help="timed walks of each method")
    parser.add_argument("--figure", type=Path, help="write distance and speed here, as SVG or PNG")
    args = parser.parse_args()
    text, ks = args.text.read_bytes()[: args.bytes], [int(k) for k in args.K.split(",")]
    compared = methods(ks, ["fast", "default", "accurate"])
    rows = measure(lm_of(args.model), text, compared, args.reference_K, args.repeat)
    title = f"{args.model}, {len(text):,} bytes of {args.text.name}"
    lines = {
        name: [with_interval(row[c], form) if c in row else "" for c, form in COLUMNS.items()]
        for name, row in rows.items()
    }
    finish(table(title, ["method", *COLUMNS], lines))
    if args.figure:
        figure(rows, title).savefig(args.figure)


if __name__ == "__main__":
    main()
