"""The new text of a healed completion, read off its token ids as they arrive.

A healed completion writes the end of the prompt again before it goes on. The client has that
text already: only the bytes beyond it are new, and only tokens with bytes beyond it count. An
engine counts, and searches stop strings in, all that it wrote; so both are done here as well.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from charwise.errors import SettingError, VocabularyError, shown
from charwise.healing.fim import missing_suffix
from charwise.healing.prompt import HealedPrompt
from charwise.tokens.stops import Stops, StopStrings
from charwise.tokens.vocabulary import Vocabulary


class Bounds(NamedTuple):
    """Where new text ends.

    Attributes:
        stop: strings that end it; matches that begin in the forced text do not count.
        include_stop: whether the text keeps the stop string that ended it.
        min_tokens: stop strings that are complete within so many counted tokens do not count.
        max_tokens: end after so many counted tokens; None for no bound.
    """

    stop: StopStrings = None
    include_stop: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None


_NONE = Bounds()


class Reader(NamedTuple):
    """Reads the completions of one healed prompt, as many as there are.

    Attributes:
        vocabulary: of the model.
        healed, bounds, may_be_lost: as for `Continuation`.

    >>> vocabulary = Vocabulary.from_bytes([b"rang", b"e", b"range", b"("])
    >>> reader = Reader(vocabulary, HealedPrompt([], b"rang", 1), Bounds(max_tokens=1))
    >>> reader.text([2, 3]), reader.text([0, 1, 3])
    ('e', 'e')
    """

    vocabulary: Vocabulary
    healed: HealedPrompt
    bounds: Bounds = _NONE
    may_be_lost: bool = False

    def continuation(self) -> Continuation:
        """The new text of a completion whose tokens are still to come."""
        return Continuation(self.vocabulary, self.healed, self.bounds, may_be_lost=self.may_be_lost)

    def text(self, ids: Iterable[int]) -> str:
        """The text that a whole completion adds to the prompt.

        Raises:
            VocabularyError: the tokens do not reproduce the forced text: nothing masked them.
        """
        new = self.continuation()
        new.add(ids)
        return new.take(final=True)


class Continuation:
    """One completion: forced text first, then new text, which ends before a stop string.

    Args:
        vocabulary: of the model.
        healed: the prompt. The completion starts with what is forced; a character may begin before
            that. The beginning of what comes after a middle is no part of it where a token ends it
            after that, and the middle ends before it writes more of what comes after.
        bounds: where the new text ends.
        specials: whether special tokens appear in the text, by their spelling.
        may_be_lost: whether the engine may miss the mask for a step, and ends such a completion.
            Its text is then empty; without this, or if it goes on, it is an error.

    Raises:
        SettingError: what is no healed prompt, or stop strings that are none.

    Attributes:
        left: what is still forced.
        tokens: how many tokens were generated, up to the one that ended the text.
        counted: how many of them go beyond the forced text.
        stopped: the stop string that was found.
        closed: whether a control token ended the text, such as one that comes before another file,
            or the beginning of the suffix.
        lost: whether a token left the forced text.

    >>> vocabulary = Vocabulary.from_bytes([b"rang", b"e", b"range", b"(", b"):\\n"])
    >>> new = Continuation(vocabulary, HealedPrompt([], b"rang", 1), Bounds(["\\n"]))
    >>> new.add([2]), new.take()
    (None, 'e')
    >>> new.add([3, 4, 1]), new.take(), new.stopped, new.tokens
    (None, '():', '\\n', 3)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        healed: HealedPrompt,
        bounds: Bounds = _NONE,
        *,
        specials: bool = False,
        may_be_lost: bool = False,
    ) -> None:
        if not isinstance(healed, HealedPrompt):
            raise SettingError(
                f"give the healed prompt, as heal_prompt returns it: {shown(healed)}."
            )
        self.left = healed.forced
        self.tokens = 0
        self.counted = 0
        self.stopped: str | None = None
        self.closed = False
        self.lost = False
        self._may_be_lost = may_be_lost
        self._vocabulary = vocabulary
        self._stops = Stops(bounds.stop)
        self._until = Stops(healed.until or None)
        self._include_stop = bounds.include_stop
        self._min_tokens = bounds.min_tokens
        self._max_tokens = bounds.max_tokens
        self._specials = specials
        self._ending = healed.ending
        self._new = bytearray()
        self._taken = 0
        # A character that these begin ends in the new text.
        self._begun = (vocabulary.decode(healed.kept[-3:]) + healed.forced)[-3:]
        self._decoder = self._fresh_decoder()

    @property
    def ended(self) -> bool:
        """Whether a control token or a stop string ended it, or as many tokens as may be."""
        return self.closed or self.stopped is not None or self.counted == self._max_tokens

    @property
    def text(self) -> str:
        """The new text so far, with the part that `take` holds back.

        Bytes that are not UTF-8 are U+FFFD in it, and a last character that is not complete is
        missing.
        """
        return self._fresh_decoder().decode(self._new)

    def add(self, ids: Iterable[int]) -> None:
        """Append generated tokens; those after the end are ignored.

        Raises:
            VocabularyError: the tokens do not reproduce the forced text: nothing masked them.
        """
        for id in ids:
            if self.ended:
                return
            begun = not self.left
            if begun and not self.lost and id in self._vocabulary.closing:
                self.add_silent()
                self.closed = True
                return
            more = self._beyond(id)
            self._count(begun or bool(more))
            before = len(self._new)
            self._new += more
            if self._stops and self.counted > self._min_tokens:
                match = self._stops.first(self._new, before)
                if match is not None:
                    begin, end = match
                    self.stopped = self._new[begin:end].decode("utf-8", "replace")
                    del self._new[end if self._include_stop else begin :]
            rejoined = self._until.first(self._new, before) if self._until else None
            if rejoined is not None:
                del self._new[rejoined[0] :]
                self.closed = True

    def add_silent(self) -> None:
        """Count a token that ended the text and has no text of its own."""
        if not self.ended:
            self._count(not self.left)
            self.close()

    def close(self) -> None:
        """A token ended the text: the ending is no part of it.

        >>> vocabulary = Vocabulary.from_bytes([b"in", b"dex"])
        >>> new = Continuation(vocabulary, HealedPrompt([], b"", 0, ending=b"ex"))
        >>> new.add([0, 1]), new.close(), new.take(final=True)
        (None, None, 'ind')
        """
        if not self.left and self._new.endswith(self._ending):
            del self._new[len(self._new) - len(self._ending) :]

    def take(self, final: bool = False) -> str:
        """New text not handed out yet, less a tail that may begin a stop string or the ending."""
        end = len(self._new)
        if not (final or self.ended):
            held = 0 if self._include_stop else self._stops.held(self._new)
            held = max(held, self._until.held(self._new), self._begun_ending())
            end = max(self._taken, end - held)
        part = self._new[self._taken : end]
        self._taken += len(part)
        return self._decoder.decode(part)

    def _begun_ending(self) -> int:
        """How many bytes at the end of the text may be the ending, or begin it."""
        if not self._ending:
            return 0
        last = bytes(self._new[-len(self._ending) :])
        return len(self._ending) - len(missing_suffix(last, self._ending))

    def _count(self, beyond: bool) -> None:
        self.tokens += 1
        self.counted += beyond

    def _fresh_decoder(self) -> codecs.IncrementalDecoder:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._begun)
        return decoder

    def _beyond(self, id: int) -> bytes:
        """The bytes of a token that lie beyond the forced text."""
        token = self._vocabulary.tokens[id]
        if self.lost:
            if token is None:
                return b""
            raise _left_the_text(self.left, "more after a token that left it")
        if token is None:
            if self.left:
                raise _left_the_text(self.left, f"the special token {id}")
            return self._vocabulary.special.get(id, "").encode() if self._specials else b""
        if not self.left:
            return token
        if not (self.left.startswith(token) or token.startswith(self.left)):
            if self._may_be_lost:
                self.lost = True
                return b""
            raise _left_the_text(self.left, repr(token))
        new, self.left = token[len(self.left) :], self.left[len(token) :]
        return new


def _left_the_text(left: bytes, token: str) -> VocabularyError:
    return VocabularyError(
        f"the completion must go on with {shown(left)}, but the engine wrote {token}: it was not "
        "masked. Check that charwise's logits processor is installed where the engine runs, and "
        "that no other setting (allowed tokens, bad words, a grammar) forbids that text."
    )
