"""The surprisal of a text: that of every byte, given all bytes before it."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, ZeroProbabilityError, items, quote
from charwise.surprisal.spans import Span, Spans, Unit
from charwise.tokens.words import Boundaries, Convention, characters_of, graphemes
from charwise.tokens.words import words as words_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

#: Whose entropy is wanted: of the next byte, and of the next character or word too.
Entropy = Literal["byte", "char", "word"]
ENTROPIES = get_args(Entropy)


@dataclass(frozen=True, eq=False)
class Score:
    """The log-probabilities of a text's bytes, and the surprisal of any part of it.

    Attributes:
        raw: the bytes of the text.
        logprobs: `[n_bytes]` float64, log p(byte | all before), nats.
        error: `[n_bytes]` by how much each log-probability may be off, nats: an estimate
            (docs/scoring.md).
        contexts: contexts evaluated for this text.
        calls: model calls that this text took part in, one after the other.
        end_logprob: log p(end of text | text), nats, if that was asked for; `error` does not
            state how far it may be off.
        token_ends: `[n_tokens]` byte offsets at which canonical tokens end; the last is the
            text's end. Where the text begins or ends inside a token, its part in the text counts.
        entropies: `[n_bytes]` entropy of the next byte (or the end of text) given all before each
            byte, bits, if that was asked for.
        ranks: `[n_bytes]` rank of the byte that came among those 257, from 1.
        distributions: `[n_bytes, 257]` those distributions, the end of text last; only with the
            entropies of characters. With `end` one more row, of what follows the text.
        char_entropies: `[n_chars]` entropy of the next character (or the end of text) given all
            before each character, bits, if that was asked for.
        word_entropies: `[n_chars, 2]` bounds of the entropy of the next word, bits, where a word
            begins, and NaN elsewhere, if that was asked for.
        word_ends: `[n_bytes + 1]` log p(ASCII whitespace or the end of text | all before), nats, at
            each byte and after the last, if entropies and the end were asked for.

    >>> import charwise
    >>> score = charwise.load().score("import os")
    >>> score.text, score.logprobs.shape, bool((score.error < 0.01).all())
    ('import os', (9,), True)
    >>> [word.text for word in score.words("leading")]
    ['import', ' os']
    """

    raw: builtins.bytes  # `bytes` is a method here
    logprobs: NDArray[np.float64]
    error: NDArray[np.float64]  # nats
    contexts: int = 0
    calls: int = 0
    end_logprob: float | None = None
    token_ends: NDArray[np.int64] | None = None
    entropies: NDArray[np.float64] | None = None
    ranks: NDArray[np.int64] | None = None
    distributions: NDArray[np.float64] | None = None
    char_entropies: NDArray[np.float64] | None = None
    word_entropies: NDArray[np.float64] | None = None
    word_ends: NDArray[np.float64] | None = None

    @property
    def text(self) -> str:
        """The text; bytes that are no part of a character as `\\xNN`."""
        return self.raw.decode("utf-8", "backslashreplace")

    @cached_property
    def surprisals(self) -> NDArray[np.float64]:
        """The surprisals −log₂ p(byte | all before), `[n_bytes]` bits; all their sums are exact.

        Each is rounded to a multiple of twice the last binary digit of their sum. Then every sum of
        some of them, in any order, is a float64, so that adding loses nothing: the surprisals of
        adjacent spans and of the span they make up agree to the last digit.

        Raises:
            ZeroProbabilityError: a log-probability that is not finite.
        """
        bits = self.logprobs / -math.log(2)
        size = math.fsum(np.abs(bits))
        if not math.isfinite(size):
            at = int(np.flatnonzero(~np.isfinite(bits))[0])
            raise ZeroProbabilityError(
                f"the log-probability of byte {at} is {self.logprobs[at]}: only finite ones can be "
                "summed."
            )
        return _in_digits(bits, size)

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        return np.concatenate(([0.0], np.cumsum(self.surprisals)))  # [n_bytes + 1]

    @cached_property
    def _characters(self) -> tuple[str, NDArray[np.int64]]:
        return characters_of(self.raw)

    @property
    def bits(self) -> float:
        """The surprisal of the whole text, without its end."""
        return float(self._cumulative[-1])

    @property
    def bits_per_byte(self) -> float:
        """The mean surprisal of a byte; 0 for the empty text."""
        return self.bits / max(1, len(self.raw))

    @property
    def bits_per_char(self) -> float:
        """The mean surprisal of a character; 0 for the empty text."""
        return self.bits / max(1, len(self._characters[0]))

    def bytes(self) -> Spans:
        """A row for each byte; offsets are in bytes.

        >>> [row.text for row in charwise.load().score("é!").bytes()]
        ['\\\\xc3', '\\\\xa9', '!']
        """
        return self._spans(list(pairwise(range(len(self.raw) + 1))), "byte", letters=False)

    def chars(self) -> Spans:
        """A row for each character, that is, each Unicode code point; see `graphemes`.

        >>> score = charwise.load().score("é!")
        >>> [row.text for row in score.chars()]
        ['é', '!']
        >>> score.chars()[0].surprisal == sum(row.surprisal for row in score.bytes()[:2])
        True
        """
        return self._spans(list(pairwise(range(len(self._characters[0]) + 1))), letters=False)

    def graphemes(self) -> Spans:
        """A row for each character that a reader sees: a letter with its marks, a whole emoji.

        Such grapheme clusters are those of Unicode text segmentation (UAX 29).

        >>> [row.text for row in charwise.load().score("e\u0301!").graphemes()]
        ['e\u0301', '!']
        """
        return self._spans(list(pairwise(graphemes(self._characters[0]))), letters=False)

    def words(
        self,
        convention: Convention = "leading",
        *,
        boundaries: Boundaries | Literal["unicode"] | None = None,
    ) -> Spans:
        """A row for each word, and for whitespace that belongs to none: together, all of the text.

        A word is a run of characters that are no whitespace, unless you say where words end. No
        grapheme cluster is split. Which whitespace belongs to it is a
        choice that changes the numbers of words, though not their sum, and that a paper should
        state (docs/methods.md; Oh & Schuler, EMNLP 2024; Pimentel & Meister, EMNLP 2024).

        Args:
            convention: "leading": what is before a word; "trailing": what is after it; "none":
                runs of whitespace are rows of their own; "ending": as "none", and a word's row
                also counts that it ends, by any ASCII whitespace or the end of text (Pimentel &
                Meister, EMNLP 2024). Then the rows add up to the text and that its last word ends.
            boundaries: where words end, besides at whitespace: "unicode" for the rules of UAX 29
                (`charwise.tokens.words`), or offsets in characters, or a function of the text that
                returns them, such as a dictionary's for a script without spaces. Whitespace is
                then what a part between two of them consists of.

        Raises:
            SettingError: another convention; boundaries that are not in the text; "ending" with
                boundaries, or of a score without `word_ends`.

        >>> score = charwise.load().score("def f(x):")
        >>> [word.text for word in score.words("leading", boundaries="unicode")]
        ['def', ' f', '(', 'x', ')', ':']
        >>> [word.text for word in score.words("trailing")]
        ['def ', 'f(x):']
        >>> score.words("leading")[-1].cumulative == score.words("trailing")[-1].cumulative
        True
        """
        string, edges = self._characters
        pairs = words_of(string, convention, boundaries)
        if convention != "ending":
            return self._spans(pairs)
        if boundaries is not None:
            raise SettingError("with 'ending', words end at whitespace: leave boundaries out.")
        if self.word_ends is None:
            raise SettingError(
                "this score does not know where words may end: ask for it with "
                "entropy='byte', end=True."
            )
        costs, error = np.zeros(len(self.raw) + 1), self.error.copy()
        for start, end in pairs:
            if string[start:end].isspace():
                continue
            at, log = int(edges[end]), float(self.word_ends[edges[end]])
            if end < len(string):
                came = float(self.logprobs[at : edges[end + 1]].sum())
                # ASCII whitespace is among the ends, but for the rounding of the model's sums.
                # Other whitespace is an end where the text has it.
                log = max(log, came) if string[end].isascii() else float(np.logaddexp(log, came))
            if not log > -math.inf:
                raise ZeroProbabilityError("the model gives the end of this text no probability.")
            costs[at] = max(0.0, -log / math.log(2))
            # The end is of the next byte. After the text that is not known: its last byte's is.
            error[at - 1] += self.error[min(at, len(error) - 1)]
        # The end of the last word comes on top of the text.
        size = self.bits + costs[-1]
        bits = _in_digits(self.logprobs / -math.log(2), size)
        cumulative = np.concatenate(([0.0], np.cumsum(bits))) + _in_digits(costs, size)
        return self._spans(pairs, cumulative=cumulative, error=error)

    def regex(self, pattern: str | re.Pattern[str]) -> Spans:
        """A row for each match of a regular expression that is not empty, from left to right.

        Raises:
            SettingError: what is no regular expression of Python.

        >>> [row.text for row in charwise.load().score("x1 = y2").regex("[a-z]")]
        ['x', 'y']
        """
        try:
            matches = [match.span() for match in re.finditer(pattern, self._characters[0])]
        except (re.error, TypeError) as error:
            raise SettingError(f"{quote(pattern)} is no regular expression: {error}.") from None
        return self._spans([(start, end) for start, end in matches if start < end])

    def spans(self, offsets: Iterable[Sequence[int]], *, unit: Unit = "character") -> Spans:
        """A row for each (start, end), end exclusive, in the order given; spans may overlap.

        Raises:
            SettingError: a span that is empty, reversed, beyond the text, or of fractions; another
                unit.

        >>> score = charwise.load().score("import numpy")
        >>> [row.text for row in score.spans([(0, 6), (10, 12)])]
        ['import', 'py']
        """
        size = {"byte": len(self.raw), "character": len(self._characters[0])}.get(unit)
        if size is None:
            raise SettingError(f"unit is {quote(unit)}: choose byte or character.")
        pairs = [items(span) or [] for span in offsets]
        for pair in pairs:
            whole = len(pair) == 2 and not any(isinstance(at, str) or at % 1 for at in pair)
            if not whole or not 0 <= pair[0] < pair[1] <= size:
                raise SettingError(
                    f"{quote(pair)} is no span of a text of {size} {unit}s: a span begins "
                    "before it ends, at whole numbers."
                )
        return self._spans([(int(start), int(end)) for start, end in pairs], unit)

    def tokens(self) -> Spans:
        """Return a row for each canonical token: the surprisal of its bytes; offsets are in bytes.

        For comparison: −log₂ of the probability that the model gives to the token itself is
        another number, since other tokens may begin with, or end in, the same bytes.

        Raises:
            SettingError: a score that was made without a tokenizer.

        >>> [row.text for row in charwise.load().score("import numpy").tokens()]
        ['import', ' numpy']
        """
        if self.token_ends is None:
            raise SettingError(
                "this score does not know the canonical tokens: only those that CharLM.score "
                "returns do. Pass token_ends to Score."
            )
        return self._spans(list(pairwise([0, *self.token_ends.tolist()])), "byte")

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each byte, as `bytes`; needs pandas (`charwise[tables]`)."""
        return self.bytes().to_pandas()

    def plot(self, convention: Convention = "leading") -> Figure:
        """A bar for each word, as wide as the word, over the word.

        Long texts take several lines, of one scale. Needs matplotlib (`charwise[plots]`). Save the
        figure with its `savefig`; notebooks show it after `%matplotlib inline`.

        Args:
            convention: of the words, as in `words`.

        Raises:
            SettingError: a text of more than 50 lines.
            MissingExtraError: matplotlib is not installed.
        """
        from charwise.surprisal.plot import figure

        words = self.words(convention)
        return figure(words, f"{self._summary}; words by the convention '{convention}'")

    def _repr_html_(self) -> str:
        from charwise.surprisal.plot import to_html

        return to_html(self.chars(), self._summary)

    @property
    def _summary(self) -> str:
        return f"{self.bits:.1f} bits, {self.bits_per_char:.2f} a character"

    def _spans(
        self,
        offsets: list[tuple[int, int]],
        unit: Unit = "character",
        *,
        letters: bool = True,
        cumulative: NDArray[np.float64] | None = None,
        error: NDArray[np.float64] | None = None,
    ) -> Spans:
        """The rows of spans; with `letters`, their entropies are looked up at their first letters.

        They may overlap, in any order. `cumulative` and `error` take the place of this score's.
        """
        edges = self._characters[1] if unit == "character" else np.arange(len(self.raw) + 1)
        pairs = np.array(offsets, dtype=np.int64).reshape(-1, 2)  # [n_spans, 2]
        starts, ends = places = edges[pairs].T
        cumulative = self._cumulative if cumulative is None else cumulative
        errors = np.append(self.error if error is None else error, 0.0)
        if len(pairs):
            # Every second sum is over a span, the others are over what is between two, or one byte.
            errors = np.add.reduceat(errors, places.T.ravel())[::2] + 0.0  # no −0.0
        columns = [
            [self.raw[a:b].decode("utf-8", "backslashreplace") for a, b in places.T.tolist()],
            *pairs.T.tolist(),
            (cumulative[ends] - cumulative[starts]).tolist(),
            cumulative[ends].tolist(),
            (errors[: len(pairs)] / math.log(2)).tolist(),
        ]
        if self.entropies is not None and self.ranks is not None:
            columns += self._entropy_columns(pairs, unit, edges[:-1], letters)
        return Spans(tuple(Span(*row) for row in zip(*columns, strict=True)), unit)

    def _entropy_columns(
        self, pairs: NDArray[np.int64], unit: Unit, first: NDArray[np.int64], letters: bool
    ) -> list[list[Any]]:
        """Entropy, reduction, rank and the upper bound of spans; see `Span`.

        `first` has the byte at which each character begins, or each byte.
        """
        assert self.entropies is not None
        assert self.ranks is not None
        string, edges = self._characters
        entropies, most = self.entropies[first], np.full(len(first), np.nan)
        if self.char_entropies is not None and unit == "character":
            entropies = self.char_entropies
        if self.word_entropies is not None:
            bounds = np.full((len(self.raw), 2), np.nan)
            bounds[edges[:-1]] = self.word_entropies
            entropies, most = bounds[first].T
        ahead = np.arange(len(first) + 1)  # place of the first letter from each on
        for match in re.finditer(r"\s+", string) if letters else ():
            start, end = match.span() if unit == "character" else edges[[*match.span()]]
            ahead[start:end] = end
        starts, ends = pairs.T
        at = np.where(ahead[starts] < ends, ahead[starts], starts)
        reduction = entropies[at] - np.append(entropies, np.nan)[ahead[ends]]
        if self.word_entropies is not None:  # the difference of two lower bounds bounds nothing
            reduction[:] = np.nan
        known = [
            [None if math.isnan(value) else value for value in values.tolist()]
            for values in (entropies[at], reduction, most[at])
        ]
        return [*known[:2], self.ranks[first[at]].tolist(), known[2]]


def _in_digits(bits: NDArray[np.float64], size: float) -> NDArray[np.float64]:
    """`[n]` numbers rounded so that all their sums up to `size` are exact."""
    # All sums are multiples of `digit`, and below 2^52 of it (+ n / 2 for the rounding).
    digit = 2 * math.ulp(size)
    return np.asarray(np.rint(bits / digit) * digit + 0.0)  # no −0.0
