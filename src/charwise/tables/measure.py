"""The surprisal of texts, as records: one for each unit of each text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from charwise.errors import CharwiseError, ModelError, SettingError, ZeroProbabilityError
from charwise.surprisal.spans import Span
from charwise.tables.output import Identity
from charwise.tables.regions import Region
from charwise.tables.rows import BadRow, Stimulus
from charwise.tables.writers import Record
from charwise.tokens.words import characters_of

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.surprisal.score import Entropy, Score
    from charwise.tokens.words import Convention

Per = Literal["byte", "char", "word", "region", "text"]


@dataclass(frozen=True)
class Measure:
    """The measure of every text.

    Attributes:
        per: the unit.
        convention: which whitespace belongs to words, or their ends.
        preset, tolerance: how much to spend, see `CharLM.score`; of neither, the default.
        entropy: whose entropy is added, of the next byte, character or word; None for none.
        end: whether the end of each text is a unit of its own, after its last.
        coverage: of the probability of the next word, with entropies of words.
        alternatives: whether rows have alternatives of their regions, which are scored too.
    """

    per: Per = "word"
    convention: Convention = "leading"
    preset: str | None = None
    entropy: Entropy | None = None
    tolerance: float | None = None
    end: bool = False
    coverage: float = 0.9
    alternatives: bool = False

    #: What is scored.
    noun: ClassVar[str] = "texts"

    def fields(self, kept: Sequence[str] = ()) -> dict[str, type]:
        """Return the columns of the output, in their order.

        - file, row, item: where the text is from: the file as it was named, the number of its row
          from 1, the name of the item.
        - unit: the number of the unit in its text, from 1.
        - region, per region: its name, if it has one.
        - alternative, if there are some: the number of the one that stands in the region, from 1;
          0 for the text as it is.
        - text, start, end, surprisal, cumulative, error: as in `Span`; offsets are in bytes
          where units are bytes, and else in characters.
        - entropy, reduction, rank, if entropies are asked for, and entropy_most of words: as in
          `Span`.
        - the columns of the input that are kept.

        Raises:
            SettingError: a column to keep has a name that the output has already.

        >>> list(Measure().fields(kept=["condition"]))[-2:]
        ['error', 'condition']
        """
        own: dict[str, type] = {"file": str, "row": int, "item": str, "unit": int}
        if self.per == "region":
            own |= {"region": str}
        if self.alternatives:
            own |= {"alternative": int}
        own |= {"text": str, "start": int, "end": int}
        own |= dict.fromkeys(("surprisal", "cumulative", "error"), float)
        if self.entropy is not None:
            own |= {"entropy": float, "reduction": float, "rank": int}
        if self.entropy == "word":
            own |= {"entropy_most": float}
        for n, name in enumerate(kept):
            if name in own or name in kept[:n]:
                raise SettingError(
                    f"the column {name!r} cannot be kept: the output has one of that name already. "
                    "Rename it in the input."
                )
        return own | dict.fromkeys(kept, str)

    def settings(self) -> Identity:
        """Return the settings that the output depends on besides the effort, by their options."""
        return {
            "--per": self.per,
            "--convention": self.convention,
            "--entropy": self.entropy,
            "--end": "given" if self.end else None,
            "--coverage": str(self.coverage) if self.entropy == "word" else None,
        }

    @property
    def chunk_bytes(self) -> int:
        """Bytes of text after which a chunk ends: a chunk is what an interruption loses."""
        return 2**9 if self.entropy == "word" else 2**18

    @property
    def asked(self) -> tuple[Entropy | None, bool]:
        """`entropy` and `end` of `CharLM.score` that the measure needs."""
        if self.per == "word" and self.convention == "ending":
            return self.entropy or "byte", True
        return self.entropy, self.end

    @property
    def by_regions(self) -> bool:
        """Whether the rows need their regions."""
        return self.per == "region"

    def pieces(self, row: Stimulus) -> Iterable[Stimulus]:
        """Return the row, which is scored as a whole, and the texts with its alternatives."""
        return (row, *variants(row))

    def outcomes(
        self, lm: CharLM, chunk: Sequence[Stimulus | BadRow]
    ) -> Iterator[list[Record] | BadRow]:
        """Yield the records of every row of a chunk, or its fault.

        Raises:
            ModelError: the model failed, which is not the fault of a row.

        >>> import charwise
        >>> from charwise.tables.rows import Place
        >>> chunk = [Stimulus(Place("a.csv", 1), b"import numpy")]
        >>> [record["text"] for record in next(Measure().outcomes(charwise.load(), chunk))]
        ['import', ' numpy']
        """
        good = [row for row in chunk if isinstance(row, Stimulus)]
        entropy, end = self.asked
        try:
            scores: list[Score | None] = list(
                lm.scores(
                    [row.text for row in good],
                    contexts=[row.context for row in good],
                    preset=self.preset,
                    tolerance=self.tolerance,
                    entropy=entropy,
                    coverage=self.coverage,
                    end=end,
                )
            )
        except CharwiseError:  # one of them is to blame: each by itself
            scores = [None] * len(good)
        found = iter(scores)
        for row in chunk:
            yield row if isinstance(row, BadRow) else _outcome(lm, row, next(found), self)

    def largest_error(self, outcomes: Iterable[Sequence[Record] | BadRow]) -> float:
        """Return the largest error of a record, in bits."""
        good = [records for records in outcomes if not isinstance(records, BadRow)]
        errors = (record["error"] for records in good for record in records)
        return max((error for error in errors if error is not None), default=0.0)


def _outcome(
    lm: CharLM, row: Stimulus, score: Score | None, measure: Measure
) -> list[Record] | BadRow:
    try:
        if score is None:
            entropy, end = measure.asked
            score = lm.score(
                row.text,
                context=row.context,
                preset=measure.preset,
                tolerance=measure.tolerance,
                entropy=entropy,
                coverage=measure.coverage,
                end=end,
            )
        if not np.isfinite(score.error).all():
            raise ZeroProbabilityError("the error of the sums is not a number.")
        return _records(score, row, measure)
    except (ModelError, SettingError):
        raise
    except CharwiseError as error:
        if row.alternative:
            return BadRow(row.place, None, f"alternative {row.alternative}: {error}")
        return BadRow(row.place, row.column, str(error))


def _records(score: Score, row: Stimulus, measure: Measure) -> list[Record]:
    """The records of a row's units, and of its end if that was asked for."""
    # A name of a file may be any bytes, which arrive as surrogate escapes.
    file = row.place.file.encode("utf-8", "backslashreplace").decode()
    common = {"file": file, "row": row.place.number, "item": row.item}
    common |= {"alternative": row.alternative}
    units: list[Record] = [span._asdict() for span in _units(score, row, measure)]
    if measure.per == "region":
        units = [
            unit | {"region": each.name} for unit, each in zip(units, row.regions, strict=True)
        ]
    if measure.end and not row.alternative:
        units.append(_end_of(score, measure))
    names, kept = measure.fields(), dict(row.kept)
    cells = ({**common, "unit": n, **unit} for n, unit in enumerate(units, row.first_unit))
    return [{name: each.get(name) for name in names} | kept for each in cells]


def _end_of(score: Score, measure: Measure) -> Record:
    """The cells of the end of a text; nothing is said of its error."""
    assert score.end_logprob is not None
    bits = -score.end_logprob / math.log(2) + 0.0  # no −0.0
    if not math.isfinite(bits):
        raise ZeroProbabilityError("the model gives the end of this text no probability.")
    at = len(score.raw) if measure.per == "byte" else len(characters_of(score.raw)[0])
    return {"text": "", "start": at, "end": at, "surprisal": bits, "cumulative": score.bits + bits}


def _units(score: Score, row: Stimulus, measure: Measure) -> Sequence[Span]:
    if measure.per == "byte":
        return score.bytes()
    if measure.per == "char":
        return score.chars()
    if measure.per == "word":
        return score.words(measure.convention)
    if measure.per == "region":
        return score.spans([(region.start, region.end) for region in row.regions])
    return score.spans([(0, len(characters_of(score.raw)[0]))])


def variants(row: Stimulus) -> Iterator[Stimulus]:
    """Yield the text with each alternative, up to the end of the region that it stands in.

    The whitespace around it is that of the region.

    >>> from charwise.tables.rows import Place
    >>> row = Stimulus(Place("a.csv", 1), b"The boat sank.", regions=(Region(9, 13),))
    >>> [found] = variants(replace(row, alternatives=((0, "leaked"),)))
    >>> found.text, found.regions[0][:2], found.alternative
    (b'The boat leaked', (9, 15), 1)
    """
    if not row.alternatives:
        return
    string = row.text.decode()
    for number, (place, alternative) in enumerate(row.alternatives, 1):
        start, end, name = row.regions[place]
        region = string[start:end]
        before = region[: len(region) - len(region.lstrip())]
        after = region[len(region.rstrip()) :] if region.strip() else ""
        text = string[:start] + before + alternative + after
        yield replace(
            row,
            text=text.encode(),
            regions=(Region(start, len(text), name),),
            alternatives=(),
            alternative=number,
            first_unit=place + 1,
        )
