r"""A text cut into spans, and the surprisal of each.

Every byte has its surprisal, −log₂ p(byte | all before), and a span is a run of bytes. What a
span costs, −log₂ p(span | all before), is the sum over its bytes, wherever it begins or ends. So
what a tokenizer does at the edges of a span plays no part, and adjacent spans add up exactly.

A character is what `text.decode("utf-8", "surrogateescape")` has one of: a byte that is no part
of a valid character is a character of its own. So every byte belongs to exactly one character,
and for valid UTF-8 the offsets are those of a Python string. Whitespace is what `\s` matches.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from charwise.errors import (
    MissingExtraError,
    SettingError,
    SpanError,
    ZeroProbabilityError,
    items,
    shown,
)
from charwise.tokens import words as segmentation

if TYPE_CHECKING:
    import pandas

Convention = Literal["leading", "trailing", "none", "ending"]
Unit = Literal["character", "byte"]

#: Where words end: at whitespace (None), where Unicode says ("unicode"), or at given places.
Boundaries = segmentation.Boundaries | Literal["unicode"] | None

#: What a word is: which whitespace belongs to it. Each pattern takes a text apart without a rest.
WORDS: dict[str, re.Pattern[str]] = {
    "leading": re.compile(r"\s*\S+|\s+"),
    "trailing": re.compile(r"\S+\s*|\s+"),
    "none": re.compile(r"\S+|\s+"),
}

#: The same for parts of a text that are not joined: "x" for a part, " " for one of whitespace.
_PARTS = {"leading": " *x| +", "trailing": "x *| +", "none": "x| +"}

#: The columns of `Span` that only scores with entropies have.
ENTROPIES = ("entropy", "reduction", "rank", "entropy_most")

#: The types of a table without rows.
_TYPES = {"text": "object", "start": "int64", "end": "int64"}
_TYPES |= dict.fromkeys(("surprisal", "cumulative", "missing", "error"), "float64")

#: Rows that a table shows at its beginning, and at its end, before it leaves out the middle.
_SHOWN = 30


class Span(NamedTuple):
    """One span of a text.

    Attributes:
        text: its characters; bytes that are no part of a character as `\\xNN`.
        start, end: offsets, in the unit of the `Spans` it is part of; `end` is exclusive.
        surprisal: −log₂ p(span | all before), bits.
        cumulative: −log₂ p(the text up to the span's end), bits.
        missing: share of the probability that was left out at the span's bytes; see `Score`.
        error: by how much the surprisal may be off, bits: an estimate, the sum of `Score.error`
            over the span's bytes. None of a score that has none.
        entropy: of what may come at the span's first letter, given all before it, bits.
        reduction: that entropy, less the entropy at the first letter after the span, bits.
        rank: of the byte that did come there, among the 256 and the end of text, from 1.
        entropy_most: an upper bound of the entropy of the next word; `entropy` is a lower one.

    The last four are None if the score has no such entropies; the reduction is None too where no
    letter follows. Those of words are None where no word begins. A span of whitespace alone counts
    from its beginning, as do single bytes and characters, whatever they are.

    >>> Span("py", 10, 12, surprisal=0.25, cumulative=8.5, missing=0.0).text
    'py'
    """

    text: str
    start: int
    end: int
    surprisal: float
    cumulative: float
    missing: float
    error: float | None = None
    entropy: float | None = None
    reduction: float | None = None
    rank: int | None = None
    entropy_most: float | None = None


@dataclass(frozen=True, repr=False)
class Spans(Sequence[Span]):
    """Spans of one text, in its order.

    Attributes:
        rows: the spans.
        unit: what offsets count, "character" or "byte".

    >>> spans = Spans((Span("a ", 0, 2, 3.0, 3.0, 0.0), Span("b", 2, 3, 1.5, 4.5, 0.0)))
    >>> len(spans), spans[1].surprisal, [span.text for span in spans[:1]]
    (2, 1.5, ['a '])
    >>> spans
    text  start  end  surprisal  cumulative  missing
    'a '      0    2      3.000       3.000        0
    'b'       2    3      1.500       4.500        0
    """

    rows: tuple[Span, ...]
    unit: Unit = "character"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> Span: ...

    @overload
    def __getitem__(self, at: slice) -> Spans: ...

    def __getitem__(self, at: int | slice) -> Span | Spans:
        return Spans(self.rows[at], self.unit) if isinstance(at, slice) else self.rows[at]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns: those of `Span`, the last four if there are any.

        Where there are no spans `error` is among them, as it is in all that a model has scored.

        >>> Spans((Span("a", 0, 1, 3.0, 3.0, 0.0),)).columns
        ('text', 'start', 'end', 'surprisal', 'cumulative', 'missing')
        """
        some = {
            "error": not self.rows or any(row.error is not None for row in self.rows),
            **dict.fromkeys(ENTROPIES, any(row.rank is not None for row in self.rows)),
            "entropy_most": any(row.entropy_most is not None for row in self.rows),
        }
        return tuple(name for name in Span._fields if some.get(name, True))

    def to_pandas(self) -> pandas.DataFrame:
        """A table with these columns; needs pandas (`charwise[tables]`).

        Raises:
            MissingExtraError: pandas is not installed.

        >>> Spans((Span("a", 0, 1, 3.0, 3.0, 0.0),)).to_pandas().surprisal.tolist()
        [3.0]
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError(
                "a data frame needs pandas: pip install 'charwise[tables]'."
            ) from error

        table = pandas.DataFrame(self.rows, columns=list(Span._fields))[list(self.columns)]
        # A column of nothing has no type of its own.
        return table if self.rows else table.astype({name: _TYPES[name] for name in table})

    def __repr__(self) -> str:
        rows = list(self.rows)
        cut = len(rows) > 2 * _SHOWN
        names = self.columns
        shown_rows = rows[:_SHOWN] + rows[-_SHOWN:] if cut else rows
        lines = [names, *(_line(row, names) for row in shown_rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        if cut:
            shown.insert(_SHOWN + 1, f"… {len(rows) - 2 * _SHOWN:,} more")
        return "\n".join(shown)


def _line(row: Span, names: Sequence[str]) -> tuple[str, ...]:
    """The cells of a row in these columns."""
    cells = dict(zip(Span._fields, row, strict=True))
    digits = dict.fromkeys(("surprisal", "cumulative", *ENTROPIES), ".3f") | {"rank": ""}
    digits |= dict.fromkeys(("missing", "error"), ".2g")
    left = ("" if cells[n] is None else format(cells[n], digits.get(n, "")) for n in names[1:])
    return (repr(row.text), *left)


def characters_of(text: bytes) -> tuple[str, NDArray[np.int64]]:
    """The characters of a text, and the `[n_characters + 1]` byte offsets between which they lie.

    >>> string, edges = characters_of("naïve".encode() + b"\\xff!")
    >>> len(string), edges.tolist()
    (7, [0, 1, 2, 4, 5, 6, 7, 8])
    """
    string = text.decode("utf-8", "surrogateescape")
    codes = np.frombuffer(string.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    sizes = 1 + np.searchsorted([0x80, 0x800, 0x10000], codes, side="right")
    sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # what the decoder makes of stray bytes
    return string, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def exact_bits(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return surprisals in bits of log-probabilities in nats, `[n]`, such that all sums are exact.

    Each is rounded to a multiple of twice the last binary digit of their sum. Then every sum of
    some of them, in any order, is a float64, so that adding loses nothing: the surprisals of
    adjacent spans and of the span they make up agree to the last digit.

    Raises:
        ZeroProbabilityError: a log-probability that is not finite.

    >>> a, b, c = exact_bits(np.log([0.1, 0.2, 0.7])).tolist()
    >>> round(a, 3), (a + b) + c == a + (b + c)
    (3.322, True)
    """
    bits = logprobs / -math.log(2)
    size = math.fsum(np.abs(bits))
    if not math.isfinite(size):
        at = int(np.flatnonzero(~np.isfinite(bits))[0])
        raise ZeroProbabilityError(
            f"the log-probability of byte {at} is {logprobs[at]}: only finite ones can be summed."
        )
    # All sums are multiples of `digit`, and below 2^52 of it (+ n / 2 for the rounding).
    digit = 2 * math.ulp(size)
    exact: NDArray[np.float64] = np.rint(bits / digit) * digit + 0.0  # no −0.0
    return exact


def words(string: str, convention: str, boundaries: Boundaries = None) -> list[tuple[int, int]]:
    """The words of a text under a convention, as offsets in characters; all of it is in one.

    Args:
        string: the text.
        convention: which whitespace belongs to a word.
        boundaries: where words end; no grapheme cluster is split.

    Raises:
        SettingError: an unknown convention, or boundaries that are not in the text.

    >>> [[" to be"[a:b] for a, b in words(" to be", each)] for each in WORDS]
    [[' to', ' be'], [' ', 'to ', 'be'], [' ', 'to', ' ', 'be']]
    >>> [" f(न्दी)"[a:b] for a, b in words(" f(न्दी)", "leading", "unicode")]
    [' f', '(', 'न्दी', ')']
    """
    if not isinstance(convention, str) or convention not in WORDS:
        raise SettingError(
            f"unknown convention {shown(convention)}: the whitespace between two words belongs to "
            "the second ('leading'), to the first ('trailing'), or to neither ('none', 'ending')."
        )
    if boundaries is None and string.isascii():
        return matches(string, WORDS[convention])
    if boundaries is None:
        edges, pattern = segmentation.graphemes(string), WORDS[convention].pattern
    else:
        if isinstance(boundaries, str):
            if boundaries != "unicode":
                raise SettingError(f"unknown boundaries {shown(boundaries)}: use 'unicode'.")
            boundaries = None
        edges = segmentation.words(string, boundaries)
        pattern = _PARTS[convention]
    kinds = "".join(" " if string[a:b].isspace() else "x" for a, b in pairwise(edges))
    return [(edges[a], edges[b]) for a, b in matches(kinds, pattern)]


def matches(string: str, pattern: str | re.Pattern[str]) -> list[tuple[int, int]]:
    """The matches of a regular expression, from left to right, as offsets in characters.

    Raises:
        SettingError: a pattern that is not a valid regular expression for text.
        SpanError: an empty match.

    >>> matches("a1b22", r"\\d+")
    [(1, 2), (3, 5)]
    """
    try:
        found = [match.span() for match in re.finditer(pattern, string)]
    except (re.error, TypeError) as error:
        raise SettingError(
            f"the pattern {shown(pattern)} is no regular expression: {error}."
        ) from None
    for n, (start, end) in enumerate(found):
        if start == end:
            raise SpanError(
                f"match {n} of the pattern {shown(pattern)} is empty, at character {start}: use a "
                "pattern that matches at least one character.",
                n,
            )
    return found


def valid(pairs: Iterable[Sequence[int]], size: int, unit: Unit) -> list[tuple[int, int]]:
    """Return the spans as given, if none is empty, and all are within `size`.

    Raises:
        SettingError: an unknown unit.
        SpanError: the first span that is none, and why.

    >>> valid([(0, 2), (1, 3)], 3, "character")
    [(0, 2), (1, 3)]
    """
    if not isinstance(unit, str) or unit not in ("character", "byte"):
        raise SettingError(f"unknown unit {shown(unit)}: offsets count 'character' or 'byte'.")
    listed = items(pairs)
    if listed is None:
        raise SettingError(f"spans are pairs of integers (start, end), not {shown(pairs)}.")
    good: list[tuple[int, int]] = []
    for n, pair in enumerate(listed):
        start, end = _two_integers(n, pair)
        wrong = (
            f"it begins before {unit} 0"
            if start < 0
            else "its end is before its start"
            if end < start
            else "it is empty"
            if end == start
            else f"the text ends at {unit} {size}"
            if end > size
            else ""
        )
        if wrong:
            raise SpanError(f"span {n} is ({start}, {end}): {wrong}.", n)
        good.append((start, end))
    return good


def _two_integers(n: int, pair: Sequence[int]) -> tuple[int, int]:
    try:
        start, end = map(operator.index, pair)
        if any(isinstance(one, bool) for one in pair):
            raise TypeError
    except (TypeError, ValueError):
        raise SpanError(
            f"span {n} is {shown(pair)}: a span is two integers (start, end).", n
        ) from None
    return start, end


def spans_of(
    text: bytes,
    cumulative: NDArray[np.float64],
    missing: NDArray[np.float64],
    offsets: Sequence[tuple[int, int]],
    edges: NDArray[np.int64] | None = None,
    error: NDArray[np.float64] | None = None,
) -> Spans:
    """The rows of spans that are not empty; they may overlap, in any order.

    Args:
        text: `n` bytes.
        cumulative: `[n + 1]` bits up to each byte, of surprisals whose sums are exact.
        missing: `[n]` of each byte.
        offsets: start and end of each span, in characters with `edges`, else in bytes.
        edges: byte offsets between the characters.
        error: `[n]` of each byte, nats.

    >>> spans_of(b"ab", np.array([0.0, 3.0, 4.5]), np.zeros(2), [(1, 2)])[0].surprisal
    1.5
    """
    if not offsets:
        return Spans((), "byte" if edges is None else "character")
    pairs = np.array(offsets, dtype=np.int64)  # [n_spans, 2]
    places = pairs if edges is None else edges[pairs]
    costs = cumulative[places[:, 1]] - cumulative[places[:, 0]]

    def over(each: NDArray[np.float64]) -> NDArray[np.float64]:
        # Every second sum is over a span, the others are over what is between two, or one byte.
        sums: NDArray[np.float64] = np.add.reduceat(np.append(each, 0.0), places.ravel())[::2]
        return sums + 0.0  # no −0.0

    off = [None] * len(offsets) if error is None else (over(error) / math.log(2)).tolist()
    rows = zip(
        (text[start:end].decode("utf-8", "backslashreplace") for start, end in places.tolist()),
        *pairs.T.tolist(),
        costs.tolist(),
        cumulative[places[:, 1]].tolist(),
        over(missing).tolist(),
        off,
        strict=True,
    )
    return Spans(tuple(Span(*row) for row in rows), "byte" if edges is None else "character")


def with_entropies(
    spans: Spans,
    characters: tuple[str, NDArray[np.int64]],
    entropies: NDArray[np.float64],
    ranks: NDArray[np.int64],
    *,
    letters: bool,
) -> Spans:
    """The spans with entropy, reduction and rank; see `Span`.

    Args:
        spans: in bytes or characters.
        characters: of the whole text, as `characters_of` gives them.
        entropies, ranks: `[n]` before each byte, or each character: what the spans count. Of words
            `[n, 2]` bounds, or NaN.
        letters: whether to look at the first letter of each span, not at its beginning.

    >>> spans = Spans((Span(" a", 0, 2, 3.0, 3.0, 0.0), Span(" b", 2, 4, 1.5, 4.5, 0.0)))
    >>> bits, ranks = np.array([0.5, 2.0, 0.25, 1.0]), np.array([1, 3, 1, 2])
    >>> found = with_entropies(spans, characters_of(b" a b"), bits, ranks, letters=True)
    >>> [(span.entropy, span.reduction, span.rank) for span in found]
    [(2.0, 1.0, 3), (1.0, None, 2)]
    """
    string, edges = characters
    size = len(entropies)
    ahead = np.arange(size + 1)  # where to look for what comes at each place
    if letters:
        spaces = [match.span() for match in re.finditer(r"\s+", string)]
        for start, end in spaces:
            if spans.unit == "byte":
                start, end = int(edges[start]), int(edges[end])
            ahead[start:end] = end
    rows = []
    for row in spans:
        at = min(int(ahead[row.start]), size)
        at = at if at < row.end else row.start
        then = int(ahead[row.end])
        bounds = entropies[[at, min(then, size - 1)]].reshape(2, -1)  # here and after it
        entropy, most = _known(bounds[0, 0]), _known(bounds[0, -1])
        later = _known(bounds[1, 0]) if then < size else None
        rows.append(
            row._replace(
                entropy=entropy,
                reduction=None if entropy is None or later is None else entropy - later,
                rank=int(ranks[at]),
                entropy_most=most if entropies.ndim == 2 else None,
            )
        )
    return Spans(tuple(rows), spans.unit)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
