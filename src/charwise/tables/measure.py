"""The surprisal of texts, as records: one for each unit of each text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from charwise.errors import (
    CharwiseError,
    MissingExtraError,
    SettingError,
    ZeroProbabilityError,
    needs,
    quote,
)
from charwise.surprisal.spans import Span
from charwise.tables.output import Identity, Record, ScoredChunk
from charwise.tables.rows import BadRow, Stimulus
from charwise.tokens.words import characters_of

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.surprisal.score import Entropy, Score
    from charwise.tokens.words import Convention

Per = Literal["byte", "char", "word", "region", "text"]

#: The columns of a word, beside surprisal, for a regression on reading times; and their types.
COVARIATES: dict[str, type] = {
    "length": int,
    "log_frequency": float,
    "previous_length": int,
    "previous_log_frequency": float,
}


@dataclass(frozen=True)
class Measure:
    """The measure of every text."""

    per: Per = "word"
    convention: Convention = "leading"  # which whitespace belongs to words, or their ends
    preset: str | None = None
    entropy: Entropy | None = None
    tolerance: float | None = None  # in place of a preset, bits a byte
    end: bool = False  # of each text, as a unit after its last
    coverage: float = 0.9  # of the probability of the next word, with entropies of words
    covariates: str | None = None  # the language whose lengths and frequencies of words are added

    def fields(self, copied: Sequence[str] = ()) -> dict[str, type]:
        """Return the columns of the output, in their order, with their types.

        Numbers are as in `Span`; offsets are in bytes where units are bytes, else in characters.
        """
        own: dict[str, type] = {"file": str, "row": int, "item": str, "unit": int}
        if self.per == "region":
            own |= {"region": str}
        own |= {"text": str, "start": int, "end": int}
        own |= dict.fromkeys(("surprisal", "cumulative", "error"), float)
        if self.entropy is not None:
            own |= {"entropy": float, "reduction": float, "rank": int}
        if self.entropy == "word":
            own |= {"entropy_most": float}
        if self.covariates is not None:
            own |= COVARIATES
        for n, name in enumerate(copied):
            taken = name in own or name in copied[:n]
            if taken or name != name.encode("utf-8", "replace").decode():
                why = "the output has one of that name already" if taken else "it is not UTF-8"
                raise SettingError(
                    f"the column {quote(name)} cannot be kept: {why}. Rename it in the input."
                )
        return own | dict.fromkeys(copied, str)

    def settings(self) -> Identity:
        """Return the settings that the output depends on, by their options."""
        effort = self.preset or ("default" if self.tolerance is None else None)
        return {
            "--per": self.per,
            "--convention": self.convention,
            "--entropy": self.entropy,
            "--end": "given" if self.end else None,
            "--coverage": str(self.coverage) if self.entropy == "word" else None,
            "--covariates": self.covariates,
            "--preset": effort,
            "--tolerance": None if self.tolerance is None else repr(self.tolerance),
        }

    @property
    def chunk_bytes(self) -> int:
        """Bytes of text after which a chunk ends: a chunk is what an interruption loses."""
        return 2**9 if self.entropy == "word" else 2**18

    def scored(self, lm: CharLM, rows: Sequence[Stimulus | BadRow]) -> ScoredChunk:
        """Score the rows of one chunk; a model that fails is not the fault of a row."""
        from charwise.char_lm import scores_or_errors

        texts = [row for row in rows if isinstance(row, Stimulus)]
        ends = self.per == "word" and self.convention == "ending"
        scores = iter(
            scores_or_errors(
                lm,
                [row.text for row in texts],
                [row.context for row in texts],
                preset=self.preset,
                tolerance=self.tolerance,
                entropy=self.entropy or ("byte" if ends else None),
                coverage=self.coverage,
                end=self.end or ends,
            )
        )
        records: list[Record] = []
        bad: list[BadRow] = []
        for row in rows:
            if isinstance(row, BadRow):
                bad.append(row)
                continue
            try:
                if isinstance(score := next(scores), CharwiseError):
                    raise score
                if not np.isfinite(score.error).all():
                    raise ZeroProbabilityError("the error of the sums is not a number.")
                records += self._records(score, row)
            except CharwiseError as error:
                bad.append(BadRow(row.place, row.column, str(error)))
        return ScoredChunk(len(rows), sum(row.size for row in rows), records, bad)

    def _records(self, score: Score, row: Stimulus) -> list[Record]:
        """The records of a row's units, and of its end if that was asked for."""
        # A name of a file may be any bytes, which arrive as surrogate escapes.
        file = row.place.file.encode("utf-8", "backslashreplace").decode()
        common = {"file": file, "row": row.place.number, "item": row.item}
        units: list[Record] = [span._asdict() for span in self._units(score, row)]
        more: list[Record] = [{"region": region.name} for region in row.regions]
        if self.covariates is not None:
            more = covariates([unit["text"] for unit in units], self.covariates)
        for unit, cells in zip(units, more, strict=False):
            unit |= cells
        if self.end:
            units.append(self._end(score))
        names, copied = self.fields(), dict(row.copied)
        rows = (common | {"unit": n} | unit for n, unit in enumerate(units, 1))
        return [{name: cells.get(name) for name in names} | copied for cells in rows]

    def _units(self, score: Score, row: Stimulus) -> Sequence[Span]:
        if self.per == "word":
            return score.words(self.convention)
        if self.per == "region":
            return score.spans([(region.start, region.end) for region in row.regions])
        if self.per == "text":
            return score.spans([(0, len(characters_of(score.raw)[0]))])
        return score.bytes() if self.per == "byte" else score.chars()

    def _end(self, score: Score) -> Record:
        """The cells of the end of a text, which has no stated error."""
        assert score.end_logprob is not None
        bits = -score.end_logprob / math.log(2) + 0.0  # no −0.0
        if not math.isfinite(bits):
            raise ZeroProbabilityError("the model gives the end of this text no probability.")
        at = len(score.raw) if self.per == "byte" else len(characters_of(score.raw)[0])
        place = {"text": "", "start": at, "end": at}
        return place | {"surprisal": bits, "cumulative": score.bits + bits}


def check_language(language: str) -> None:
    """Refuse a language whose words wordfreq does not have."""
    with needs("covariates", "the frequencies of words are not installed"):
        import wordfreq

    known = wordfreq.available_languages()
    if language not in known:
        raise SettingError(
            f"{quote(language)} is no language of wordfreq: it has {', '.join(sorted(known))}."
        )
    try:
        wordfreq.word_frequency("a", language)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"words of {language!r} need a package of their own: pip install 'wordfreq[cjk]'. "
            f"({error})"
        ) from error


def covariates(words: Sequence[str], language: str) -> list[dict[str, Any]]:
    """Return length and frequency of each word of a text, and of the word before.

    The length is in characters without whitespace, of which a stretch has none. The frequency is
    the natural logarithm of its share of all words, None of a word that wordfreq does not know.
    """
    import wordfreq

    rows, last = list[dict[str, Any]](), {"length": None, "log_frequency": None}
    for word in map(str.strip, words):
        own: dict[str, Any] = {"length": None, "log_frequency": None}
        if word:
            share = wordfreq.word_frequency(word, language)
            own = {"length": len(word), "log_frequency": math.log(share) if share else None}
        rows.append(own | {f"previous_{name}": value for name, value in last.items() if word})
        last = own if word else last
    return rows
