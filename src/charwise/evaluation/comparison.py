"""The result of `compare`: a table of models and of their differences, words, a figure."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, field
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from charwise.errors import SettingError, needs, quantity
from charwise.evaluation.resampling import Floats
from charwise.tokens.words import characters_of
from charwise.tokens.words import words as words_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

#: Colours of the lines, of a palette that the colour-blind can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@dataclass(frozen=True)
class ComparisonRow:
    """Bits a byte of a model, or of one model less another, with a 95 % interval.

    Attributes:
        name: of the model, or of both.
        bits_per_byte: the mean surprisal of a byte; of a difference, the first model's less the
            other's: below 0, the first is better.
        low, high: the interval, of a difference that of pairs; NaN where there is too little text.
        error: by how much `bits_per_byte` may be off, since sums over tokenizations are
            approximate (docs/scoring.md); of a difference, both models' together.
        clear: of a difference, whether the interval, widened by the error, leaves out 0.
        window: of a model, as `CharLM.info` says.
    """

    name: str
    bits_per_byte: float
    low: float
    high: float
    error: float
    clear: bool | None = None
    window: str | None = None


class Word(NamedTuple):
    """A word that two models differ on.

    Attributes:
        name: of its text.
        text: its characters.
        start, end: where it is, in characters.
        first, second: its surprisal by each of the models, bits.
        difference: the first less the second, bits.
        error: by how much the difference may be off, bits.
    """

    name: str
    text: str
    start: int
    end: int
    first: float
    second: float
    difference: float
    error: float


@dataclass(frozen=True)
class Comparison:
    """Bits a byte of several models on the same texts, and of their differences.

    Attributes:
        models: a row for each.
        differences: a row for each two of them.
        bits: `[models, bytes]` surprisals of the bytes of all texts, one text after the other.
        errors: `[models, bytes]` by how much each may be off, bits.
        texts: by name.
        units: how many texts, or parts of texts, were drawn again for the intervals.
        resamples, seed: of the draws.
        effort: how much was spent: a preset, or a tolerance.

    >>> import charwise
    >>> comparison = charwise.compare(["embedded"], "import numpy\\n" * 20, resamples=200)
    >>> comparison.models[0].bits_per_byte < 1, comparison.to_pandas().columns.tolist()[:3]
    (True, ['name', 'bits_per_byte', 'low'])
    """

    models: list[ComparisonRow]
    differences: list[ComparisonRow]
    bits: Floats = field(repr=False)
    errors: Floats = field(repr=False)
    texts: dict[str, bytes]
    units: int
    resamples: int
    seed: int
    effort: str

    @property
    def bytes(self) -> int:
        """The number of bytes of all texts together."""
        return sum(map(len, self.texts.values()))

    @property
    def rows(self) -> list[ComparisonRow]:
        """The rows of the models, then those of the differences."""
        return [*self.models, *self.differences]

    def to_pandas(self) -> pandas.DataFrame:
        """Return `rows` as a table.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needs("tables", "to_pandas needs pandas"):
            import pandas
        return pandas.DataFrame(self.rows)

    def to_csv(self) -> str:
        """Return `rows` in full precision, as CSV; cells without a value are empty."""
        file = io.StringIO()
        rows = (["" if value != value else value for value in astuple(row)] for row in self.rows)
        csv.writer(file, lineterminator="\n").writerows([ComparisonRow.__dataclass_fields__, *rows])
        return file.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        names = ("bytes", "effort", "units", "resamples", "seed")
        sizes = {name: len(text) for name, text in self.texts.items()}
        facts = {name: getattr(self, name) for name in names}
        return facts | {"texts": sizes, "rows": [asdict(row) for row in self.rows]}

    @property
    def notes(self) -> list[str]:
        """The remarks that a reader of the table must know, a sentence each."""
        whole = self.units == len(self.texts)
        some = quantity(self.units, "text") if whole else f"{quantity(self.units, 'part')} of texts"
        notes = [
            f"{quantity(self.bytes, 'byte')}, {self.effort}; 95 % intervals over {some}, "
            f"{quantity(self.resamples, 'resample')}, seed {self.seed}; error: by how much the "
            "numbers themselves may be off, which no interval knows of"
        ]
        if math.isnan(self.models[0].low):
            notes.append(f"too little text for intervals: {some}")
        for row in self.differences:
            same = row.bits_per_byte == 0 and row.low == row.high
            if not (row.clear or math.isnan(row.low) or same):
                inside = "the interval" if row.low <= 0 <= row.high else "the error of the numbers"
                notes.append(f"{row.name}: not clear, {inside} reaches 0")
        return notes

    def words(self, n: int = 20) -> list[Word]:
        """Return the n words that the first two models differ on most, with leading whitespace.

        >>> fast = charwise.load(preset="fast")
        >>> comparison = charwise.compare({"a": fast, "b": fast}, "import numpy", resamples=10)
        >>> [(word.text, word.difference) for word in comparison.words(1)]
        [('import', 0.0)]
        """
        if len(self.models) < 2:
            raise SettingError("there is one model: compare two or more to see where they differ.")
        columns = np.stack([*self.bits[:2], self.errors[:2].sum(axis=0)])
        words: list[Word] = []
        for name, part in self._places():
            string, edges = characters_of(self.texts[name])
            spans = words_of(string, "leading")
            sums = np.add.reduceat(columns[:, part], edges[[start for start, _ in spans]], axis=1)
            for (start, end), (one, other, error) in zip(spans, sums.T.tolist(), strict=True):
                raw = string[start:end].encode("utf-8", "surrogateescape")
                text = raw.decode("utf-8", "backslashreplace")
                words.append(Word(name, text, start, end, one, other, one - other, error))
        return sorted(words, key=lambda word: -abs(word.difference))[:n]

    def plot(self) -> Figure:
        """Plot how many bits a byte the first model needs more than each other, along the texts.

        Lines are means over stretches of equal length, and their shades by how much these may be
        off. Below, the strip of a model is darker where it is more surprised. Texts end at thin
        lines.

        Raises:
            MissingExtraError: matplotlib is not installed.

        >>> fast = charwise.load(preset="fast")
        >>> comparison = charwise.compare({"a": fast, "b": fast}, "import numpy", resamples=10)
        >>> comparison.plot().axes[0].get_ylabel()
        'difference (bits/byte)'
        """
        with needs("plots", "the figure needs matplotlib"):
            from matplotlib.figure import Figure

        count = max(1, min(240, self.bytes // 16))  # stretches of 16 bytes or more
        edges = np.linspace(0, self.bytes, count + 1).round().astype(np.int64)
        rows = len(self.models)
        page = Figure(figsize=(8, 3 + 0.35 * rows), layout="constrained")
        top, *strips = page.subplots(
            1 + rows, 1, sharex=True, gridspec_kw={"height_ratios": [6, *[1] * rows]}
        )
        top.axhline(0, color="0.6", linewidth=0.8)
        for n, colour in zip(range(1, rows), cycle(_COLOURS), strict=False):
            line = _averages(self.bits[0] - self.bits[n], edges)
            off = _averages(self.errors[0] + self.errors[n], edges)
            label = f"{self.models[0].name} − {self.models[n].name}"
            top.stairs(line, edges, color=colour, label=label, baseline=None)
            low, high = (np.append(part, part[-1]) for part in (line - off, line + off))
            top.fill_between(edges, low, high, step="post", alpha=0.2, color=colour, linewidth=0)
        top.set_ylabel("difference (bits/byte)")
        if rows > 1:
            top.legend(fontsize="small")
        heat = [_averages(bits, edges) for bits in self.bits]
        most = max(float(line.max()) for line in heat)
        mesh: Any = None
        for axes, model, line in zip(strips, self.models, heat, strict=True):
            mesh = axes.pcolormesh(edges, [0, 1], line[None, :], cmap="Reds", vmin=0, vmax=most)
            axes.set_yticks([])
            axes.set_ylabel(model.name, rotation=0, ha="right", va="center", fontsize="small")
        for _, part in list(self._places())[:-1]:
            for axes in (top, *strips):
                axes.axvline(part.stop, color="0.3", linewidth=0.5)
        page.colorbar(mesh, ax=strips, label="bits/byte", fraction=0.03)
        strips[-1].set_xlabel("byte")
        return page

    def _places(self) -> Iterator[tuple[str, slice]]:
        """Where in the arrays each text is."""
        edges = np.cumsum([0, *map(len, self.texts.values())]).tolist()
        for name, place in zip(self.texts, pairwise(edges), strict=True):
            yield name, slice(*place)


def _averages(values: Floats, edges: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """`[n]` means of `[size]` values between edges."""
    return np.asarray(np.add.reduceat(values, edges[:-1]) / np.diff(edges))
