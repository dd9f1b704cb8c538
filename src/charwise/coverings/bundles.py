"""Bundles (Appendix D): a context, and the tokens after it that agree with the text so far.

    →p(σ) = Σ_{δ : κ(δ) ≺ σ} →p_Δ(δ) · m_δ(σ[|κ(δ)|:])                                        (*)

A bundle is one term of (*): all members of a covering that differ only in their last token (Vieira
et al. 2025). The beam and the cursor keep different bundles, and ask the same of them: which byte
follows (eq. 8, 9), which part goes on with a byte, and which contexts begin where the text ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.engine import TokenTree
from charwise.tokens.index import END_OF_TOKEN


class Extension(NamedTuple):
    """A context that ends where the text does, not evaluated yet; its weight bounds its share."""

    log_weight: float
    parent: int
    token: int


class Bundle(NamedTuple):
    """A context δ, and the range of the tokens after it that agree with the text σ so far."""

    node: int
    log_weight: float  # log →p_Δ(δ), nats
    depth: int  # |σ| − |κ(δ)|: bytes of the next token that the text has fixed
    lo: int  # the range, in sorted order, of the tokens that start with them
    hi: int
    log_p: float  # log_weight + log of the range's mass: the bundle's share of →p(σ)

    @classmethod
    def begin(cls, tree: TokenTree, node: int, log_weight: float) -> Bundle:
        """The bundle of a context that spells the text: all tokens may follow, and the end."""
        return cls(node, log_weight, 0, 0, len(tree.index.sorted), log_weight)

    @classmethod
    def open(cls, tree: TokenTree, extensions: Sequence[Extension]) -> list[Bundle]:
        """Evaluate contexts in one batch; each becomes the bundle of all its next tokens."""
        paths = tree.extend([(extension.parent, [extension.token]) for extension in extensions])
        return [
            cls.begin(tree, node, extension.log_weight)
            for [node], extension in zip(paths, extensions, strict=True)
        ]

    def narrow(self, tree: TokenTree, byte: int) -> Bundle | None:
        """The part that goes on with a byte (`filter` of the paper); None if that has no mass."""
        lo, hi = tree.index.narrow(self.lo, self.hi, self.depth, byte)
        mass = float(tree.row(self.node).in_order[lo:hi].sum())
        if mass <= 0:
            return None
        log_p = self.log_weight + math.log(mass)
        return Bundle(self.node, self.log_weight, self.depth + 1, lo, hi, log_p)

    def extend(self, tree: TokenTree) -> list[Extension]:
        """The contexts that the tokens ending where the text does make, not evaluated."""
        index, in_order = tree.index, tree.row(self.node).in_order
        extensions = []
        for at in range(self.lo, self.hi):
            if len(index.sorted[at]) != self.depth:
                break
            if in_order[at] > 0:
                weight = self.log_weight + math.log(in_order[at])
                extensions.append(Extension(weight, self.node, int(index.ids[at])))
        return extensions


def next_byte_masses(
    tree: TokenTree, bundles: Sequence[Bundle]
) -> tuple[NDArray[np.float64], float]:
    """`[257]`: →p(σ·byte) / s, at 256 p(σ) / s; log s, the scale, nats (eq. 8, 9, unnormalised).

    The scale is the heaviest share of →p(σ), not the heaviest context: that may spell none of it.
    Tokens that end where the text does add nothing: what follows them is a bundle of its own.
    """
    scale = max((bundle.log_p for bundle in bundles), default=-math.inf)
    parts = []
    for bundle in bundles:
        row = tree.row(bundle.node)
        part = tree.index.next_byte_masses(row.in_order, bundle.lo, bundle.hi, bundle.depth)
        part[END_OF_TOKEN] = row.end if bundle.depth == 0 else 0.0
        parts.append((bundle.log_weight, part))
    return sum_masses(parts, scale), scale


def sum_masses(
    parts: Iterable[tuple[float, NDArray[np.float64]]], scale: float
) -> NDArray[np.float64]:
    """Return the sum of `[257]` masses, each with the log of its weight, by exp(scale)."""
    masses = np.zeros(257)
    for log_weight, part in parts:
        # The weight of a part and its mass apart neither overflow nor underflow.
        if (mass := float(part.sum())) > 0 and min(log_weight, scale) > -math.inf:
            masses += math.exp(log_weight + math.log(mass) - scale) * (part / mass)
    return masses


def log(x: float) -> float:
    """Return the natural logarithm, −inf at 0."""
    return math.log(x) if x > 0 else -math.inf


def log_sum(logs: Sequence[float]) -> float:
    """Return log Σ exp, of a list of logs that may be empty or −inf."""
    top = max(logs, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(x - top) for x in logs))
