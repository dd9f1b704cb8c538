"""A token tree that many states share: the prefill, and all that was evaluated after it."""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol, Self

from charwise.coverings.bundles import Bundle
from charwise.cursor.distributions import NextBytes
from charwise.engine import TokenLM
from charwise.errors import LimitError, VocabularyError
from charwise.scoring.effort import Effort
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import PromptStart
from charwise.tokens.utf8 import last_bytes
from charwise.tokens.vocabulary import Vocabulary

#: Canonical tokens before the cursor whose alternatives are summed over.
EXACT_TOKENS = 12

#: A text of so few tokens is summed over as a whole.
WHOLE_TOKENS = 24

#: Bytes of log-probabilities that one tree keeps at most.
_RETAINED = 2**28


class SharedTree:
    """One token tree, shared by all states that grew from the same prompt.

    Its root is conditioned on the opening and on `canonical_ids`, which are `start` bytes of the
    text: after them, all alternatives count. The lock is held while the tree changes.
    """

    def __init__(
        self,
        engine: TokenLM,
        opening: PromptStart,
        canonical_ids: Sequence[int],
        start: int,
        paths: Sequence[Sequence[int]] = (),
    ) -> None:
        self.engine, self.opening = engine, opening
        self.index = SortedVocabulary.of(engine.vocabulary)
        self.canonical_ids = list(canonical_ids)
        self.start = start
        prompt = [*self.opening.ids, *self.canonical_ids]
        self.tree = self.engine.tree(prompt, [(0, path) for path in paths])
        self.lock = threading.RLock()

    @classmethod
    def prefill(
        cls, engine: TokenLM, opening: PromptStart, whole: bytes
    ) -> tuple[Self, list[list[int]]]:
        """A tree after all but the last tokens of a text, and the paths after it, evaluated.

        The first path is the canonical tokens that count, the others are `word_beginnings`. Of a
        text longer than the window, the beginning is left out, up to a line or a word if one begins
        in the next quarter. In a window of few tokens, fewer count than elsewhere, since
        alternatives may take twice as many.

        Raises:
            LimitError: if what is before the text leaves no room for those tokens.
        """
        vocabulary, window = engine.vocabulary, engine.window
        # What no window holds is not even encoded: that takes seconds for some megabytes.
        first = 0 if window is None else last_bytes(whole, window * vocabulary.max_token_bytes)
        canonical = vocabulary.encode_beginning(whole[first:])
        exact, most = EXACT_TOKENS, WHOLE_TOKENS
        if window is not None:
            # Some of it is left free for what a state grows by.
            free = window - len(opening.ids) - min(64, window // 8)
            exact, most = min(exact, free // 2), min(most, free // 2)
            if exact < 1:
                raise LimitError(
                    f"what is before the text ({len(opening.ids)} tokens) leaves no room for it "
                    f"in the model's window of {window}. Shorten it."
                )
        before = canonical[:-exact] if len(canonical) > most else []
        rest = canonical[len(before) :]
        start = first + len(vocabulary.decode(before))
        if window is not None:
            lost = max(0, len(before) - (free - 2 * len(rest)))
            if lost:
                most = lost + (len(before) - lost) // 4
                before = before[vocabulary.seam(before, range(lost, most + 1)) :]
        paths = [rest, *word_beginnings(vocabulary, whole[start:], 2 * len(rest))]
        return cls(engine, opening, before, start, paths), paths

    @property
    def left_out(self) -> int:
        """Bytes at the beginning of the text that the window has no room for."""
        tokens = self.index.vocabulary.tokens
        return self.start - sum(len(tokens[id] or b"") for id in self.canonical_ids)

    def length(self, node: int) -> int:
        """Tokens of a node's whole context, the opening included."""
        return len(self.opening.ids) + len(self.canonical_ids) + self.tree.depth(node)

    @property
    def room(self) -> int | None:
        """Most tokens after the root that fit the window; None where there is no bound."""
        window = self.engine.window
        return None if window is None else window - self.length(0)

    def outgrown(self, bundles: Sequence[Bundle]) -> bool:
        """Whether these bundles are near the end of the window, or the tree holds too much."""
        most = max(256, min(4096, _RETAINED // (4 * self.index.vocabulary.width)))
        if len(self.tree.live) > most:
            return True
        longest = max(self.length(bundle.node) for bundle in bundles)
        return self.engine.window is not None and longest >= self.engine.window - 1

    def keep(self, nodes: Sequence[int]) -> None:
        """Free all contexts but these and those that they go on from."""
        with self.lock:
            self.tree.keep(nodes)

    def drop(self, nodes: Iterable[int]) -> None:
        """Free contexts that no state refers to."""
        with self.lock:
            self.tree.drop(list(nodes))


class Cursor(Protocol):
    """The end of a text: a `State`, for the modules that it is made of."""

    shared: SharedTree
    whole: bytes
    effort: Effort

    @property
    def raw(self) -> bytes: ...
    @property
    def bundles(self) -> tuple[Bundle, ...]: ...
    @property
    def logprob(self) -> float: ...
    @property
    def at_root(self) -> bool: ...
    @property
    def exact_from(self) -> int: ...
    def next(self) -> NextBytes: ...
    def renewed(self) -> Self: ...
    def __add__(self, more: bytes, /) -> Self: ...


def word_beginnings(vocabulary: Vocabulary, text: bytes, most: int) -> list[list[int]]:
    """The canonical tokens of the beginnings of a text that end in its last word, longest first.

    Where a text stops inside of a word, its own last tokens may be none of the whole word's. Of
    more than `most` tokens, none are listed.
    """
    beginnings = list[list[int]]()
    for end in range(len(text) - 1, max(0, len(text) - 1 - EXACT_TOKENS), -1):
        with suppress(VocabularyError):  # no tokens are that long
            beginnings.append(vocabulary.encode(text[:end]))
        if text[end] in b" \n":
            break
    return [path for path in beginnings if len(path) <= most]
