"""Where along texts models differ: a line for each, and a strip of its surprisal.

Needs matplotlib (`pip install 'charwise[plots]'`), which is imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from charwise.evaluation.distance import Floats
from charwise.evaluation.figures import need_matplotlib
from charwise.surprisal.plot import COLOUR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Stretches that a text is shown in, at most, and bytes of each, at least.
STRETCHES, SHORTEST = 240, 16

#: Colours of the lines, of a palette that the colour-blind can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Line(NamedTuple):
    """What a figure shows of a model: its name, `[n_bytes]` bits of the bytes, and their errors."""

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

    edges = stretches(sum(sizes))
    base, others = models[0], models[1:]
    rows = len(models)
    page = Figure(figsize=(8, 3 + 0.35 * rows), layout="constrained")
    top, *strips = page.subplots(
        1 + rows, 1, sharex=True, gridspec_kw={"height_ratios": [6, *[1] * rows]}
    )
    top.axhline(0, color="0.6", linewidth=0.8)
    for model, colour in zip(others, cycle(_COLOURS), strict=False):
        line = averages(base.bits - model.bits, edges)
        off = averages(model.errors + base.errors, edges)
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
    heat = [averages(model.bits, edges) for model in models]
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


def stretches(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """`[n + 1]` edges of stretches of about equal length.

    >>> stretches(40).tolist()
    [0, 20, 40]
    """
    count = max(1, min(STRETCHES, size // SHORTEST))
    return np.linspace(0, size, count + 1).round().astype(np.int64)


def averages(values: Floats, edges: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """`[n]` means of `[size]` values between edges.

    >>> averages(np.array([1.0, 3.0, 5.0]), np.array([0, 2, 3])).tolist()
    [2.0, 5.0]
    """
    return np.asarray(np.add.reduceat(values, edges[:-1]) / np.diff(edges))


def _steps(values: Floats) -> Floats:
    """`[n + 1]`: the last one twice, as steps after their edges need."""
    return np.append(values, values[-1])
