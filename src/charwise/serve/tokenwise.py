"""Completions token by token, as everybody makes them: after a prompt's own tokens, or healed.

Healed, the prompt's last tokens are given back (`healing.cut`), and until they are written again
the scores of all tokens that do not agree with them are masked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from charwise.char_lm import CharLM
from charwise.coverings.bundles import Bundle
from charwise.cursor.generation import Floats, Generation, Partial
from charwise.cursor.shared_tree import Conditions, SharedTree
from charwise.healing import allowed_next
from charwise.serve.prompts import check_room
from charwise.tokens.prompts import PromptStart


class _TokenCursor:
    """The end of a prompt's tokens: a `Cursor` after which tokens are drawn.

    Attributes:
        shared: the tree that knows the prompt.
        raw: the prompt's bytes, as far as the tree has them.
        cached: how many of its tokens were known before.
    """

    logprob = 0.0
    at_root = True

    def __init__(self, shared: SharedTree, node: int, raw: bytes, cached: int) -> None:
        self.shared = shared
        self.raw = raw
        self.cached = cached
        self.exact_from = len(raw)
        self.bundles = (Bundle(node, 0.0, 0, 0, len(shared.index.sorted), 0.0),)


class TokenTrees:
    """The trees of recent prompts: a common beginning is evaluated once.

    The one used longest ago is let go where there are too many.

    Args:
        lm: the model.

    >>> import charwise
    >>> lm = charwise.load()
    >>> trees = TokenTrees(lm)
    >>> ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode("import os")]
    >>> trees.after(ids).cached, trees.after([*ids, *lm.vocabulary.encode(".path")]).cached
    (0, 3)
    """

    def __init__(self, lm: CharLM) -> None:
        self.lm = lm
        self.kept: OrderedDict[tuple[int, ...], SharedTree] = OrderedDict()

    @property
    def size(self) -> int:
        """The bytes of the evaluated contexts that are kept."""
        return sum(shared.tree.nbytes for shared in list(self.kept.values()))

    def forget_oldest(self) -> bool:
        """Forget the longest unused entry; return False if it is the only one."""
        if len(self.kept) > 1:
            self.kept.popitem(last=False)
            return True
        return False

    def after(self, ids: Sequence[int]) -> _TokenCursor:
        """The cursor after these tokens.

        Raises:
            LimitError: if the window has no room for a token.
        """
        window, engine = self.lm.engine.window, self.lm.engine
        start = list(self.lm.vocabulary.bos_ids)
        check_room(len(ids), window)
        fitting = [root for root in self.kept if tuple(ids[: len(root)]) == root]
        root = max(fitting, key=len, default=None)
        # A tree of more nodes, or bytes of log-probabilities, is let go.
        grown = max(64, min(4096, 2**25 // (4 * self.lm.vocabulary.width)))
        if root is not None and self.kept[root].tree.size > grown:
            del self.kept[root]
            root = None
        if root is None:
            # The last tokens are nodes, so that a deletion goes back to one.
            root = tuple(ids[: max(1, len(start), len(ids) - 32)])
            opening = PromptStart(root, b"")
            conditions = Conditions(engine, self.lm.index, opening)
            self.kept[root] = SharedTree(conditions, [], 0)
            cached = 0
        else:
            cached = len(root)
        shared = self.kept[root]
        self.kept.move_to_end(root)
        if len(self.kept) > 256:
            self.kept.popitem(last=False)
        with shared.lock:
            size = shared.tree.size
            [nodes] = shared.tree.extend([(0, list(ids[len(root) :]))])
        cached += sum(node < size for node in nodes) if cached else 0
        raw = self.lm.vocabulary.decode(ids)
        return _TokenCursor(shared, nodes[-1] if nodes else 0, raw, cached)


class HealedGeneration(Generation):
    """Completions that begin with a forced text, which is not part of their bytes.

    Until it is written, tokens that neither begin nor continue it are masked.
    """

    def heal(self, forced: bytes) -> HealedGeneration:
        """Begin with this text."""
        self._left = {id(partial): forced for partial in self.partials}
        self._prefixes = {id(partial): b"" for partial in self.partials}
        return self

    def prefix(self, partial: Partial) -> bytes:
        """The part of the forced text that the last token began with."""
        return self._prefixes[id(partial)] if partial.finish != "end" else b""

    def draw(self, partials: Sequence[Partial], rows: Floats) -> None:
        """The next token of each, from its masked row."""
        masked = [self._renormalized(p, row) for p, row in zip(partials, rows, strict=True)]
        super().draw(partials, np.stack(masked))

    def _renormalized(self, partial: Partial, row: Floats) -> Floats:
        left = self._left[id(partial)]
        if not left:
            return row
        allowed, masked = allowed_next(left, self.shared.index), np.full_like(row, -np.inf)
        if np.isfinite(row[allowed]).any():
            masked[allowed] = row[allowed] - np.logaddexp.reduce(row[allowed])
        return masked

    def _take(self, partial: Partial, data: bytes) -> None:
        """Add the part of a token beyond the forced text."""
        left = self._prefixes[id(partial)] = self._left[id(partial)]
        self._left[id(partial)] = left[len(data) :]
        super()._take(partial, data[len(left) :])
