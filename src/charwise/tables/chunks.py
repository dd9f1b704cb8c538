"""Rows scored in chunks: what is scored together depends on nothing but the input.

The numbers of a text may differ, in their last digits, with the texts that share its batches. So
a chunk is the unit of everything above it: of what is resumed, and of what a cluster divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from charwise.errors import CharwiseError, EngineError, SettingError, ZeroProbabilityError
from charwise.surprisal.spans import Convention, Span, characters_of
from charwise.tables.rows import BadRow, Stimulus

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.surprisal.score import Entropy, Score

Per = Literal["byte", "char", "word", "region", "text"]

#: Rows of a chunk, at most.
CHUNK_ROWS = 32

#: Bytes of text, contexts included, after which a chunk ends before it has so many rows.
CHUNK_BYTES = 2**18


#: A row of the output: one unit of one text. `fields` says what there is, and of which type.
Record = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """What is measured of every text.

    Attributes:
        per: the unit.
        convention: which whitespace belongs to words.
        preset, tolerance: how much to spend, see `CharLM.score`; of neither, the default.
        entropy: whose entropy is added, of the next byte or of the next character; None for none.
    """

    per: Per = "word"
    convention: Convention = "leading"
    preset: str | None = None
    entropy: Entropy | None = None
    tolerance: float | None = None

    def outcomes(
        self, lm: CharLM, chunk: Sequence[Stimulus | BadRow]
    ) -> Iterator[list[Record] | BadRow]:
        """See `score_chunk`."""
        return score_chunk(lm, chunk, self)


def fields(measure: Measure, kept: Sequence[str] = ()) -> dict[str, type]:
    """The columns of the output, in their order.

    - file, row, item: where the text is from: the file as it was named, the number of its row
      from 1, the name of the item.
    - unit: the number of the unit in its text, from 1.
    - text, start, end, surprisal, cumulative, missing, error: as in `Span`; offsets are in bytes
      where units are bytes, and else in characters.
    - limited: whether the error stayed above the tolerance in a part of the text.
    - entropy, reduction, rank, if entropies are asked for: as in `Span`.
    - the columns of the input that are kept.

    Raises:
        SettingError: a column to keep has a name that the output has already.

    >>> list(fields(Measure(), kept=["condition"]))[-2:]
    ['limited', 'condition']
    """
    own: dict[str, type] = {"file": str, "row": int, "item": str, "unit": int}
    own |= {"text": str, "start": int, "end": int}
    own |= dict.fromkeys(("surprisal", "cumulative", "missing", "error"), float) | {"limited": bool}
    if measure.entropy is not None:
        own |= {"entropy": float, "reduction": float, "rank": int}
    for n, name in enumerate(kept):
        if name in own or name in kept[:n]:
            raise SettingError(
                f"the column {name!r} cannot be kept: the output has one of that name already. "
                "Rename it in the input."
            )
    return own | dict.fromkeys(kept, str)


def chunks(
    rows: Iterable[Stimulus | BadRow], most: int = CHUNK_BYTES
) -> Iterator[list[Stimulus | BadRow]]:
    """The rows, some consecutive ones at a time; no further row after `most` bytes.

    >>> from charwise.tables.rows import Place
    >>> rows = [Stimulus(Place("a.csv", n), b"To be") for n in range(1, 71)]
    >>> [len(chunk) for chunk in chunks(rows)]
    [32, 32, 6]
    """
    chunk: list[Stimulus | BadRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += size_of(row)
        if len(chunk) == CHUNK_ROWS or size >= most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def size_of(row: Stimulus | BadRow) -> int:
    """The bytes of a row that a model reads.

    >>> from charwise.tables.rows import Place
    >>> size_of(Stimulus(Place("a.csv", 1), b"or not", context=b"To be "))
    12
    """
    return len(row.text) + len(row.context) if isinstance(row, Stimulus) else 0


def score_chunk(
    lm: CharLM, chunk: Sequence[Stimulus | BadRow], measure: Measure
) -> Iterator[list[Record] | BadRow]:
    """What comes out for every row of a chunk: its records, or what is wrong with it.

    Raises:
        EngineError: the model failed, which is not the fault of a row.

    >>> import charwise
    >>> from charwise.tables.rows import Place
    >>> chunk = [Stimulus(Place("a.csv", 1), b"import numpy")]
    >>> [record["text"] for record in next(score_chunk(charwise.load(), chunk, Measure()))]
    ['import', ' numpy']
    """
    good = [row for row in chunk if isinstance(row, Stimulus)]
    try:
        scores: list[Score | None] = list(
            lm.scores(
                [row.text for row in good],
                contexts=[row.context for row in good],
                preset=measure.preset,
                tolerance=measure.tolerance,
                entropy=measure.entropy,
            )
        )
    except CharwiseError:  # one of them is to blame: each by itself
        scores = [None] * len(good)
    found = iter(scores)
    for row in chunk:
        yield row if isinstance(row, BadRow) else _outcome(lm, row, next(found), measure)


def _outcome(
    lm: CharLM, row: Stimulus, score: Score | None, measure: Measure
) -> list[Record] | BadRow:
    try:
        if score is None:
            score = lm.score(
                row.text,
                context=row.context,
                preset=measure.preset,
                tolerance=measure.tolerance,
                entropy=measure.entropy,
            )
        if not np.isfinite(score.missing).all():
            raise ZeroProbabilityError("what was left out of the sums is not a number.")
        # A name of a file may be any bytes, which arrive as surrogate escapes.
        file = row.place.file.encode("utf-8", "backslashreplace").decode()
        place = {"file": file, "row": row.place.number, "item": row.item}
        units = _units(score, row, measure)
        names = fields(measure)
        return [
            _in_order(names, {**place, "unit": n, "limited": score.limited, **span._asdict()})
            | dict(row.kept)
            for n, span in enumerate(units, 1)
        ]
    except (EngineError, SettingError):
        raise
    except CharwiseError as error:
        return BadRow(row.place, row.column, str(error))


def _in_order(names: Iterable[str], cells: Record) -> Record:
    """A record with the columns of the output, in their order."""
    return {name: cells[name] for name in names}


def _units(score: Score, row: Stimulus, measure: Measure) -> Sequence[Span]:
    if measure.per == "byte":
        return score.bytes()
    if measure.per == "char":
        return score.chars()
    if measure.per == "word":
        return score.words(measure.convention)
    if measure.per == "region":
        return score.spans(row.regions)
    return score.spans([(0, len(characters_of(score.raw)[0]))])
