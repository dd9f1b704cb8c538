"""Bundled beam summing (Vieira et al. 2025, §3.2, Appendix D), with the threshold of Appendix G.

As its authors define it, over bytes, for comparison and reproduction:

    Bundle.filter, Bundle.extend   `Bundle.narrow`, `Bundle.extend`
    beam                           `Beam.step`, once for each byte
    next_character_probability     `Beam.next_byte_masses`, before it divides by the sum

Two differences change no result: bundles are ranges of the sorted vocabulary instead of tries, and
the top K is found lazily. (A bundle's weight only falls as bytes are consumed. So extensions whose
weight is below the K-th known one need not be evaluated.) Two do:

- A member that ends where the text does stays in its context's bundle until the next byte, where
  the paper's buckets count it apart (docs/coverings.md has an example).
- Before the next byte is known, τ is θ times the sum of the whole beam. Appendix G has no threshold
  there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import (
    Bundle,
    Extension,
    log,
    log_sum,
    next_byte_masses,
)
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
        fallback: when the beam empties, go back to the heaviest contexts dropped in the last
            64 bytes, k for each, before raising `ZeroProbabilityError`.
        log_dropped: log of all the mass dropped on the way, each at the moment it was dropped:
            the true →p(text) is at most the beam's plus this.
        reserve: what `fallback` goes back to: (how much of the text was consumed, what was
            dropped there).
    """

    tree: TokenTree
    k: int
    theta: float = 0.0
    fallback: bool = False
    raw: bytes = b""
    bundles: tuple[Bundle, ...] = ()
    log_dropped: float = -math.inf
    reserve: tuple[tuple[int, Bundle | Extension], ...] = ()

    @classmethod
    def start(
        cls, tree: TokenTree, root: int, k: int, theta: float = 0.0, *, fallback: bool = False
    ) -> Beam:
        """The beam before any text: one bundle, the whole vocabulary after `root`."""
        whole = Bundle.before(tree, root, 0.0, b"")
        return cls(tree, k, theta, fallback, bundles=(whole,))

    @property
    def prefix_logprob(self) -> float:
        """log →p(text) as the beam sees it, a lower bound, nats."""
        return log_sum([bundle.log_p for bundle in self.bundles]) if self.raw else 0.0

    def step(self, byte: int) -> Beam:
        """The beam after one more byte.

        Raises:
            ZeroProbabilityError: if no context survives. If something was dropped before, a larger
                k or a smaller theta may keep one.
        """
        narrower = [b for b in (b.narrow(self.tree, byte) for b in self.bundles) if b]
        tau = log(self.theta) + log_sum([bundle.log_p for bundle in narrower])
        extensions: list[Extension] = []
        skipped: list[Extension] = []
        for bundle in self.bundles:
            into = extensions if bundle.log_p >= tau else skipped
            into += bundle.extend(self.tree)
        top, late, unopened = self._top_k(narrower, extensions, byte)
        unopened += skipped
        weights = [*(b.log_p for b in late), *(e.log_weight for e in unopened)]
        beam = replace(
            self,
            raw=self.raw + bytes([byte]),
            bundles=tuple(top),
            log_dropped=log_sum([self.log_dropped, *weights]),
            reserve=self._reserve(late, unopened) if self.fallback else (),
        )
        return beam if top else beam._revived()

    def _reserve(
        self, late: list[Bundle], unopened: list[Extension]
    ) -> tuple[tuple[int, Bundle | Extension], ...]:
        """The reserve with the heaviest that one step dropped, without those that are too old."""
        at = len(self.raw)
        recent = [entry for entry in self.reserve if entry[0] > at - 64]
        unopened = sorted(unopened, key=lambda extension: -extension.log_weight)
        recent += [(at, extension) for extension in unopened[: self.k]]
        recent += [(at + 1, bundle) for bundle in late[: self.k]]
        return tuple(recent)

    def _revived(self) -> Beam:
        """An empty beam, filled from the reserve: its entries, heaviest first, walked to here."""
        entries = sorted(self.reserve, key=lambda entry: -_bound(entry[1]))
        bundles: list[Bundle] = []
        for at, dropped in entries:
            if isinstance(dropped, Extension):
                [dropped] = Bundle.open(self.tree, [dropped])
            beam = Beam(self.tree, self.k, 0.0, False, self.raw[:at], (dropped,))
            try:
                bundles += beam.advance(self.raw[at:]).bundles
            except ZeroProbabilityError:
                continue
            if len(bundles) >= self.k:
                break
        if bundles:
            bundles.sort(key=lambda bundle: -bundle.log_p)
            return replace(self, bundles=tuple(bundles[: self.k]))
        byte, before = self.raw[-1], len(self.raw) - 1
        if self.log_dropped == -math.inf:
            raise ZeroProbabilityError(
                f"byte 0x{byte:02X} after {before} bytes: no token string of the "
                "model spells it there, so the text has probability zero. Check the text, or "
                "whether the vocabulary can spell it."
            )
        raise ZeroProbabilityError(
            f"the beam (k={self.k}, theta={self.theta:g}) is empty after {before} "
            f"bytes: no context kept so far continues with byte 0x{byte:02X}. Use a larger "
            "k or a smaller theta, or fallback=True, or the covering, which never prunes for good.",
            math.exp(self.log_dropped),
        )

    def nodes(self) -> list[int]:
        """The contexts that the beam refers to; all others may be dropped."""
        reserve = [d.node if isinstance(d, Bundle) else d.parent for _, d in self.reserve]
        return [*(bundle.node for bundle in self.bundles), *reserve]

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

    def _top_k(
        self, narrower: list[Bundle], extensions: list[Extension], byte: int
    ) -> tuple[list[Bundle], list[Bundle], list[Extension]]:
        """The k heaviest candidates, the other ones, and the extensions that were not opened."""
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
        return candidates[: self.k], candidates[self.k :], extensions


def _bound(dropped: Bundle | Extension) -> float:
    """Return the log of the most that the dropped mass can add, nats."""
    return dropped.log_p if isinstance(dropped, Bundle) else dropped.log_weight
