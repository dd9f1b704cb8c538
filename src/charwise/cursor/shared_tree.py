"""A token tree that many states share: the prefill, and all that was evaluated after it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from charwise.coverings.bundles import Bundle
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import ContextLengthError
from charwise.scoring.effort import Effort, Limits
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Opening

#: Canonical tokens before the cursor whose alternatives are summed over.
EXACT_TOKENS = 12

#: A text of so few tokens is summed over as a whole.
WHOLE_TOKENS = 24

#: Bytes of log-probabilities that one tree keeps at most.
_RETAINED = 2**28


class History(NamedTuple):
    """From where on all tokenizations of a text are to be summed, if that is far back.

    >>> History(0, Effort(8)).exact_from
    0
    """

    exact_from: int  # offset in the text, bytes
    effort: Effort  # as for a score


@dataclass(frozen=True)
class Conditions:
    """The model, and all that a text is read under.

    >>> import charwise
    >>> lm = charwise.load()
    >>> Conditions(lm.engine, lm.index, Opening(lm.vocabulary.bos_ids, b"")).limits.contexts
    100000
    """

    engine: TokenLM
    index: SortedVocabulary
    opening: Opening  # start token and special tokens included
    history: History | None = None  # from where on all tokenizations are summed, if that is far
    limits: Limits = field(default_factory=Limits)  # bounds on what each sum may evaluate


class SharedTree:
    """One token tree, shared by all states that grew from the same prompt.

    Attributes:
        conditions: the model, and all that the text is read under.
        engine, index, opening, limits: of those.
        given: the text's first canonical tokens: with `opening`, what the root is conditioned on.
        start: bytes of the text before the root: after them, all alternatives count.
        path: tokens after the root that are evaluated with it, as are the shorter tokens that each
            of them starts with: the alternatives that can be told from the text alone.
        summed: whether that is a long text, of which only what covers its end is kept.
        evaluated: the tree, and the rows of the contexts asked about so far.
        lock: held while the tree or the evaluated rows change.

    >>> import charwise
    >>> lm = charwise.load()
    >>> opening = Opening(lm.vocabulary.bos_ids, b"")
    >>> conditions = Conditions(lm.engine, lm.index, opening)
    >>> shared = SharedTree(conditions, lm.vocabulary.encode("import"), 6)
    >>> node = shared.evaluated.extend([(0, lm.vocabulary.encode(" os")[0])])[0]
    >>> shared.length(node) - shared.length(0)
    1
    >>> shared.drop([node])
    """

    def __init__(
        self,
        conditions: Conditions,
        given: Sequence[int],
        start: int,
        path: Sequence[int] = (),
        *,
        summed: bool = False,
    ) -> None:
        self.conditions = conditions
        self.engine, self.index = conditions.engine, conditions.index
        self.opening, self.limits = conditions.opening, conditions.limits
        self.given = list(given)
        self.start = start
        self.summed = summed
        edges, index = list(enumerate(path)), self.index
        for node, token in enumerate(path):
            shorter = index.prefixes(index.vocabulary.tokens[token] or b"")
            edges += [(node, prefix) for prefix in shorter]
        tree = self.engine.tree([*self.opening.ids, *self.given], edges)
        self.evaluated = EvaluatedRows(tree, index, edges=edges, retain=True)
        self.lock = threading.RLock()
        self._dropped: set[int] = set()
        self._settled = 0  # nodes of a long text, nearly all of which were dropped

    @property
    def left_out(self) -> int:
        """Bytes at the beginning of the text that the window has no room for."""
        tokens = self.index.vocabulary.tokens
        return self.start - sum(len(tokens[id] or b"") for id in self.given)

    def length(self, node: int) -> int:
        """Tokens of a node's whole context, the opening included."""
        return len(self.opening.ids) + len(self.given) + self.evaluated.tree.depth(node)

    @property
    def room(self) -> int | None:
        """Most tokens after the root that fit the window; None where there is no bound."""
        window = self.engine.window
        return None if window is None else window - self.length(0)

    def outgrown(self, bundles: Sequence[Bundle]) -> bool:
        """Whether these bundles are near the end of the window, or the tree holds too much."""
        most = max(256, min(4096, _RETAINED // (4 * self.index.vocabulary.width)))
        if self.evaluated.tree.size - self._settled > most:
            return True
        longest = max(self.length(bundle.node) for bundle in bundles)
        return self.engine.window is not None and longest >= self.engine.window - 1

    def keep(self, nodes: Sequence[int]) -> None:
        """Free all contexts but these and those that they go on from.

        >>> import charwise
        >>> shared = charwise.load().state("import nump").shared
        >>> size = shared.evaluated.nbytes
        >>> shared.keep([1])
        >>> shared.evaluated.tree.depth(1), shared.evaluated.nbytes < size
        (1, True)
        """
        with self.lock:
            kept = self.evaluated.path_of(nodes)
            self._dropped.update(set(range(self.evaluated.tree.size)) - kept)
            self.evaluated.keep(sorted(kept))

    def settle(self, nodes: Sequence[int]) -> None:
        """`keep` the contexts that cover the end of a long text, before there is a state of it."""
        self.keep(nodes)
        self._settled = self.evaluated.tree.size

    def restart(self) -> None:
        """Begin again with the root alone, before there is a state."""
        with self.lock:
            tree = self.engine.tree([*self.opening.ids, *self.given])
            self.evaluated = EvaluatedRows(tree, self.index, retain=True)
            self._dropped.clear()

    def drop(self, nodes: Sequence[int]) -> None:
        """Free contexts that no state refers to."""
        if nodes:
            with self.lock:
                self._dropped.update(nodes)
                all_nodes = range(self.evaluated.tree.size)
                self.evaluated.keep([node for node in all_nodes if node not in self._dropped])


def prefill(conditions: Conditions, whole: bytes) -> tuple[SharedTree, list[int]]:
    """A tree after all but the last tokens of a text, and those: the canonical tokens that count.

    With a history those are all from there on, as far as half of the window goes.

    Of a text longer than the window, the beginning is left out; in a window of few tokens, fewer
    count than elsewhere, since alternatives may take twice as many.

    Raises:
        ContextLengthError: if what is before the text leaves no room for those tokens.

    >>> import charwise
    >>> lm = charwise.load()
    >>> opening = Opening(lm.vocabulary.bos_ids, b"")
    >>> conditions = Conditions(lm.engine, lm.index, opening)
    >>> shared, rest = prefill(conditions, b"import numpy as np\\n" * 20)
    >>> len(rest), len(shared.given) > 60
    (12, True)
    """
    index, opening, history = conditions.index, conditions.opening, conditions.history
    vocabulary, window = index.vocabulary, conditions.engine.window
    canonical = vocabulary.encode_beginning(whole)
    exact, most = EXACT_TOKENS, WHOLE_TOKENS
    if history is not None:
        ends = np.cumsum([index.length(token) for token in canonical])
        # From 0 on: with the lead, which tokens that begin with it are not to be cut off from.
        offset = history.exact_from and len(opening.lead) + history.exact_from
        exact = max(exact, int((ends > offset).sum()))
    if window is not None:
        # Some of it is left free for what a state grows by.
        left = window - len(opening.ids) - min(64, window // 8)
        exact, most = min(exact, left // 2), min(most, left // 2)
        if exact < 1:
            raise ContextLengthError(
                f"what is before the text ({len(opening.ids)} tokens) leaves no room for it "
                f"in the model's window of {window}. Shorten it."
            )
    given = canonical[:-exact] if len(canonical) > most else []
    rest = canonical[len(given) :]
    start = len(vocabulary.decode(given))
    if window is not None:
        room = left - 2 * len(rest)
        given = given[max(0, len(given) - room) :]
    summed = len(rest) > WHOLE_TOKENS
    path = () if summed else rest
    return SharedTree(conditions, given, start, path, summed=summed), rest
