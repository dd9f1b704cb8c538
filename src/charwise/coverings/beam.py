"""Bundled beam summing (Vieira et al. 2025, §3.2, Appendix D), with the threshold of Appendix G.

As its authors define it, over bytes, for comparison and reproduction:

    Bundle.filter, Bundle.extend   `Bundle.narrow`, `Bundle.extend`
    beam                           `Beam.step`, once for each byte
    next_character_probability     `Beam.next_byte_masses`, before it divides by the sum

Two differences change no result: bundles are ranges of the sorted vocabulary instead of tries, and
the top K is found lazily. (A bundle's weight only falls as bytes are consumed. So extensions whose
weight is below the K-th known one need not be evaluated.) Two do:

- Before the next byte is known, τ is θ times the sum of the whole beam. Appendix G has no threshold
  there.
- `next_byte_masses` has the end of the text, which Appendix D leaves out.

An extension weighs →p_Δ(δ·δ′), as p/Z · p′ of Appendix D is read. As there, a member that ends
where the text does stays in its context's bundle until the next byte. The buckets of §3.2 count it
apart, so the two prune differently, although Appendix D says that they keep the same elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import Bundle, Extension, log, log_sum, next_byte_masses
from charwise.engine import TokenTree
from charwise.errors import ZeroProbabilityError


@dataclass(frozen=True)
class Beam:
    """The state of beam summing after some text; extend it byte by byte with `step`.

    Attributes:
        k: how many bundles are kept.
        theta: a bundle is not extended if, before a byte, it weighs less than τ: this share of
            what the bundles weigh once they are narrowed by the byte (Appendix G).
        raw: the bytes consumed.
        bundles: heaviest first.
        log_dropped: log of all the mass dropped on the way, each at the moment it was dropped:
            the true →p(text) is at most the beam's plus this.
    """

    tree: TokenTree
    k: int
    theta: float = 0.0
    raw: bytes = b""
    bundles: tuple[Bundle, ...] = ()
    log_dropped: float = -math.inf

    @classmethod
    def start(cls, tree: TokenTree, root: int, k: int, theta: float = 0.0) -> Beam:
        """The beam before any text: one bundle, the whole vocabulary after `root`."""
        return cls(tree, k, theta, bundles=(Bundle.begin(tree, root, 0.0),))

    @property
    def prefix_logprob(self) -> float:
        """log →p(text) as the beam sees it, a lower bound, nats."""
        return log_sum([bundle.log_p for bundle in self.bundles]) if self.raw else 0.0

    def step(self, byte: int) -> Beam:
        """The beam after one more byte; ZeroProbabilityError if no context survives."""
        narrower = [b for b in (b.narrow(self.tree, byte) for b in self.bundles) if b]
        tau = log(self.theta) + log_sum([bundle.log_p for bundle in narrower])
        extensions: list[Extension] = []
        skipped: list[Extension] = []
        for bundle in self.bundles:
            into = extensions if bundle.log_p >= tau else skipped
            into += bundle.extend(self.tree)
        candidates, unopened = self._candidates(narrower, extensions, byte)
        weights = [bundle.log_p for bundle in candidates[self.k :]]
        weights += [extension.log_weight for extension in (*unopened, *skipped)]
        dropped, raw = log_sum([self.log_dropped, *weights]), self.raw + bytes([byte])
        if candidates:
            return replace(self, raw=raw, bundles=tuple(candidates[: self.k]), log_dropped=dropped)
        raise ZeroProbabilityError(
            f"no context of the beam (k={self.k}, theta={self.theta:g}) goes on with byte "
            f"0x{byte:02X} after {len(self.raw)} bytes: the text has probability zero, or a larger "
            "k or a smaller theta keeps one that does.",
            math.exp(dropped),
        )

    def nodes(self) -> list[int]:
        """The contexts that the beam refers to; all others may be dropped."""
        return [bundle.node for bundle in self.bundles]

    def advance(self, text: bytes) -> Beam:
        """The beam after several more bytes."""
        beam = self
        for byte in text:
            beam = beam.step(byte)
        return beam

    def next_byte_masses(self) -> tuple[NDArray[np.float64], float]:
        """`[257]`: →p(text·byte) / s, and at 256 p(text) / s; and log s, the scale, nats."""
        tau = log(self.theta) + self.prefix_logprob
        extensions: list[Extension] = []
        for bundle in self.bundles:
            if bundle.log_p >= tau:
                extensions += bundle.extend(self.tree)
        bundles = [*self.bundles, *Bundle.open(self.tree, extensions)]
        return next_byte_masses(self.tree, bundles)

    def _candidates(
        self, narrower: list[Bundle], extensions: list[Extension], byte: int
    ) -> tuple[list[Bundle], list[Extension]]:
        """The candidates, heaviest first, and the extensions too light to be among the first k."""
        extensions = sorted(extensions, key=lambda extension: -extension.log_weight)
        candidates = sorted(narrower, key=lambda bundle: -bundle.log_p)
        while extensions:
            if len(candidates) >= self.k:
                kth = candidates[self.k - 1].log_p
                # Weights in falling order: once one is under the k-th, all the rest are.
                if extensions[0].log_weight < kth:
                    break
            opened = Bundle.open(self.tree, extensions[: self.k])
            extensions = extensions[self.k :]
            candidates += [b for b in (b.narrow(self.tree, byte) for b in opened) if b]
            candidates.sort(key=lambda bundle: -bundle.log_p)
        return candidates, extensions
