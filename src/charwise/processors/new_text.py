"""What a healed completion adds to its prompt, read off its token ids as they arrive.

A healed completion writes the end of the prompt again before it goes on. The client has that
text already: only the bytes beyond it are new. Engines that search their whole output for stop
strings would find them in the old text too, so the search is here as well.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from charwise.errors import HealingError
from charwise.tokens.vocabulary import Vocabulary


class HealedPrompt(NamedTuple):
    """A prompt cut in two, and how many of its tokens were given back."""

    kept: list[int]
    forced: bytes
    given_back: int


class Continuation:
    """One completion: forced text first, then new text, which ends before a stop string.

    Args:
        vocabulary: of the model.
        forced: the bytes that the completion starts with.
        stop: strings that end the new text; matches that begin in the forced text do not count.
        include_stop: whether the text keeps the stop string that ended it.
        min_tokens: stop strings that are complete after so many tokens do not count.
        specials: whether special tokens appear in the text, by their spelling.

    Attributes:
        text: the new text so far. Bytes that are not UTF-8 are U+FFFD in it, and a last
            character that is not complete is missing.
        tokens: how many tokens were generated, up to the one that ended the text.
        stopped: the stop string that was found.

    >>> vocabulary = Vocabulary.from_bytes([b"rang", b"e", b"range", b"(", b"):\\n"])
    >>> new = Continuation(vocabulary, b"rang", stop=["\\n"])
    >>> new.add([2]), new.take()
    (None, 'e')
    >>> new.add([3, 4, 1]), new.take(), new.stopped, new.tokens
    (None, '():', '\\n', 3)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        forced: bytes,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        specials: bool = False,
    ) -> None:
        self.text = ""
        self.tokens = 0
        self.stopped: str | None = None
        self.left = forced
        self._vocabulary = vocabulary
        self._stop = [string for string in stop if string]
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._specials = specials
        self._held = 0 if include_stop else max(map(len, self._stop), default=1) - 1
        self._taken = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(forced)  # a character that the prompt began ends in the new text

    def add(self, ids: Iterable[int]) -> None:
        """Append generated tokens; those after a stop string are ignored.

        Raises:
            HealingError: the tokens do not reproduce the forced text: nothing masked them.
        """
        for id in ids:
            if self.stopped is not None:
                return
            self.tokens += 1
            before = len(self.text)
            self.text += self._decoder.decode(self._beyond(id))
            if self._stop and self.tokens > self._min_tokens:
                self._cut_at_stop(before)

    def take(self, final: bool = False) -> str:
        """New text not handed out yet, without what may be the start of a stop string."""
        end = len(self.text)
        if not final and self.stopped is None:
            end = max(self._taken, end - self._held)
        text = self.text[self._taken : end]
        self._taken = end
        return text

    def _beyond(self, id: int) -> bytes:
        """The bytes of a token that lie beyond the forced text."""
        token = self._vocabulary.tokens[id]
        if token is None:
            if self.left:
                raise _left_the_text(self.left, f"the special token {id}")
            return self._vocabulary.special.get(id, "").encode() if self._specials else b""
        if not self.left:
            return token
        if not (self.left.startswith(token) or token.startswith(self.left)):
            raise _left_the_text(self.left, repr(token))
        new, self.left = token[len(self.left) :], self.left[len(token) :]
        return new

    def _cut_at_stop(self, before: int) -> None:
        """End the text at the stop string that is complete first, of those that just became so."""
        found = []
        for string in self._stop:
            at = self.text.find(string, max(0, before - len(string) + 1))
            if at >= 0:
                found.append((at + len(string), -len(string), string))
        if found:
            end, _, self.stopped = min(found, key=lambda match: match[0])
            self.text = self.text[: end if self._include_stop else end - len(self.stopped)]


def may_match_in(forced: bytes, stop: str) -> bool:
    """Whether a match of a stop string could begin inside the forced text.

    >>> may_match_in(b"x:\\n    ret", "\\n"), may_match_in(b"ab", "bc"), may_match_in(b"ab", "c")
    (True, True, False)
    """
    wanted = stop.encode()
    return any(wanted.startswith(forced[at : at + len(wanted)]) for at in range(len(forced)))


def _left_the_text(left: bytes, token: str) -> HealingError:
    return HealingError(
        f"the completion must go on with {left!r}, but the engine wrote {token}: it was not "
        "masked. Check that charwise's logits processor is installed where the engine runs, and "
        "that no other setting (allowed tokens, bad words, a grammar) forbids that text."
    )
