"""The result of `compare`: a table of models and of their differences, words, a figure."""

from __future__ import annotations

import csv
import html
import io
import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from charwise.errors import SettingError, check_count, needs, shown
from charwise.evaluation.resampling import Floats, Mean
from charwise.surprisal.spans import Spans, spans_of
from charwise.tokens.words import WORDS, Convention, characters_of
from charwise.tokens.words import words as words_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measured:
    """The measurements of one model on the texts.

    Attributes:
        name: as it was given.
        bits_per_byte: the surprisal of a byte on average, with its interval.
        error: by how much that may be off, since sums over tokenizations are approximate: an
            estimate, bits a byte (docs/scoring.md). The interval knows nothing of it.
        contexts: contexts evaluated.
        info: what it ran on, as `CharLM.info` says; its window among others.
        bits: `[n_bytes]` surprisals of the bytes of all texts, one text after the other.
        errors: `[n_bytes]` by how much each may be off, bits.

    >>> Measured("m", Mean(2.0, 1.5, 2.5), error=0.01).bits_per_byte.low
    1.5
    """

    name: str
    bits_per_byte: Mean
    error: float
    contexts: int = 0
    info: dict[str, str] = field(default_factory=dict)
    bits: Floats = field(default_factory=lambda: np.zeros(0), repr=False)
    errors: Floats = field(default_factory=lambda: np.zeros(0), repr=False)


@dataclass(frozen=True)
class Difference:
    """How many bits a byte one model needs more than another.

    Attributes:
        first, second: names of the models.
        bits_per_byte: the first's less the second's, with the interval of pairs: below 0, the
            first is better.
        error: by how much that may be off if the errors of both add up, bits a byte.

    >>> Difference("a", "b", Mean(0.2, 0.1, 0.3), error=0.05).clear
    True
    >>> Difference("a", "b", Mean(0.2, 0.1, 0.3), error=0.15).clear
    False
    """

    first: str
    second: str
    bits_per_byte: Mean
    error: float

    @property
    def name(self) -> str:
        """The name, for tables.

        >>> Difference("a", "b", Mean(0.2, 0.1, 0.3), error=0.05).name
        'a − b'
        """
        return f"{self.first} − {self.second}"

    @property
    def clear(self) -> bool:
        """Whether 0 lies outside of the interval, even where that is off by the error."""
        low, high = self.bits_per_byte.low, self.bits_per_byte.high
        return low > self.error or high < -self.error


class Word(NamedTuple):
    """A word that two models differ on.

    Attributes:
        name: of its text.
        text: its characters.
        start, end: where it is, in characters.
        first, second: its surprisal by each of the models, bits.
        difference: the first's less the second's, bits.
        error: by how much the difference may be off, bits.

    >>> Word("a.txt", " def", 9, 13, 2.0, 5.0, -3.0, 0.01).difference
    -3.0
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
        models: what each says.
        differences: of each two of them, the one that was given first less the other.
        texts: by name.
        over: what was drawn again for the intervals, "texts" or "blocks" of bytes.
        units: how many of those.
        lengths: bytes of a block, of each text.
        resamples, seed: of the draws.
        effort: how much was spent: a preset, or a tolerance.

    >>> import charwise
    >>> found = charwise.compare(["embedded"], "import numpy\\n" * 20, resamples=200)
    >>> found.models[0].bits_per_byte.value < 1, found.to_pandas().columns.tolist()[:3]
    (True, ['name', 'bits_per_byte', 'low'])
    """

    models: tuple[Measured, ...]
    differences: tuple[Difference, ...]
    texts: dict[str, bytes]
    over: str
    units: int
    lengths: tuple[int, ...]
    resamples: int
    seed: int
    effort: str

    @property
    def bytes(self) -> int:
        """The number of bytes of all texts together."""
        return sum(map(len, self.texts.values()))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model, then one for each difference; NaN where there is no interval."""
        models = [
            _row(
                model.name,
                model.bits_per_byte,
                model.error,
                window=model.info.get("window"),
            )
            for model in self.models
        ]
        pairs = [
            _row(pair.name, pair.bits_per_byte, pair.error, clear=pair.clear)
            for pair in self.differences
        ]
        return models + pairs

    def to_pandas(self) -> pandas.DataFrame:
        """Return `rows` as a table.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needs("tables", "to_pandas needs pandas"):
            import pandas
        return pandas.DataFrame(self.rows())

    def to_csv(self) -> str:
        """Return `rows` in full precision, as CSV; cells without a value are empty."""
        file = io.StringIO()
        rows = self.rows()
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            numbers = {name: "" if value != value else value for name, value in row.items()}
            writer.writerow(numbers)
        return file.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "bytes": self.bytes,
            "texts": {name: len(text) for name, text in self.texts.items()},
            "effort": self.effort,
            "over": self.over,
            "units": self.units,
            "block_bytes": list(self.lengths),
            "resamples": self.resamples,
            "seed": self.seed,
            "rows": self.rows(),
        }

    @property
    def notes(self) -> list[str]:
        """The remarks that a reader of the table must know, a sentence each."""
        some = "blocks of bytes" if self.over == "blocks" else "texts"
        sizes = sorted(set(self.lengths))
        to = f" to {sizes[-1]:,}" if sizes[1:] else ""
        long = f" ({sizes[0]:,}{to} bytes)" if sizes else ""
        found = [
            f"{self.bytes:,} bytes, {self.effort}; 95 % intervals over {self.units:,} {some}"
            f"{long}, {self.resamples:,} resamples, seed {self.seed}; error: by "
            "how much the numbers themselves may be off, which no interval knows of"
        ]
        if math.isnan(self.models[0].bits_per_byte.low):
            found.append(f"too little text for intervals: {self.units} {some}")
        for each in self.differences:
            value, low, high = each.bits_per_byte
            if each.clear or math.isnan(low) or (value == 0 and low == high):
                continue
            inside = "the interval" if low <= 0 <= high else "the error of the numbers"
            found.append(f"{each.name}: not clear, {inside} reaches 0")
        return found

    def words(
        self,
        n: int = 20,
        *,
        first: str | None = None,
        second: str | None = None,
        convention: Convention = "leading",
    ) -> list[Word]:
        """The words that two models differ on most, whichever of them is the more surprised.

        Args:
            n: how many.
            first, second: names of the models; by default the first two.
            convention: which whitespace belongs to a word, as in `Score.words`.

        Raises:
            SettingError: no such models, or an unknown convention.

        >>> import charwise
        >>> fast = charwise.load(preset="fast")
        >>> found = charwise.compare({"a": fast, "b": fast}, "import numpy", resamples=10)
        >>> [(word.text, word.difference) for word in found.words(1)]
        [('import', 0.0)]
        """
        check_count("n", n, 0)
        if not isinstance(convention, str) or convention not in WORDS:
            raise SettingError(f"unknown convention {shown(convention)}: use {', '.join(WORDS)}.")
        a, b = self.pair(first, second)
        found: list[Word] = []
        for name, part in self._places():
            string, edges = characters_of(self.texts[name])
            words = words_of(string, convention)
            begin = edges[[start for start, _ in words]]
            ones, others, errors = (
                np.add.reduceat(each[part], begin) for each in (a.bits, b.bits, a.errors + b.errors)
            )
            for (start, end), one, other, error in zip(words, ones, others, errors, strict=True):
                text = string[start:end].encode("utf-8", "surrogateescape")
                shown_as = text.decode("utf-8", "backslashreplace")
                off = float(one - other)
                found.append(
                    Word(name, shown_as, start, end, float(one), float(other), off, float(error))
                )
        return sorted(found, key=lambda word: -abs(word.difference))[:n]

    def pair(
        self, first: str | None = None, second: str | None = None
    ) -> tuple[Measured, Measured]:
        """Return two of the models by their names; by default the first two.

        Raises:
            SettingError: there are not two, or not these.
        """
        if len(self.models) < 2:
            raise SettingError("there is one model: compare two or more to see where they differ.")
        by_name = {model.name: model for model in self.models}
        names = list(by_name)
        chosen = (names[0] if first is None else first, names[1] if second is None else second)
        for name in chosen:
            if name not in by_name:
                raise SettingError(
                    f"no model is called {shown(name)}: there are {', '.join(names)}."
                )
        return by_name[chosen[0]], by_name[chosen[1]]

    def plot(self) -> Figure:
        """Plot the places in the texts where the models differ: see `comparison_figure.figure`.

        Raises:
            MissingExtraError: matplotlib is not installed.

        >>> import charwise
        >>> fast = charwise.load(preset="fast")
        >>> found = charwise.compare({"a": fast, "b": fast}, "import numpy", resamples=10)
        >>> found.plot().axes[0].get_ylabel()
        'difference (bits/byte)'
        """
        from charwise.evaluation.figures import Line, figure

        lines = [Line(model.name, model.bits, model.errors) for model in self.models]
        return figure(lines, [*map(len, self.texts.values())])

    def _repr_html_(self) -> str:
        from charwise.surprisal.plot import to_html

        cells = "".join(
            f"<tr><td>{html.escape(row['name'])}</td>"
            + "".join(f"<td>{row[name]:.4f}</td>" for name in ("bits_per_byte", "low", "high"))
            + f"<td>{row['error']:.1e}</td></tr>"
            for row in self.rows()
        )
        head = "".join(f"<th>{name}</th>" for name in ("", "bits/byte", "low", "high", "error"))
        table = f"<table><tr>{head}</tr>{cells}</table>"
        notes = html.escape(". ".join(self.notes) + ".")
        if len(self.models) < 2:
            return f"{table}<div>{notes}</div>"
        a, b = self.models[:2]
        where = f"each character: bits of {a.name}, less those of {b.name}, in the first text"
        return f"{table}<div>{notes}</div>{to_html(self._char_differences, where)}"

    @cached_property
    def _char_differences(self) -> Spans:
        """A row for each of the first characters of the first text; a row's surprisal is a − b."""
        a, b = self.pair()
        name, part = self._places()[0]
        string, edges = characters_of(self.texts[name])
        # Characters that a notebook shows in colours.
        count = min(len(string), 5_000)
        raw = self.texts[name][: edges[count]]
        upto = np.concatenate(([0.0], np.cumsum((a.bits - b.bits)[part][: len(raw)])))
        pairs = [(n, n + 1) for n in range(count)]
        return spans_of(raw, upto, np.zeros(len(raw)), pairs, edges)

    def _places(self) -> list[tuple[str, slice]]:
        """Where in the arrays each text is."""
        edges = np.cumsum([0, *map(len, self.texts.values())]).tolist()
        return [
            (name, slice(*place)) for name, place in zip(self.texts, pairwise(edges), strict=True)
        ]


def _row(
    name: str,
    mean: Mean,
    error: float,
    *,
    clear: bool | None = None,
    window: str | None = None,
) -> dict[str, Any]:
    value, low, high = mean
    row = {"name": name, "bits_per_byte": value, "low": low, "high": high, "error": error}
    return {**row, "clear": clear, "window": window}
