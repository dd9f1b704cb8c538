"""Rows scored in chunks: what is scored together depends on nothing but the input.

The numbers of a text may differ, in their last digits, with the texts that share its batches. So
a chunk is the unit of everything above it: of what is resumed, and of what a cluster divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from charwise.errors import CharwiseError, EngineError, SettingError, ZeroProbabilityError
from charwise.surprisal.spans import Convention, Span, characters_of
from charwise.tables.rows import BadRow, Row

if TYPE_CHECKING:
    from charwise.model import CharLM
    from charwise.surprisal.score import Score

Per = Literal["byte", "char", "word", "region", "text"]

#: Rows of a chunk, at most.
CHUNK_ROWS = 32

#: Bytes of text, contexts included, after which a chunk ends before it has so many rows.
CHUNK_BYTES = 2**18


class Record(NamedTuple):
    """A row of the output: one unit of one text, and what it costs.

    Attributes:
        file: the file that the text is from, as it was named.
        row: the number of the text's row in it, from 1.
        item: the name of the item, if a column had it.
        unit: the number of the unit in its text, from 1.
        text, start, end, surprisal, cumulative, missing: as in `spans.Span`; offsets are in
            bytes where units are bytes, and else in characters.
    """

    file: str
    row: int
    item: str | None
    unit: int
    text: str
    start: int
    end: int
    surprisal: float
    cumulative: float
    missing: float


@dataclass(frozen=True)
class Request:
    """What is asked of every text: the unit, which whitespace belongs to words, the preset."""

    per: Per = "word"
    convention: Convention = "leading"
    preset: str = "default"


def chunks(rows: Iterable[Row | BadRow]) -> Iterator[list[Row | BadRow]]:
    """The rows, some consecutive ones at a time.

    >>> from charwise.tables.rows import Place
    >>> rows = [Row(Place("a.csv", n), b"To be") for n in range(1, 71)]
    >>> [len(chunk) for chunk in chunks(rows)]
    [32, 32, 6]
    """
    chunk: list[Row | BadRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += size_of(row)
        if len(chunk) == CHUNK_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def size_of(row: Row | BadRow) -> int:
    """The bytes of a row that a model reads.

    >>> from charwise.tables.rows import Place
    >>> size_of(Row(Place("a.csv", 1), b"or not", context=b"To be "))
    12
    """
    return len(row.text) + len(row.context) if isinstance(row, Row) else 0


def score_chunk(
    lm: CharLM, chunk: Sequence[Row | BadRow], request: Request
) -> Iterator[list[Record] | BadRow]:
    """What comes out for every row of a chunk: its records, or what is wrong with it.

    Raises:
        EngineError: the model failed, which is not the fault of a row.

    >>> import charwise
    >>> from charwise.tables.rows import Place
    >>> chunk = [Row(Place("a.csv", 1), b"import numpy")]
    >>> [record.text for record in next(score_chunk(charwise.load(), chunk, Request()))]
    ['import', ' numpy']
    """
    good = [row for row in chunk if isinstance(row, Row)]
    try:
        scores: list[Score | None] = list(
            lm.scores(
                [row.text for row in good],
                contexts=[row.context for row in good],
                preset=request.preset,
            )
        )
    except CharwiseError:  # one of them is to blame: each by itself
        scores = [None] * len(good)
    found = iter(scores)
    for row in chunk:
        yield row if isinstance(row, BadRow) else _outcome(lm, row, next(found), request)


def _outcome(lm: CharLM, row: Row, score: Score | None, request: Request) -> list[Record] | BadRow:
    try:
        if score is None:
            score = lm.score(row.text, context=row.context, preset=request.preset)
        if not np.isfinite(score.missing).all():
            raise ZeroProbabilityError("what was left out of the sums is not a number.")
        # A name of a file may be any bytes, which arrive as surrogate escapes.
        file = row.place.file.encode("utf-8", "backslashreplace").decode()
        return [
            Record(file, row.place.number, row.item, number, *span)
            for number, span in enumerate(_units(score, row, request), 1)
        ]
    except (EngineError, SettingError):
        raise
    except CharwiseError as error:
        return BadRow(row.place, row.column, str(error))


def _units(score: Score, row: Row, request: Request) -> Sequence[Span]:
    if request.per == "byte":
        return score.bytes()
    if request.per == "char":
        return score.chars()
    if request.per == "word":
        return score.words(request.convention)
    if request.per == "region":
        return score.spans(row.regions)
    return score.spans([(0, len(characters_of(score.text)[0]))])
