"""Figures: methods by error and speed, and where along texts models differ.

The first two are those of Vieira et al. 2025, section 4: error and surprisal against speed. The
third has a line for each model, and a strip of its surprisal.

Needs matplotlib (`pip install 'charwise[plots]'`), which is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from charwise.errors import needs
from charwise.evaluation.bench import Report, Result
from charwise.evaluation.resampling import Floats, Mean
from charwise.surprisal.plot import COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Family → colour (of a palette that the colour-blind can tell apart) and marker.
_STYLE = {
    "beam": ("#0072B2", "o"),
    "rounds": ("#D55E00", "s"),
    "token healing": ("#009E73", "^"),
}

#: The same for beams with a threshold, in turn.
_PRUNED = (("#56B4E9", "v"), ("#CC79A7", "P"), ("#E69F00", "X"))


def _error_against_speed(report: Report) -> Figure:
    """Mean JS distance to the reference (log scale) against bytes per second (log scale).

    >>> from charwise.evaluation.bench import Report
    >>> speed, js = Mean(100.0, 90.0, 110.0), Mean(0.01, 0.005, 0.02)
    >>> result = Result("beam K=2", "beam", js_distance=js, bytes_per_second=speed)
    >>> figure = _error_against_speed(Report("m", "f", {}, 9, 2, "beam K=8", 1, (result,)))
    >>> figure.axes[0].get_xlabel()
    'speed (bytes/s)'
    """
    results = [result for result in report.results if result.js_distance]
    figure, axes = _axes(report, f"JS distance to {report.reference}, mean per byte")
    axes.set_yscale("log", nonpositive="clip")
    _draw(axes, results, "js_distance")
    _legend(figure, axes)
    return figure


def _surprisal_against_speed(report: Report) -> Figure:
    """Mean surprisal in bits per byte against bytes per second (log scale).

    The canonical baseline is a dotted line, since its speed is that of another task; a method
    that lies 0.3 bits above the reference is named in the legend and not drawn.

    >>> from charwise.evaluation.bench import Report
    >>> speed, bits = Mean(100.0, 90.0, 110.0), Mean(2.0, 1.5, 2.5)
    >>> result = Result("beam K=8", "beam", bits_per_byte=bits, bytes_per_second=speed)
    >>> figure = _surprisal_against_speed(Report("m", "f", {}, 9, 2, "beam K=8", 1, (result,)))
    >>> figure.axes[0].get_ylabel()
    'surprisal (bits/byte)'
    """
    figure, axes = _axes(report, "surprisal (bits/byte)")
    reference = next(r.bits_per_byte for r in report.results if r.method == report.reference)
    near: list[Result] = []
    for result in report.results:
        bits = result.bits_per_byte
        if bits is None or reference is None:
            continue
        if result.family == "canonical":
            axes.axhline(bits.value, linestyle=":", color="#555555", label="canonical tokens")
            axes.axhspan(bits.low, bits.high, color="#555555", alpha=0.08, linewidth=0)
        elif bits.value < reference.value + 0.3:
            near.append(result)
        else:
            axes.plot([], [], " ", label=f"{result.method}: {bits.value:.2f}, not shown")
    _draw(axes, near, "bits_per_byte")
    _legend(figure, axes)
    return figure


def save(report: Report, folder: Path) -> list[Path]:
    """Both figures as SVG and PNG; returns the files, and overwrites them if they exist.

    Raises:
        MissingExtraError: if matplotlib is not installed.

    >>> import tempfile
    >>> speed, bits = Mean(100.0, 90.0, 110.0), Mean(2.0, 1.5, 2.5)
    >>> result = Result("beam K=8", "beam", bits_per_byte=bits, bytes_per_second=speed)
    >>> report = Report("m", "f", {}, 9, 2, "beam K=8", 1, (result,))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sorted(file.name for file in save(report, Path(folder)))[:2]
    ['error.png', 'error.svg']
    """
    need_matplotlib()
    drawn = {"error": _error_against_speed, "surprisal": _surprisal_against_speed}
    files = []
    for name, draw in drawn.items():
        figure = draw(report)
        for kind in ("svg", "png"):
            files.append(folder / f"{name}.{kind}")
            figure.savefig(files[-1], dpi=150)
    return files


def need_matplotlib() -> None:
    """Raise `MissingExtraError` if figures cannot be drawn.

    >>> need_matplotlib()
    """
    with needs("plots", "the figures need matplotlib"):
        import matplotlib  # noqa: F401


def _axes(report: Report, ylabel: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("speed (bytes/s)")
    axes.set_ylabel(ylabel)
    axes.set_title(f"{report.model}, {report.bytes:,} bytes of {report.source}", fontsize="medium")
    axes.grid(alpha=0.25, which="both")
    return figure, axes


def _legend(figure: Figure, axes: Any) -> None:
    """Below the figure, where it hides no point."""
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")


def _draw(axes: Any, results: Sequence[Result], attribute: str) -> None:
    """Each family as points with both intervals, joined in their order."""
    families: dict[str, list[tuple[Mean, Mean, str]]] = {}
    for result in results:
        speed, value = result.bytes_per_second, getattr(result, attribute)
        if speed is not None and value is not None:
            families.setdefault(result.family, []).append((speed, value, result.method))
    pruned = cycle(_PRUNED)
    for family, points in families.items():
        colour, marker = _STYLE.get(family) or next(pruned)
        axes.errorbar(
            [speed.value for speed, _, _ in points],
            [value.value for _, value, _ in points],
            xerr=_bars([speed for speed, _, _ in points]),
            yerr=_bars([value for _, value, _ in points]),
            color=colour,
            marker=marker,
            linestyle="-" if len(points) > 1 else "none",
            linewidth=1,
            capsize=2,
            label=family,
        )
        for speed, value, name in points:
            axes.annotate(
                name.removeprefix("beam ").split(" θ")[0],
                (speed.value, value.value),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize="small",
                color=colour,
            )


def _bars(means: Sequence[Mean]) -> list[list[float]]:
    """`[2, n]` lengths of the bars, below and above."""
    below = [max(0.0, mean.value - mean.low) for mean in means]
    return [below, [max(0.0, mean.high - mean.value) for mean in means]]


#: Colours of the lines, of a palette that the colour-blind can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Line(NamedTuple):
    """A model in a figure: its name, `[n_bytes]` bits of the bytes, and their errors."""

    name: str
    bits: Floats
    errors: Floats


def figure(models: Sequence[Line], sizes: Sequence[int]) -> Figure:
    """Over the place in the texts: how many bits a byte the first needs more than each other.

    Both are averaged over stretches of equal length. A shade around each line is by how much the
    numbers may be off. Below is a strip for each model, darker where it is more surprised.

    Args:
        models: one or more.
        sizes: bytes of each text; thin lines stand where one ends.

    Raises:
        MissingExtraError: matplotlib is not installed.

    >>> lines = [Line("a", np.ones(40), np.zeros(40)), Line("b", np.zeros(40), np.zeros(40))]
    >>> figure(lines, [40]).axes[0].get_ylabel()
    'difference (bits/byte)'
    """
    need_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    edges = _stretches(sum(sizes))
    base, others = models[0], models[1:]
    rows = len(models)
    page = Figure(figsize=(8, 3 + 0.35 * rows), layout="constrained")
    top, *strips = page.subplots(
        1 + rows, 1, sharex=True, gridspec_kw={"height_ratios": [6, *[1] * rows]}
    )
    top.axhline(0, color="0.6", linewidth=0.8)
    for model, colour in zip(others, cycle(_COLOURS), strict=False):
        line = _averages(base.bits - model.bits, edges)
        off = _averages(model.errors + base.errors, edges)
        top.stairs(line, edges, color=colour, label=f"{base.name} − {model.name}", baseline=None)
        top.fill_between(
            edges, *(_steps(line + sign * off) for sign in (-1, 1)), step="post", alpha=0.2,
            color=colour, linewidth=0,
        )  # fmt: skip
    top.set_ylabel("difference (bits/byte)")
    if others:
        top.legend(fontsize="small")
    red, green, blue = (part / 255 for part in COLOUR)
    colours = LinearSegmentedColormap.from_list("bits", [(1.0, 1.0, 1.0), (red, green, blue)])
    heat = [_averages(model.bits, edges) for model in models]
    most = max(float(line.max()) for line in heat)
    mesh: Any = None
    for axes, model, line in zip(strips, models, heat, strict=True):
        mesh = axes.pcolormesh(edges, [0, 1], line[None, :], cmap=colours, vmin=0, vmax=most)
        axes.set_yticks([])
        axes.set_ylabel(model.name, rotation=0, ha="right", va="center", fontsize="small")
    for end in np.cumsum(sizes)[:-1]:
        for axes in (top, *strips):
            axes.axvline(end, color="0.3", linewidth=0.5)
    page.colorbar(mesh, ax=strips, label="bits/byte", fraction=0.03)
    strips[-1].set_xlabel("byte")
    return page


def _stretches(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`[n + 1]` edges of stretches of about equal length.

    >>> _stretches(40).tolist()
    [0, 20, 40]
    """
    count = max(1, min(240, size // 16))  # of 16 bytes or more
    return np.linspace(0, size, count + 1).round().astype(np.int64)


def _averages(values: Floats, edges: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """`[n]` means of `[size]` values between edges.

    >>> _averages(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    return np.asarray(np.add.reduceat(values, edges[:-1]) / np.diff(edges))


def _steps(values: Floats) -> Floats:
    """`[n + 1]`: the last one twice, as steps after their edges need."""
    return np.append(values, values[-1])
