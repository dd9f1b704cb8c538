"""Completions token by token, as everybody makes them: after a prompt's own tokens, or healed.

Healed, the prompt's last tokens are given back (`healing.cut`), and until they are written again
the scores of all tokens that do not agree with them are masked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from charwise.char_lm import CharLM
from charwise.coverings.bundles import Bundle
from charwise.cursor.drafts import Draft, Drafts
from charwise.cursor.shared_tree import Conditions, SharedTree
from charwise.healing import allowed_next
from charwise.serve.prompts import check_room
from charwise.tokens.prompts import Opening


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
            ContextLengthError: if the window has no room for a token.
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
            opening = Opening(root, b"")
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


class HealedDrafts(Drafts):
    """Drafts that begin with a forced text, which is not part of their bytes.

    Attributes:
        forced: what is given back.
    """

    forced = b""

    def heal(self, forced: bytes) -> HealedDrafts:
        """Begin with this text."""
        self.forced = forced
        self._owed = {id(draft): forced for draft in self.drafts}
        self._begun = {id(draft): b"" for draft in self.drafts}
        return self

    def begun(self, draft: Draft) -> bytes:
        """The part of the forced text that a draft's last token began with."""
        return self._begun[id(draft)] if draft.finish != "end" else b""

    def reachable(
        self, drafts: list[Draft], logprobs: torch.Tensor
    ) -> tuple[list[Draft], torch.Tensor]:
        """The drafts that can go on, and their rows, −inf where they may not."""
        if not any(self._owed[id(draft)] for draft in drafts):
            return drafts, logprobs
        rows = logprobs.clone()
        for row, draft in zip(rows, drafts, strict=True):
            if owed := self._owed[id(draft)]:
                allowed = torch.tensor(allowed_next(owed, self.shared.index), device=row.device)
                kept = row[allowed]
                row.fill_(-torch.inf)
                row[allowed] = kept - kept.logsumexp(-1)
        alive = (rows > -torch.inf).any(dim=1)
        for draft, lives in zip(drafts, alive.tolist(), strict=True):
            draft.finish = "" if lives else "dead end"
        return [draft for draft in drafts if not draft.finish], rows[alive]

    def take(self, draft: Draft, data: bytes) -> None:
        """Add the part of a token beyond the forced text."""
        owed = self._begun[id(draft)] = self._owed[id(draft)]
        self._owed[id(draft)] = owed[len(data) :]
        super().take(draft, data[len(owed) :])
