"""The constraint that allows everything, for sampling where none was asked for."""

from __future__ import annotations

import numpy as np

from charwise.constraints.constraint import END, Flags, TokenConstraint
from charwise.constraints.walk import Walked
from charwise.tokens.index import SortedVocabulary


class Anything:
    """All byte strings.

    >>> bool(Anything().after(b"x").allowed().all())
    True
    """

    characters = False

    def allowed(self) -> Flags:
        """`[257]`: all of them."""
        return np.ones(END + 1, dtype=np.bool_)

    def after(self, data: bytes) -> Anything:
        """The same."""
        return self

    def over(self, index: SortedVocabulary) -> TokenConstraint:
        """The same over the tokens of a vocabulary."""
        return Walked(self, index)
