"""The new text of a healed completion, read off its token ids as they arrive.

Only bytes beyond the forced text are new, and only tokens with such bytes count. An engine counts,
and searches stop strings in, all that it wrote; so both are done here.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from charwise.errors import VocabularyError, quote
from charwise.healing.fim import missing_suffix
from charwise.healing.forced import HealedPrompt
from charwise.tokens.stops import Stops, StopStrings
from charwise.tokens.utf8 import decoder_after
from charwise.tokens.vocabulary import Vocabulary


class Bounds(NamedTuple):
    """Where new text ends.

    Attributes:
        stop: strings that end it; matches that begin in the forced text do not count.
        include_stop: whether the text keeps the stop string that ended it.
        min_tokens: stop strings that are complete within so many counted tokens do not count.
        max_tokens, max_bytes: counted tokens and new bytes; None for no bound.
        ends: tokens that end it, besides the vocabulary's `closing`.
    """

    stop: StopStrings = None
    include_stop: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    max_bytes: int | None = None
    ends: Collection[int] = ()


class Continuation:
    """One completion: forced text first, then new text, which ends within the bounds.

    What a middle must end with is no part of its text where a token ends it after that.

    Attributes:
        left: what is still forced.
        tokens: how many tokens were generated, up to the one that ended the text.
        counted: how many of them go beyond the forced text.
        stopped: the stop string that ended the text.
        closed: whether a token ended the text.
        ended: whether a token, a stop string or a limit ended it.
    """

    def __init__(
        self, vocabulary: Vocabulary, healed: HealedPrompt, bounds: Bounds | None = None
    ) -> None:
        bounds = bounds or Bounds()
        self.left = healed.forced
        self.tokens = 0
        self.counted = 0
        self.stopped: str | None = None
        self.closed = False
        self.ended = False
        self._vocabulary = vocabulary
        self._bounds = bounds
        self._stops = Stops(bounds.stop)
        self._ends = vocabulary.closing.union(bounds.ends)
        self._ending = healed.ending
        self._new = bytearray()
        self._taken = 0
        self._decoder = decoder_after(healed.before)

    @property
    def raw(self) -> bytes:
        """The new bytes so far."""
        return bytes(self._new)

    def add(self, ids: Iterable[int]) -> None:
        """Append generated tokens; those after the end are ignored.

        Tokens that do not reproduce the forced text, as nothing masked them, are a
        `VocabularyError`.
        """
        for id in ids:
            if self.ended:
                return
            free = not self.left
            self.tokens += 1
            if free and id in self._ends:
                self.counted += 1
                self.closed = self.ended = True
                if self._new.endswith(self._ending):
                    del self._new[len(self._new) - len(self._ending) :]
                return
            new = self._beyond(id)
            self.counted += free or bool(new)
            self._append(new)

    def take(self, final: bool = False) -> str:
        """New text not handed out yet, less a tail that may begin a stop string or the ending.

        Bytes that are not UTF-8 are U+FFFD in it, and a last character that is not complete is
        missing.
        """
        end = len(self._new)
        if not (final or self.ended):
            held = 0 if self._bounds.include_stop else self._stops.held(self._new)
            partial = len(self._ending) - len(missing_suffix(self._new, self._ending))
            end = max(self._taken, end - max(held, partial))
        part = self._new[self._taken : end]
        self._taken += len(part)
        return self._decoder.decode(part)

    def _append(self, new: bytes) -> None:
        """Add bytes of a token to the new text, and end it where a bound says so."""
        bounds, before = self._bounds, len(self._new)
        self._new += new
        if self._stops and self.counted > bounds.min_tokens:
            match = self._stops.first(self._new, before)
            if match is not None:
                begin, end = match
                self.stopped = self._new[begin:end].decode("utf-8", "replace")
                del self._new[end if bounds.include_stop else begin :]
        full = bounds.max_bytes is not None and len(self._new) >= bounds.max_bytes
        if full:
            del self._new[bounds.max_bytes :]
        self.ended = full or self.stopped is not None or self.counted == bounds.max_tokens

    def _beyond(self, id: int) -> bytes:
        """The bytes of a token that lie beyond the forced text."""
        token = self._vocabulary.tokens[id]
        if not self.left:
            return token or b""
        if token is None or not (self.left.startswith(token) or token.startswith(self.left)):
            name = f"the special token {id}" if token is None else repr(token)
            raise VocabularyError(
                f"the completion must go on with {quote(self.left)}, but the engine wrote "
                f"{name}: it was not masked, or there are fewer ways to go on than beams to "
                "return. Check that no other setting (allowed tokens, bad words, a grammar) "
                "forbids that text."
            )
        new, self.left = token[len(self.left) :], self.left[len(token) :]
        return new
