"""A text cut into spans, and the surprisal of each.

Every byte has its surprisal, −log₂ p(byte | all before), and a span is a run of bytes. What a
span costs, −log₂ p(span | all before), is the sum over its bytes, wherever it begins or ends. So
what a tokenizer does at the edges of a span plays no part, and adjacent spans add up exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from charwise.errors import needs

if TYPE_CHECKING:
    import pandas

Unit = Literal["character", "byte"]

#: The columns of `Span` that only scores with entropies have.
ENTROPIES = ("entropy", "reduction", "rank", "entropy_most")


class Span(NamedTuple):
    """One span of a text.

    Attributes:
        text: its characters; bytes that are no part of a character as `\\xNN`.
        start, end: offsets, in the unit of the `Spans` it is part of; `end` is exclusive.
        surprisal: −log₂ p(span | all before), bits.
        cumulative: −log₂ p(the text up to the span's end), bits.
        error: by how much the surprisal may be off, bits: an estimate, the sum of `Score.error`
            over the span's bytes.
        entropy: of what may come at the span's first letter, given all before it, bits.
        reduction: that entropy, less the entropy at the first letter after the span, bits.
        rank: of the byte that did come there, among the 256 and the end of text, from 1.
        entropy_most: an upper bound of the entropy of the next word; `entropy` is a lower one.

    The last four are None if the score has no such entropies. The reduction is None too where no
    letter follows, and of words. The entropies of words are None where no word begins. A span of
    whitespace alone counts from its beginning, as do single bytes and characters.

    >>> Span("py", 10, 12, surprisal=0.25, cumulative=8.5, error=0.0).text
    'py'
    """

    text: str
    start: int
    end: int
    surprisal: float
    cumulative: float
    error: float
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
    text  start  end  surprisal  cumulative  error
    'a '      0    2      3.000       3.000      0
    'b'       2    3      1.500       4.500      0
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

        >>> Spans((Span("a", 0, 1, 3.0, 3.0, 0.0),)).columns
        ('text', 'start', 'end', 'surprisal', 'cumulative', 'error')
        """
        some = dict.fromkeys(ENTROPIES, any(row.rank is not None for row in self.rows))
        some["entropy_most"] = any(row.entropy_most is not None for row in self.rows)
        return tuple(name for name in Span._fields if some.get(name, True))

    def to_pandas(self) -> pandas.DataFrame:
        """A table with these columns; needs pandas (`charwise[tables]`).

        Raises:
            MissingExtraError: pandas is not installed.

        >>> Spans((Span("a", 0, 1, 3.0, 3.0, 0.0),)).to_pandas().surprisal.tolist()
        [3.0]
        """
        with needs("tables", "a data frame needs pandas"):
            import pandas
        table = pandas.DataFrame(self.rows, columns=list(Span._fields))[list(self.columns)]
        if self.rows:
            return table
        kinds = {"text": "object", "start": "int64", "end": "int64"}  # a column of nothing has none
        return table.astype({name: kinds.get(name, "float64") for name in table})

    def __repr__(self) -> str:
        rows, names = self.rows, self.columns
        most = 30  # rows at the beginning, and at the end, before the middle is left out
        long = len(rows) > 2 * most
        digits = dict.fromkeys(("surprisal", "cumulative", *ENTROPIES), ".3f")
        digits |= {"rank": "", "error": ".2g"}
        lines = [list(names)]
        for row in rows[:most] + rows[-most:] if long else rows:
            cells = row._asdict()
            numbers = ((cells[name], digits.get(name, "")) for name in names[1:])
            line = ["" if cell is None else format(cell, form) for cell, form in numbers]
            lines.append([repr(row.text), *line])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        if long:
            table.insert(most + 1, f"… {len(rows) - 2 * most:,} more")
        return "\n".join(table)
