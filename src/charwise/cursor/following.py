"""A constraint beside a text that is drawn token by token.

A token is drawn as if there were no constraint. If it may follow, it was drawn as often as it would
be from what may; if not, another is drawn from that alone:

    p(t) + (1 − Z) p(t) / Z = p(t) / Z,        Z = Σ { p(t) : t may follow }

So no mask is made where the model does by itself what the constraint says.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import torch

from charwise.constraints.constraint import END, Constraint, Flags, TokenConstraint
from charwise.cursor.sampling import Sampling, draw_tokens
from charwise.errors import ConstraintError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.utf8 import pending

#: Where fewer than one token in so many may follow, the others are not looked at.
_SPARSE = 8


class Following:
    """What may follow a text that is being drawn: over bytes, quick to ask, and over tokens.

    Attributes:
        allowed: `[257]` the bytes that may follow; at 256 whether the text may end here.

    >>> from charwise.constraints import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"n", b"no", b"not", None], end_ids=[3]))
    >>> following = Following.of(choices(["no", "n't"]), index)
    >>> row = torch.tensor([[0.1, 0.3, 0.5, 0.1]]).log()[0]
    >>> token, following = following.draw(2, row, Sampling(), torch.Generator())
    >>> token, following.closed
    (1, True)
    """

    def __init__(
        self,
        constraint: Constraint,
        tokens: TokenConstraint,
        index: SortedVocabulary,
        since: bytes = b"",
    ) -> None:
        self._constraint, self._tokens, self._index = constraint, tokens, index
        self._since = since  # what came after `tokens`, which no mask was asked of since
        self.allowed: Flags = constraint.allowed()

    @classmethod
    def of(cls, constraint: Constraint, index: SortedVocabulary) -> Self:
        """A constraint, where the text begins."""
        return cls(constraint, constraint.over(index), index)

    @property
    def closed(self) -> bool:
        """Whether no byte may follow."""
        return not self.allowed[:END].any()

    def after(self, data: bytes) -> Self:
        """The same after more bytes.

        Raises:
            ConstraintError: if they may not follow.
        """
        further = self._constraint.after(data)
        return type(self)(further, self._tokens, self._index, self._since + data)

    def draw(
        self, token: int, row: torch.Tensor, sampling: Sampling, generator: torch.Generator
    ) -> tuple[int, Self]:
        """A token drawn without the constraint, if it may follow, or another; what may follow that.

        Args:
            token: drawn from the row.
            row: `[width]` log-probabilities.
            sampling, generator: how it was drawn.

        Returns:
            −1 for the token if none may follow, or all that may have probability zero.

        Raises:
            ConstraintError: where the constraint is too complex to be followed.
        """
        if not sampling.truncates and self._may_come(token):
            try:
                return token, self._past(token)
            except ConstraintError:
                pass
        if self._since:
            self._tokens, self._since = self._tokens.after(self._since), b""
        mask = self._tokens.mask()
        if not mask.any():
            return -1, self
        if _SPARSE * np.count_nonzero(mask) < len(mask):
            ids = torch.from_numpy(np.flatnonzero(mask)).to(row.device)
            some = row[ids]
        else:
            ids = None
            some = row.masked_fill(torch.from_numpy(~mask).to(row.device), -torch.inf)
        if float(some.max()) == -math.inf:
            return -1, self
        drawn = int(draw_tokens(some[None], sampling, generator)[0])
        token = drawn if ids is None else int(ids[drawn])
        return token, self._past(token)

    def _may_come(self, token: int) -> bool:
        """Whether a token may follow, as far as its first byte says."""
        vocabulary = self._index.vocabulary
        if token in vocabulary.end_ids:
            return bool(self.allowed[END])
        data = vocabulary.tokens[token]
        return bool(data and self.allowed[data[0]])

    def _past(self, token: int) -> Self:
        """What may follow a token."""
        data = self._index.vocabulary.tokens[token]
        return self.after(data) if data else self


def check_begins(raw: bytes, constraint: Constraint) -> None:
    """Refuse a constraint on whole characters after a text that ends inside of one.

    Raises:
        ConstraintError: what the text ends with.
    """
    begun = pending(raw)
    if begun and constraint.characters:
        raise ConstraintError(
            f"the text ends inside a character ({begun!r}), and the constraint begins with a whole "
            "one: give whole characters, or choices(…), which may be any bytes."
        )
