"""Error, surprisal and speed of the ways to walk a text (Vieira et al. 2025, section 4).

python benchmarks/paper.py TEXT --model embedded --K 2,4,8,16 --reference-K 64 --out results

A text is walked by every method, and errors are measured against a wide beam.

- *JS distance*: at each byte, the Jensen-Shannon distance between the method's and the reference's
  distribution over what comes next, the 256 bytes and the end of text. Averaged over the bytes.
- *ΔS*: at each byte, the absolute difference of the surprisals −log₂ p(byte | all before) by the
  method and by the reference, in bits. Averaged over the bytes.
- *bits/byte*: the surprisal, averaged over the bytes. The canonical baseline counts a token's
  surprisal on its first byte and 0 on the others: only its mean is comparable.
- *bytes/s*: the bytes of the text by the seconds of one walk that computes the surprisals alone,
  averaged over the repeated walks. Methods take turns, so that a machine that slows down slows all.
- *contexts/byte*: token contexts that such a walk evaluates, by the bytes of the text.

Intervals are bootstrapped: over bytes for the first three, as if these were independent, and over
the repeated walks for the speed.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import charwise
from charwise import CharLM
from charwise.coverings.beam import Beam
from charwise.coverings.bundles import Bundle, log, next_byte_masses
from charwise.coverings.windows import Window
from charwise.engine import TokenTree
from charwise.errors import CharwiseError, SettingError, impossible
from charwise.scoring.effort import Effort
from harness import table

Floats = NDArray[np.float64]

#: Bytes of the text whose contexts are evaluated in one call.
_TOGETHER = 64


@dataclass(frozen=True)
class Walk:
    """The results of a method for a text of n bytes.

    Attributes:
        logprobs: `[n]` log p(byte | all before), nats.
        distributions: `[n, 257]` p(byte | all before), end of text last; None if not asked for.
        contexts: contexts evaluated.
        calls: model calls, one after the other.
        seconds: wall-clock.
    """

    logprobs: Floats
    distributions: Floats | None
    contexts: int
    calls: int
    seconds: float = 0.0

    @property
    def bits(self) -> Floats:
        """`[n]` surprisals, bits."""
        return np.asarray(-self.logprobs / math.log(2))


def walk_rounds(lm: CharLM, text: bytes | str, effort: Effort | str, *, rows: bool = False) -> Walk:
    """Refinement in rounds, as `CharLM.score` does it."""
    if rows:
        [score] = lm.scores_with_rows([text], contexts=[""], preset=effort)
    else:
        score = lm.score(text, preset=effort)
    return Walk(score.logprobs, score.distributions, score.contexts, score.calls)


def walk_beam(
    lm: CharLM, text: bytes | str, k: int, theta: float = 0.0, *, rows: bool = False
) -> Walk:
    """Bundled beam summing, byte by byte (Appendices D and G)."""
    opening, data = lm.vocabulary.split_prompt(text)
    logprobs, distributions = np.zeros(len(data)), np.zeros((len(data), 257))
    contexts = calls = 0
    for window in Window.plan(lm.engine, lm.index, opening, data):
        tree = lm.engine.tree(window.prompt_ids)
        beam, kept = Beam.start(tree, 0, k, theta, fallback=True), 0
        for at in range(window.begin, window.stop):
            if rows and at >= window.scored:
                masses, _ = beam.next_byte_masses()
                distributions[at] = masses / masses.sum()
            before, beam = beam.prefix_logprob, beam.step(data[at])
            if at >= window.scored:
                logprobs[at] = beam.prefix_logprob - before
            if tree.size - kept > 4 * k + 256:
                tree.keep(beam.nodes())
                kept = tree.size
        contexts, calls = contexts + tree.contexts, calls + tree.calls
    lead = len(opening.implied_prefix)
    return Walk(logprobs[lead:], distributions[lead:] if rows else None, contexts, calls)


def walk_canonical(lm: CharLM, text: bytes | str, *, rows: bool = False) -> Walk:
    """One teacher-forced pass over the canonical tokens: plain perplexity, and no distributions.

    A token's log-probability is counted on its first byte, and the other bytes get 0.
    """
    opening, data = lm.vocabulary.split_prompt(text)
    logprobs = np.zeros(len(data))
    contexts = calls = 0
    for window in Window.plan(lm.engine, lm.index, opening, data):
        tree = lm.engine.tree(window.prompt_ids)
        tokens = window.canonical
        nodes = [0, *tree.extend([(0, tokens[:-1])])[0]]
        chosen = tree.logprobs(nodes)[np.arange(len(tokens)), tokens].double().tolist()
        at = window.begin
        for token, logprob in zip(tokens, chosen, strict=True):
            if at >= window.scored:
                logprobs[at] = logprob
            at += lm.index.length(token)
        contexts, calls = contexts + tree.contexts, calls + tree.calls
    return Walk(logprobs[len(opening.implied_prefix) :], None, contexts, calls)


def walk_healed(lm: CharLM, text: bytes | str, *, rows: bool = False) -> Walk:
    """Token healing, read as a model of bytes (Appendix F).

    With δ₁…δ_N the canonical tokens of the text so far, p(byte) is proportional to the mass of
    the tokens that start with κ(δ_N)·byte after δ₁…δ_{N−1}, plus what δ_N itself (or a token of
    the same bytes) leaves to the next token: the paper's `next_character_probability` over the
    covering of eq. 43. Each byte's probability is normalised by itself; their product is not the
    prefix probability of any one model of tokens. The text being known, the contexts of many
    bytes are evaluated in one call.
    """
    opening, data = lm.vocabulary.split_prompt(text)
    logprobs, distributions = np.zeros(len(data)), np.zeros((len(data), 257))
    contexts = calls = 0
    for window in Window.plan(lm.engine, lm.index, opening, data):
        tree = lm.engine.tree(window.prompt_ids)
        for start in range(window.scored, window.stop, _TOGETHER):
            positions = range(start, min(start + _TOGETHER, window.stop))
            coverings = healed_coverings(tree, [data[window.begin : at] for at in positions])
            for at, covering in zip(positions, coverings, strict=True):
                masses, _ = next_byte_masses(tree, covering.bundles)
                if not masses[data[at]] > 0:
                    raise impossible(data[: at + 1])
                distributions[at] = masses / masses.sum()
                logprobs[at] = math.log(distributions[at, data[at]])
            tree.keep(coverings[-1].path)
        contexts, calls = contexts + tree.contexts, calls + tree.calls
    lead = len(opening.implied_prefix)
    return Walk(logprobs[lead:], distributions[lead:] if rows else None, contexts, calls)


class HealedCovering(NamedTuple):
    """The covering of eq. 43.

    Attributes:
        path: the nodes of the empty string, δ₁, δ₁δ₂, …, δ₁…δ_{N−1}.
        bundles: after the last of them, and, if that is spelled, after κ(δ_N).
    """

    path: list[int]
    bundles: list[Bundle]


def healed_coverings(tree: TokenTree, prefixes: Sequence[bytes]) -> list[HealedCovering]:
    """Return the healed coverings of several texts; new contexts are evaluated in one call.

    The weights of the bundles are given δ₁…δ_{N−1}, which may itself be impossible.
    """
    index = tree.index
    wanted: list[tuple[bytes, list[int]]] = []
    branches: list[tuple[int, list[int]]] = []
    for prefix in prefixes:
        tokens = index.vocabulary.encode_beginning(prefix)
        if tokens and sum(map(index.length, tokens)) == len(prefix):
            tokens.pop()  # what falls short of the end has the part of a token to heal already
        rest = prefix[sum(map(index.length, tokens)) :]
        lo, hi = index.same_bytes(rest) if rest else (0, 0)
        same = index.ids[lo:hi].tolist()
        wanted.append((rest, same))
        branches += [(0, tokens), *((0, [*tokens, id]) for id in same)]
    nodes = iter(tree.extend(branches))
    coverings = []
    for rest, same in wanted:
        path = [0, *next(nodes)]
        in_order = tree.row(path[-1]).in_order
        bundles = [Bundle.before(tree, path[-1], 0.0, rest)]
        for id in same:
            weight = log(float(in_order[index.rank[id]]))
            bundles.append(Bundle.before(tree, next(nodes)[-1], weight, b""))
        coverings.append(HealedCovering(path, bundles))
    return coverings


def js_distance(p: Floats, q: Floats) -> Floats:
    """Return the Jensen-Shannon distance of each row: the root of the divergence in bits.

    With m = (p + q) / 2 the divergence is [KL(p‖m) + KL(q‖m)] / 2. Rows are distributions over
    the 256 bytes and the end of text.

    >>> js_distance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
    array([1.])
    """
    middle = (p + q) / 2
    divergence = np.zeros(len(p))
    for one in (p, q):
        ratio = np.divide(one, middle, out=np.ones_like(one), where=one > 0)
        divergence += (one * np.log2(ratio)).sum(axis=-1) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0.0, 1.0)))


class Mean(NamedTuple):
    """A mean and its bootstrapped 95 % interval."""

    value: float
    low: float
    high: float


def bootstrap(values: Floats, seed: int = 0) -> Mean:
    """Return the mean of `[n]` values, and the 2.5 and 97.5 percentiles of resampled means."""
    rng = np.random.default_rng(seed)
    size = len(values)
    means = np.array([values[rng.integers(0, size, size)].mean() for _ in range(1000)])
    return Mean(float(values.mean()), *np.percentile(means, [2.5, 97.5]).tolist())


#: A way to walk a text: the model, the text, and `rows`: whether to return distributions.
Method = Callable[..., Walk]


@dataclass(frozen=True)
class Result:
    """The measurements of one method; None where one has no meaning.

    Attributes:
        method, family: its name, and those that a line of the figures joins.
        failed: why there are no numbers, or "".
    """

    method: str
    family: str
    js_distance: Mean | None = None
    surprisal_error: Mean | None = None
    bits_per_byte: Mean | None = None
    bytes_per_second: Mean | None = None
    contexts_per_byte: float | None = None
    failed: str = ""

    def row(self) -> dict[str, Any]:
        """Return the columns of the CSV file: a mean becomes three, `x`, `x_low` and `x_high`."""
        row: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name in _MEANS:
                cells = value or (None, None, None)
                row |= dict(zip((name, f"{name}_low", f"{name}_high"), cells, strict=True))
            else:
                row[name] = value
        return row


_MEANS = ("js_distance", "surprisal_error", "bits_per_byte", "bytes_per_second")

#: Column of the table → attribute of `Result`, and format of a number.
_COLUMNS = {
    "JS distance": ("js_distance", ".2e"),
    "ΔS bits": ("surprisal_error", ".2e"),
    "bits/byte": ("bits_per_byte", ".4f"),
    "bytes/s": ("bytes_per_second", ",.0f"),
    "contexts/byte": ("contexts_per_byte", ".2f"),
}


def methods(
    ks: Sequence[int], thetas: Sequence[float], presets: Sequence[str]
) -> dict[str, tuple[str, Method]]:
    """Return beams of every width and threshold, presets, and two baselines: family and walk.

    >>> list(methods([2, 4], [0.0], ["fast"]))
    ['beam K=2', 'beam K=4', 'fast', 'token healing', 'canonical']
    """
    chosen: dict[str, tuple[str, Method]] = {}
    for theta in thetas:
        pruned = f" θ={theta:g}" if theta else ""
        for k in ks:
            chosen[f"beam K={k}{pruned}"] = f"beam{pruned}", partial(walk_beam, k=k, theta=theta)
    for preset in presets:
        chosen[preset] = "rounds", partial(walk_rounds, effort=preset)
    chosen["token healing"] = "token healing", walk_healed
    chosen["canonical"] = "canonical", walk_canonical
    return chosen


def measure(
    lm: CharLM,
    text: bytes,
    candidates: dict[str, tuple[str, Method]],
    reference: str,
    repeat: int = 3,
    seed: int = 0,
) -> list[Result]:
    """Walk a text by every method, and compare each with the reference, the last of the results.

    Args:
        lm: the model.
        text: what is walked, any bytes.
        candidates: the methods, the reference among them.
        reference: the name of the method that comes nearest to the truth.
        repeat: timed walks of each method, after one with distributions.
        seed: of the bootstrap.

    Raises:
        CharwiseError: the reference itself fails. Where another method does, its result says why.
    """
    average = partial(bootstrap, seed=seed)
    truth = candidates[reference][1](lm, text, rows=True)
    assert truth.distributions is not None
    results: dict[str, Result] = {}
    for name, (family, walk) in candidates.items():
        try:
            if family == "canonical":
                lm.vocabulary.encode(text)  # a beginning of the text is not enough
            found = truth if name == reference else walk(lm, text, rows=True)
            if not np.isfinite(found.logprobs).all():
                raise impossible(text)
            result = Result(name, family, bits_per_byte=average(found.bits))
            if found.distributions is not None and name != reference:
                result = replace(
                    result,
                    js_distance=average(js_distance(found.distributions, truth.distributions)),
                    surprisal_error=average(np.abs(found.bits - truth.bits)),
                )
        except CharwiseError as error:
            result = Result(name, family, failed=str(error))
        results[name] = result
    speeds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeat):
        for name, (_, walk) in candidates.items():
            if results[name].failed:
                continue
            started = time.perf_counter()
            found = walk(lm, text)
            speeds[name].append(len(text) / (time.perf_counter() - started))
            contexts = found.contexts / len(text)
            results[name] = replace(results[name], contexts_per_byte=contexts)
    for name, values in speeds.items():
        if values:
            results[name] = replace(results[name], bytes_per_second=average(np.array(values)))
    return [*(results[name] for name in results if name != reference), results[reference]]


def cells(result: Result) -> list[str]:
    """Return the row of the table, each mean with its interval in brackets."""
    row = [result.method]
    for attribute, form in _COLUMNS.values():
        value = getattr(result, attribute)
        if isinstance(value, Mean):
            low, high = format(value.low, form), format(value.high, form)
            # Of one timed walk there is no interval.
            interval = f" ({low}, {high})" if value.low < value.high else ""
            row.append(format(value.value, form) + interval)
        else:
            row.append("" if value is None else format(value, form))
    return row


#: Family → colour (of a palette that the colour-blind can tell apart) and marker.
_STYLE = {
    "beam": ("#0072B2", "o"),
    "rounds": ("#D55E00", "s"),
    "token healing": ("#009E73", "^"),
}

#: The same for beams with a threshold.
_PRUNED = ("#56B4E9", "v")


def figure(results: Sequence[Result], attribute: str, label: str, title: str) -> Any:
    """Return a figure of a measure against speed; each family is a line, with both intervals.

    In the figure of surprisals the canonical baseline is a dotted line, since its speed is that of
    another task; a method that lies 0.3 bits above the reference is named and not drawn.
    """
    from matplotlib.figure import Figure

    page = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = page.add_subplot()
    axes.set_xscale("log")
    axes.set_xlabel("speed (bytes/s)")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25, which="both")
    if attribute == "js_distance":
        axes.set_yscale("log", nonpositive="clip")
    reference = results[-1].bits_per_byte
    assert reference is not None
    families: dict[str, list[Result]] = {}
    for result in results:
        value = getattr(result, attribute)
        if value is None:
            continue
        if result.family == "canonical":
            axes.axhline(value.value, linestyle=":", color="#555555", label="canonical tokens")
        elif attribute == "bits_per_byte" and value.value > reference.value + 0.3:
            axes.plot([], [], " ", label=f"{result.method}: {value.value:.2f}, not shown")
        else:
            families.setdefault(result.family, []).append(result)
    for family, points in families.items():
        colour, marker = _STYLE.get(family, _PRUNED)
        x, y = ([getattr(p, name) for p in points] for name in ("bytes_per_second", attribute))
        axes.errorbar(
            [mean.value for mean in x],
            [mean.value for mean in y],
            xerr=_bars(x),
            yerr=_bars(y),
            color=colour,
            marker=marker,
            linestyle="-" if len(points) > 1 else "none",
            linewidth=1,
            capsize=2,
            label=family,
        )
        for point, speed, value in zip(points, x, y, strict=True):
            axes.annotate(
                point.method.removeprefix("beam ").split(" θ")[0],
                (speed.value, value.value),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize="small",
                color=colour,
            )
    if axes.get_legend_handles_labels()[1]:
        page.legend(loc="outside lower center", ncols=4, fontsize="small")
    return page


def _bars(means: Sequence[Mean]) -> list[list[float]]:
    """`[2, n]` lengths of the bars, below and above."""
    below = [max(0.0, mean.value - mean.low) for mean in means]
    return [below, [max(0.0, mean.high - mean.value) for mean in means]]


def write(results: Sequence[Result], title: str, folder: Path) -> None:
    """Write the numbers as CSV, and both figures as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [result.row() for result in results]
    with (folder / "paper.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    distance = f"JS distance to {results[-1].method}, mean per byte"
    pages = {
        "error": figure(results, "js_distance", distance, title),
        "surprisal": figure(results, "bits_per_byte", "surprisal (bits/byte)", title),
    }
    for name, page in pages.items():
        for kind in ("svg", "png"):
            page.savefig(folder / f"{name}.{kind}", dpi=150)


def main() -> None:
    """Walk a text, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="the file to walk, any bytes")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--K", default="2,4,8,16", help="widths of beams")
    parser.add_argument("--theta", default="0", help="thresholds of beams, each with every K")
    parser.add_argument("--preset", default="fast,default,accurate", help="presets of the rounds")
    parser.add_argument("--reference-K", type=int, default=128, help="width of the reference beam")
    parser.add_argument("--bytes", type=int, default=1000, help="walk no more than so many")
    parser.add_argument("--repeat", type=int, default=3, help="timed walks of each method")
    parser.add_argument("--out", type=Path, help="a folder for the tables and figures")
    options = parser.parse_args()
    ks, thetas = [int(k) for k in options.K.split(",")], map(float, options.theta.split(","))
    if max(ks) > options.reference_K:
        raise SettingError("errors are measured against the widest beam: --reference-K is less.")
    text = options.text.read_bytes()[: options.bytes]
    chosen = methods(ks, list(thetas), options.preset.split(","))
    reference = f"beam K={options.reference_K}"
    chosen |= {n: m for n, m in methods([options.reference_K], [0.0], []).items() if n == reference}
    lm = charwise.load(options.model)
    results = measure(lm, text, chosen, reference, options.repeat)
    title = f"{Path(options.model).name}, {len(text):,} bytes of {options.text.name}"
    print(table(title, ["method", *_COLUMNS], [cells(result) for result in results]))
    print(f"errors against {reference}; in brackets 95 % intervals")
    for result in results:
        if result.failed:
            print(f"no numbers for {result.method}: {result.failed}")
    if options.out is not None:
        write(results, title, options.out)


if __name__ == "__main__":
    main()
