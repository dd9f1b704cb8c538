"""Several models as one, over characters: mixtures, products, and more, with any tokenizers.

    both = charwise.combine.mixture([lm1, lm2], weights=[0.5, 0.5])
    both.next("x"), both.score("x"), both.complete("x")

docs/combine.md says what each is a distribution of, and derives what is computed.
"""

from __future__ import annotations

from charwise.combine.combination import (
    Combination,
    contrast,
    maximum,
    minimum,
    mixture,
    product,
    proxy,
)
from charwise.combine.members import Member, member
from charwise.combine.state import CombinedState

__all__ = [
    "Combination",
    "CombinedState",
    "Member",
    "contrast",
    "maximum",
    "member",
    "minimum",
    "mixture",
    "product",
    "proxy",
]
