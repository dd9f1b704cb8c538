"""The methods that every state has: texts grow and shrink, and completions are drawn.

A state says what its next byte is, how it grows by bytes, and how probable strings after it are.
All else follows from these. Completions are drawn byte by byte; a token model overrides that.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Self, Unpack

from charwise.constraints.constraint import Constraint
from charwise.constraints.validity import has_check
from charwise.cursor.choose import ChoicePosterior
from charwise.cursor.distributions import NextBytes
from charwise.cursor.expansion import Outcomes, next_chars, next_words
from charwise.cursor.generation import Completion, Generation
from charwise.cursor.options import GenerationKeywords, GenerationOptions, Limit, options_of
from charwise.cursor.rejection import draw_valid
from charwise.cursor.smc import sample, sum_members
from charwise.errors import SettingError, shown
from charwise.tokens import utf8
from charwise.tokens.canonical import to_bytes
from charwise.tokens.stops import StopStrings


class CharacterState(ABC):
    """A model after some text; immutable: `state + "text"`, `state - n` characters.

    `State` is that of one model, `combine.CombinedState` that of several.
    """

    _parent: Self | None = None

    @property
    @abstractmethod
    def raw(self) -> bytes:
        """The bytes of the prompt and of all that was added since."""

    @property
    @abstractmethod
    def error(self) -> float:
        """The amount by which the next byte's distribution may be off, as a total variation."""

    @property
    @abstractmethod
    def exact_from(self) -> int:
        """The offset in `text`, in bytes, from which on all tokenizations are summed."""

    @abstractmethod
    def _distribution(self) -> NextBytes:
        """p(byte | text)."""

    @abstractmethod
    def choose(
        self, choices: Iterable[str | bytes], *, stop: StopStrings = None, ended: bool = False
    ) -> ChoicePosterior:
        """The posterior over a list of continuations; see `CharLM.choose`.

        >>> import charwise
        >>> charwise.load().state("for i in ra").choose(["nge(", "ndom."]).top(1)[0][0]
        'nge('
        """

    @abstractmethod
    def _extended(self, data: bytes) -> Self:
        """The state after one byte, or after several at once."""

    @abstractmethod
    def _shortened(self, n: int) -> Self:
        """The state without the last n bytes, less than its parent lacks, or of the prompt."""

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")

    def next(self, constraint: Constraint | None = None) -> NextBytes:
        """Return p(byte | text) for the 256 bytes and the end of text.

        Args:
            constraint: renormalise over what it allows, see `NextBytes.under`.

        Raises:
            ZeroProbabilityError: if nothing can follow.
            ConstraintError: what is no constraint; if nothing that may follow has any probability.

        >>> import charwise
        >>> charwise.load().state("import nump").next().top(1)[0][0]
        'y'
        """
        nxt = self._distribution()
        return nxt if constraint is None else nxt.under(constraint)

    def next_chars(self, coverage: float = 0.99) -> Outcomes:
        """Return p(character | text), for the characters that hold `coverage` of the probability.

        The bytes of one character are summed out along the UTF-8 tree, the heaviest branch
        first. If the text ends inside a character, the characters that complete it are listed.
        The last hundredth of the probability may be spread over many thousands of characters, so
        the list also ends when 64 beginnings of longer characters have been taken apart; where
        bytes that are no character hold more than 1 - `coverage`, when characters not listed hold
        less. `Outcomes.missing` has the share of all that is not listed.

        Raises:
            SettingError: for a coverage outside (0, 1].

        >>> import charwise
        >>> charwise.load().state("import nump").next_chars(0.5).top(1)[0][0]
        'y'
        """
        return next_chars(self, coverage)

    def next_words(self, coverage: float = 0.9) -> Outcomes:
        """Return p(word | text), for the words that hold `coverage` of the probability.

        ASCII whitespace or the end of text ends a word. If the text ends inside a word, the rest of
        it is listed; "" is that the word ends here. At most 1,000 beginnings of words are followed,
        at about a model call each; `Outcomes.missing` has the share of the words not found.

        Raises:
            SettingError: for a coverage outside (0, 1].

        >>> import charwise
        >>> charwise.load().state("raise Val").next_words(0.5).top(1)[0][0]
        'ueError'
        """
        return next_words(self, coverage)

    def __add__(self, more: str | bytes) -> Self:
        """The state after more text.

        Raises:
            ZeroProbabilityError: if the model gives the longer text probability zero.
            ContextLengthError: if the text no longer fits the window and cannot be shortened.
        """
        data = to_bytes(more)
        if len(data) > 4:  # at once, in place of byte by byte
            return self._extended(data)
        state = self
        for byte in data:
            state = state._extended(bytes([byte]))
        return state

    def __sub__(self, n: int) -> Self:
        """The state with the last `n` characters deleted; nothing known is evaluated again.

        A character that the text ends inside of counts as one, and so does a byte that belongs
        to none: what `text` shows as one.

        Raises:
            SettingError: for what is no whole number, or if there are fewer characters than that.

        >>> import charwise
        >>> (charwise.load().state("naï") - 1).raw
        b'na'
        """
        count, size, raw = _whole_number(n), 0, self.raw
        for _ in range(count):
            if size == len(raw):
                raise SettingError(
                    f"cannot delete {shown(count)} characters of a text of {len(self.text)}."
                )
            size += utf8.last_character(raw[: len(raw) - size])
        return self.without_bytes(size)

    def without_bytes(self, n: int) -> Self:
        """The state with the last `n` bytes deleted; nothing known is evaluated again.

        Raises:
            SettingError: for what is no whole number, or if there are fewer bytes than that.

        >>> import charwise
        >>> charwise.load().state("naï").without_bytes(1).raw
        b'na\\xc3'
        """
        left = _whole_number(n)
        if left > len(self.raw):
            raise SettingError(f"cannot delete {shown(n)} bytes of a text of {len(self.raw)}.")
        state = self
        while left and state._parent is not None:
            step = len(state.raw) - len(state._parent.raw)
            if step > left:
                break
            state, left = state._parent, left - step
        return state._shortened(left) if left else state

    def complete(
        self, options: GenerationOptions | None = None, **keywords: Unpack[GenerationKeywords]
    ) -> list[Completion]:
        """Return completions of the text, without a second prefill.

        Arguments, order and errors are those of `CharLM.complete`.

        >>> import charwise
        >>> state = charwise.load().state("import nu")
        >>> (state + "mp").complete(max_new_bytes=1)[0].text
        'y'
        """
        options = options_of(options, keywords)
        return self._completions(options, options.limit())

    def _completions(self, options: GenerationOptions, limit: Limit) -> list[Completion]:
        """`complete`, where the time budget began before."""
        cursor: Any = self
        if options.conditioning == "global":
            return sum_members(self, options) or sample(cursor, options, limit)
        return draw_valid(lambda some: Generation(cursor, some, limit).completions(), options)

    def stream(
        self, options: GenerationOptions | None = None, **keywords: Unpack[GenerationKeywords]
    ) -> Iterator[str]:
        """Yield one completion in pieces of whole characters, as it is drawn.

        Under a JSON schema it comes in one piece, once it is known to be valid.
        Arguments and errors are those of `CharLM.stream`.

        >>> import charwise
        >>> "".join(charwise.load().state("import nump").stream(max_new_bytes=1))
        'y'
        """
        options = options_of(options, keywords)
        return self._pieces(options, options.limit())

    def _pieces(self, options: GenerationOptions, limit: Limit) -> Iterator[str]:
        """`stream`, where the time budget began before."""
        options.refuse("n progress conditioning", "stream")
        if has_check(options.constraint):
            return self._in_one_piece(options, limit)
        cursor: Any = self
        return Generation(cursor, options, limit).pieces()

    def _in_one_piece(self, options: GenerationOptions, limit: Limit) -> Iterator[str]:
        """A completion that is checked as a whole, once it is valid."""
        yield from (one.text for one in self._completions(options, limit) if one.text)

    def _renewed(self) -> Self:
        """The same state on a tree of its own, with nothing else evaluated."""
        raise NotImplementedError


def _whole_number(n: object) -> int:
    """How many to delete."""
    try:
        count = -1 if isinstance(n, bool) else operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < 0:
        raise SettingError(f"cannot delete {shown(n)} of a text: give a whole number, 0 or more.")
    return count
