"""A known text seen from every position at once: nested ranges, and masses along it.

For a context that ends at position j of σ, the sums over coverings need the masses of the tokens
that start with σ[j : j+d+1] and of those that are exactly that, for d = 0, 1, … The ranges depend
on the text alone: found once, they leave one gather and one segmented sum for each context.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from charwise.tokens.index import END_OF_TOKEN, SortedVocabulary

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class KnownText:
    """The nested ranges of every position of a text."""

    text: bytes
    index: SortedVocabulary
    #: `[len(text)]`: how many prefixes of the rest some token starts with.
    depths: Ints
    #: `[len(text), deepest]`: the range of `text[j : j + d + 1]`, valid for d < depths[j].
    lo: Ints
    hi: Ints
    #: `[len(text), deepest]`: the end of the run, from lo, of the tokens that are exactly it.
    exact: Ints

    @classmethod
    def of(cls, text: bytes, index: SortedVocabulary) -> KnownText:
        """Find the ranges of a text."""
        return cls(text, index, *_ranges(text, index))

    @property
    def deepest(self) -> int:
        """At least the largest of `depths`."""
        return int(self.lo.shape[1])

    def window(self, begin: int, stop: int) -> KnownText:
        """The ranges of `text[begin:stop]`, as views."""
        part = slice(begin, stop)
        depths = np.minimum(self.depths[part], stop - np.arange(begin, stop))
        return KnownText(
            self.text[part], self.index, depths, self.lo[part], self.hi[part], self.exact[part]
        )

    def depths_at(self, positions: Ints) -> Ints:
        """`depths` at several positions; zero at the end of the text."""
        depths = np.zeros(len(positions), dtype=np.int64)
        inside = positions < len(self.text)
        depths[inside] = self.depths[positions[inside]]
        return depths

    def edges(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """The tokens that spell the next bytes after each position, as three flat arrays.

        Which of `positions`, the token's id, the position where it ends.
        """
        at = np.flatnonzero(positions < len(self.text))
        lo, exact = self.lo[positions[at]], self.exact[positions[at]]
        sizes = np.where(np.arange(self.deepest) < self.depths[positions[at], None], exact - lo, 0)
        row, depth = np.nonzero(sizes)
        sizes = sizes[row, depth]
        first = np.cumsum(sizes) - sizes
        within = np.arange(int(sizes.sum())) - np.repeat(first, sizes)
        rank = np.repeat(lo[row, depth], sizes) + within
        rows = np.repeat(at[row], sizes)
        ends = positions[rows] + np.repeat(depth, sizes) + 1
        return rows, self.index.ids[rank], ends

    def contexts(self, most: int) -> int:
        """How many token strings spell a beginning of the text, or all; stops above `most`."""
        ways = [1] + [0] * len(self.text)
        total = 1
        for at in range(len(self.text)):
            if total > most:
                break
            if ways[at]:
                _, _, ends = self.edges(np.array([at]))
                for end in ends.tolist():
                    ways[end] += ways[at]
                    total += ways[at]
        return total

    def starting(self, logprobs: torch.Tensor, positions: Ints) -> NDArray[np.float64]:
        """`[n, deepest]` float64: masses of the tokens that start with `text[j : j + d + 1]`.

        Of n contexts with these `logprobs` `[n, width]`, on any device, that end at `positions`;
        zero from `depths[j]` on. Shells between nested ranges are summed once and accumulated from
        the innermost outwards, so nothing cancels.
        """
        deepest = self.deepest
        depths = self.depths_at(positions)
        if not depths.any():  # nothing to sum, which torch's segment_reduce refuses
            return np.zeros((len(positions), deepest))
        inside = np.minimum(positions, len(self.text) - 1)
        lo, hi = self.lo[inside], self.hi[inside]
        valid = np.arange(deepest) < depths[:, None]
        # Beyond its depth a position's ranges are empty, and lie inside the innermost.
        at, last = np.arange(len(lo)), np.maximum(depths - 1, 0)
        inner_lo, inner_hi = lo[at, last][:, None], hi[at, last][:, None]
        edges = np.concatenate(
            (np.where(valid, lo, inner_lo), np.where(valid, hi, inner_hi)[:, ::-1]), axis=1
        )  # [n, 2·deepest], rising
        if logprobs.device.type == "cpu":
            parts = _shells(logprobs.numpy(), self.index.ids, edges)
        else:
            parts = _shells_on_device(logprobs, self.index, edges)
        shell = parts[:, deepest - 1 :].copy()  # innermost, then the right shells outwards
        shell[:, 1:] += parts[:, : deepest - 1][:, ::-1]
        return np.ascontiguousarray(np.cumsum(shell, axis=1)[:, ::-1]) * valid

    def next_bytes(self, logprobs: torch.Tensor, positions: Ints) -> list[NDArray[np.float64]]:
        """Masses `[depths + 1, 257]` of the next byte, of each context as in `starting`.

        Row d is after the first d bytes of the next token, which are the text's. At 256, in row 0
        only, stands the mass of the end tokens.
        """
        index, ends = self.index, list(self.index.vocabulary.end_ids)
        order = index.ids_on(logprobs.device)
        masses = []
        ended = logprobs[:, ends].double().exp().sum(dim=1).tolist()
        for n, (at, depths) in enumerate(zip(positions, self.depths_at(positions), strict=True)):
            in_order = logprobs[n].index_select(0, order).double().exp_().cpu().numpy()
            rows = np.empty((depths + 1, 257))
            rows[0] = index.next_byte_masses(in_order, 0, len(in_order), 0)
            for d in range(int(depths)):
                lo, hi = int(self.lo[at, d]), int(self.hi[at, d])
                rows[d + 1] = index.next_byte_masses(in_order, lo, hi, d + 1)
            rows[:, END_OF_TOKEN] = 0.0  # what follows those tokens is another context's business
            rows[0, END_OF_TOKEN] = ended[n]
            masses.append(rows)
        return masses


def _shells(logprobs: NDArray[np.floating], ids: Ints, edges: Ints) -> NDArray[np.float64]:
    """Sums `[n, m]` between rising edges `[n, m + 1]` of each context's sorted probabilities.

    One context at a time: its first range is a slice of `ids`, and no index needs to be made.
    """
    parts = np.zeros((len(edges), edges.shape[1] - 1))
    for part, row, edge in zip(parts, logprobs, edges, strict=True):
        lo = edge[0]
        masses = np.exp(row[ids[lo : edge[-1]]].astype(np.float64))
        filled = np.flatnonzero(edge[1:] > edge[:-1])
        if len(filled):  # reduceat would repeat an element for an empty segment
            part[filled] = np.add.reduceat(masses, edge[filled] - lo)
    return parts


def _shells_on_device(
    logprobs: torch.Tensor, index: SortedVocabulary, edges: Ints
) -> NDArray[np.float64]:
    """`_shells` in a few large operations, of which only the sums come back."""
    import torch

    device = logprobs.device
    sizes = edges[:, -1] - edges[:, 0]
    first = np.cumsum(sizes) - sizes
    at = np.arange(int(sizes.sum())) + np.repeat(edges[:, 0] - first, sizes)
    rows = torch.from_numpy(np.repeat(np.arange(len(edges)), sizes)).to(device)
    ids = index.ids_on(device)[torch.from_numpy(at).to(device)]
    lengths = torch.from_numpy(np.diff(edges, axis=1).reshape(-1)).to(device)
    sums = torch.segment_reduce(
        logprobs[rows, ids].double().exp_(), "sum", lengths=lengths, initial=0.0
    )
    return np.asarray(sums.cpu().numpy().reshape(len(edges), -1))


def _ranges(text: bytes, index: SortedVocabulary) -> tuple[Ints, Ints, Ints, Ints]:
    """`depths`, `lo`, `hi`, `exact` of a text: two bisections a byte that a token may add."""
    tokens, size = index.sorted, len(text)
    nested: list[tuple[int, int, int]] = []
    depths: Ints = np.zeros(size, dtype=np.int64)
    for at in range(size):
        lo, hi, before = 0, len(tokens), len(nested)
        for end in range(at + 1, size + 1):
            start = text[at:end]
            lo = bisect_left(tokens, start, lo, hi)
            if start[-1] < 255:
                hi = bisect_left(tokens, start[:-1] + bytes((start[-1] + 1,)), lo, hi)
            if lo >= hi:
                break
            nested.append((lo, hi, bisect_right(tokens, start, lo, hi)))
        depths[at] = len(nested) - before
    ranges = np.zeros((size, int(depths.max(initial=0)), 3), dtype=np.int64)
    if nested:
        ranges[np.arange(ranges.shape[1]) < depths[:, None]] = nested
    los, his, exacts = (np.ascontiguousarray(ranges[..., column]) for column in range(3))
    return depths, los, his, exacts
