"""The sorted vocabulary: every question about prefixes is a contiguous range.

Sort the token byte strings. Those that start with `prefix` are then one range [lo, hi), and what
a trie would collect node by node is a slice:

    a  ab  abc  b  ba        range(b"ab") = (1, 3)

Within a range of tokens that agree on d bytes, the tokens that continue with each further byte
are runs, in order; a token that ends there sorts first. docs/coverings.md derives it all.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

#: Index of the end-of-token mass in the result of `next_byte_masses`.
END_OF_TOKEN = 256

#: Tokens of a range whose division by the next byte is kept: of fewer, it is found as fast.
_WIDE = 64

#: id of a vocabulary → its index, while one is held: see `SortedVocabulary.of`.
_indices: WeakValueDictionary[int, SortedVocabulary] = WeakValueDictionary()


class SortedVocabulary:
    """The index of one vocabulary: prefix → range, allowed tokens, masks, masses.

    Attributes:
        vocabulary: the vocabulary it indexes.
        ids: `[n]` int64, the ids of the tokens with bytes, in the order of their bytes; of
            several with the same bytes, the lower id first.
        sorted: `[n]` their bytes.
        flat, starts: the tokens' bytes end to end: byte d of sorted token i is
            `flat[starts[i] + d]`.

    >>> vocabulary = Vocabulary.from_bytes([b"swing", b"s", b"weep", b"sw", b"salad"])
    >>> index = SortedVocabulary(vocabulary)
    >>> index.range(b"sw")
    (2, 4)
    >>> [vocabulary.tokens[id] for id in index.allowed(b"sw")]
    [b's', b'sw', b'swing']
    >>> index.length(0), index.ids_on("cpu").tolist()
    (5, [1, 4, 3, 0, 2])
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        pairs = [(token, id) for id, token in enumerate(vocabulary.tokens) if token is not None]
        pairs.sort()
        self.sorted = [token for token, _ in pairs]
        self.ids: NDArray[np.int64] = np.array([id for _, id in pairs], dtype=np.int64)
        self.ids.setflags(write=False)
        self._id_at = array("i", self.ids.tolist())
        self._position = {token: at for at, token in reversed(list(enumerate(self.sorted)))}
        self._range_end, self._parent = _nesting(self.sorted)
        self._torch_ids: dict[torch.device, torch.Tensor] = {}
        lengths = np.fromiter(map(len, self.sorted), dtype=np.int64, count=len(self.sorted))
        self.flat = np.frombuffer(b"".join(self.sorted), dtype=np.uint8)
        self.starts = np.concatenate(([0], np.cumsum(lengths)))
        self._divided: dict[
            tuple[int, int, int], tuple[int, NDArray[np.uint8], NDArray[np.int64]]
        ] = {}  # of wide ranges

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> SortedVocabulary:
        """The index of a vocabulary; the same object while anyone holds it."""
        # An index holds its vocabulary, so while it lives the id belongs to no other.
        index = _indices.get(id(vocabulary))
        if index is None:
            index = _indices[id(vocabulary)] = cls(vocabulary)
        return index

    def length(self, id: int) -> int:
        """Return the number of bytes of a token; 0 for ids without bytes."""
        return len(self.vocabulary.decode([id]))

    def range(self, prefix: bytes) -> tuple[int, int]:
        """The range [lo, hi), in sorted order, of the tokens that start with `prefix`.

        Two bisections, or one look-up if `prefix` is itself a token. An empty range has lo = hi.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.range(b"a"), index.range(b"ac")
        ((0, 2), (2, 2))
        """
        at = self._position.get(prefix)
        if at is not None:
            return at, self._range_end[at]
        if not prefix:
            return 0, len(self.sorted)
        lo = bisect_left(self.sorted, prefix)
        if lo == len(self.sorted) or not self.sorted[lo].startswith(prefix):
            return lo, lo
        after = _successor(prefix)
        if after is None:
            return lo, len(self.sorted)
        return lo, bisect_left(self.sorted, after, lo)

    def narrow(self, lo: int, hi: int, depth: int, byte: int) -> tuple[int, int]:
        """The part of a range, whose tokens agree on `depth` bytes, that goes on with `byte`.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.narrow(0, 2, 1, ord("b"))
        (1, 2)
        """
        if lo >= hi:
            return lo, lo
        prefix = self.sorted[hi - 1][:depth] + bytes([byte])
        lo = bisect_left(self.sorted, prefix, lo, hi)
        after = _successor(prefix)
        return lo, hi if after is None else bisect_left(self.sorted, after, lo, hi)

    def same_bytes(self, token: bytes) -> tuple[int, int]:
        """The range of the tokens whose bytes are exactly `token`; empty if there is none.

        >>> SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"a"])).same_bytes(b"a")
        (0, 2)
        """
        lo = self._position.get(token)
        if lo is None:
            return 0, 0
        hi = lo + 1
        while hi < len(self.sorted) and self.sorted[hi] == token:
            hi += 1
        return lo, hi

    def prefixes(self, forced: bytes) -> list[int]:
        """Return the ids of the tokens that are proper prefixes of `forced`, longest first.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.prefixes(b"abc")
        [1, 0]
        """
        at = self._position.get(forced)
        if at is None:
            # All are ancestors, in the nesting of ranges, of the token just before `forced`.
            at = bisect_left(self.sorted, forced) - 1
            while at >= 0 and not forced.startswith(self.sorted[at]):
                at = self._parent[at]
        else:
            at = self._parent[at]
        ids = []
        while at >= 0:
            ids.append(self._id_at[at])
            at = self._parent[at]
        return ids

    def allowed(self, forced: bytes) -> NDArray[np.int64]:
        """Return the ids of the tokens that start with `forced` or are a proper prefix of it.

        For the empty string: all tokens with bytes. No cache: the range is a slice of `ids` and
        the prefixes are read off the nesting. The result may be a read-only view.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.allowed(b"ab").tolist(), index.allowed(b"").tolist()
        ([0, 1], [0, 1, 2])
        """
        lo, hi = self.range(forced)
        shorter = self.prefixes(forced)
        if not shorter:
            return self.ids[lo:hi]
        out: NDArray[np.int64] = np.empty(len(shorter) + hi - lo, dtype=np.int64)
        out[: len(shorter)] = shorter
        out[len(shorter) :] = self.ids[lo:hi]
        return out

    def spellable(self, forced: bytes) -> bool:
        """Whether some token string decodes to `forced`, or to more that starts with it.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.spellable(b"aba"), index.spellable(b"ca")
        (True, False)
        """
        if self.vocabulary.byte_complete or not forced:
            return True
        reached = {0}  # offsets in `forced` where a token string may end
        for at in range(len(forced)):
            if at in reached:
                lo, hi = self.range(forced[at:])
                if lo < hi:
                    return True
                steps = self.prefixes(forced[at:])
                reached.update(at + len(self.vocabulary.tokens[id] or b"") for id in steps)
        return False

    def mask(self, forced: bytes) -> torch.Tensor:
        """Return `[width]` float32: 0 for the ids that `allowed(forced)` names, else −inf.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.mask(b"ab")
        tensor([0., 0., -inf])
        """
        import torch

        mask = np.full(self.vocabulary.width, -np.inf, dtype=np.float32)
        mask[self.allowed(forced)] = 0.0
        return torch.from_numpy(mask)

    def bitmask(self, forced: bytes) -> NDArray[np.int32]:
        """`[⌈width / 32⌉]` int32: bit `id % 32` of word `id // 32` says whether `id` is allowed.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> index.bitmask(b"ab")
        array([3], dtype=int32)
        """
        bits = np.zeros(-(-self.vocabulary.width // 32) * 32, dtype=np.bool_)
        bits[self.allowed(forced)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def ids_on(self, device: torch.device | str) -> torch.Tensor:
        """Return `ids` as a tensor `[n]` int64 on a device; made once for each device."""
        import torch

        device = torch.device(device)
        if device not in self._torch_ids:
            self._torch_ids[device] = torch.tensor(self.ids.tolist(), device=device)
        return self._torch_ids[device]

    def in_order(self, probabilities: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return probabilities `[…, width]` by id as `[…, n]` float64 in sorted order.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"b", b"a"]))
        >>> index.in_order(np.array([0.25, 0.75]))
        array([0.75, 0.25])
        """
        return np.asarray(np.asarray(probabilities)[..., self.ids], dtype=np.float64)

    def next_byte_masses(
        self, in_order: NDArray[np.float64], lo: int, hi: int, depth: int
    ) -> NDArray[np.float64]:
        """Return the mass of a range divided over the byte at `depth`, `[257]`.

        Args:
            in_order: `[n]` probabilities of one context, in sorted order.
            lo, hi: a range whose tokens agree on their first `depth` bytes.
            depth: offset of the byte, in bytes from the token's start.

        Returns:
            For each byte the mass of the tokens that continue with it; at 256 (`END_OF_TOKEN`)
            the mass of those that end there.

        >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"b"]))
        >>> masses = index.next_byte_masses(np.array([0.5, 0.25, 0.25]), 0, 2, 1)
        >>> masses[ord("b")], masses[END_OF_TOKEN]
        (np.float64(0.25), np.float64(0.5))
        """
        if hi - lo > _WIDE:
            divided = self._divided.get((lo, hi, depth))
            if divided is None:
                divided = self._divided[lo, hi, depth] = self._divide(lo, hi, depth)
            ended, following, first = divided
            masses = np.zeros(257)
            if len(following):
                masses[following] = np.add.reduceat(in_order[lo:hi], first)
        else:
            ended = self._ended(lo, hi, depth)
            following = self.flat[self.starts[ended:hi] + depth]
            counts = np.bincount(following, weights=in_order[ended:hi], minlength=257)
            masses = counts.astype(np.float64, copy=False)  # of nothing, they are integers
        masses[END_OF_TOKEN] = in_order[lo:ended].sum()
        return masses

    def _ended(self, lo: int, hi: int, depth: int) -> int:
        """Where in a range the tokens of `depth` bytes end, which come first."""
        while lo < hi and len(self.sorted[lo]) == depth:
            lo += 1
        return lo

    def _divide(
        self, lo: int, hi: int, depth: int
    ) -> tuple[int, NDArray[np.uint8], NDArray[np.int64]]:
        """`_ended`, the bytes that follow, and where in the range each is first."""
        ended = self._ended(lo, hi, depth)
        following = self.flat[self.starts[ended:hi] + depth]
        first = np.flatnonzero(np.diff(following, prepend=-1))
        return ended, following[first], first + (ended - lo)


def _successor(prefix: bytes) -> bytes | None:
    """The least byte string above everything that starts with `prefix`; None if there is none.

    >>> _successor(b"ab"), _successor(b"a\\xff"), _successor(b"\\xff")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _nesting(tokens: list[bytes]) -> tuple[array[int], array[int]]:
    """For each token: the end of the range of its extensions, and its parent.

    Both are positions in sorted order. The parent is the last token that is a proper prefix, −1 if
    there is none. Of tokens with the same bytes, each hangs on the one before it, so that a walk up
    meets every prefix token. One pass, with a stack of the current prefixes.
    """
    size = len(tokens)
    range_end = array("i", [size]) * size
    parent = array("i", [-1]) * size
    stack: list[int] = []
    for at, token in enumerate(tokens):
        while stack and not token.startswith(tokens[stack[-1]]):
            range_end[stack.pop()] = at
        if stack:
            parent[at] = stack[-1]
        stack.append(at)
    return range_end, parent
