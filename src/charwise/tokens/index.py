"""The sorted vocabulary: every question about prefixes is a contiguous range.

Sort the token byte strings. Those that start with `prefix` are then one range [lo, hi), and what
a trie would collect node by node is a slice:

    a  ab  abc  b  ba        range(b"ab") = (1, 3)

Within it, the tokens that go on with each further byte are runs, in order; a token that ends there
sorts first. docs/coverings.md derives it all.
"""

from __future__ import annotations

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
    >>> [vocabulary.tokens[id] for id in index.allowed(b"sw")], index.prefixes(b"swi")
    ([b's', b'sw', b'swing'], [3, 1])
    >>> index.range(b"sw"), index.narrow(2, 4, 2, ord("i")), index.same_bytes(b"sw")
    ((2, 4), (3, 4), (2, 3))
    >>> index.spellable(b"sws"), index.spellable(b"x"), index.length(0)
    (True, False, 5)
    >>> index.mask(b"sw"), index.bitmask(b"sw")
    (tensor([0., 0., -inf, 0., -inf]), array([11], dtype=int32))
    >>> in_order = index.in_order(np.array([0.1, 0.2, 0.3, 0.4, 0]))
    >>> in_order.tolist(), index.next_byte_masses(in_order, 2, 4, 2)[[ord("i"), END_OF_TOKEN]]
    ([0.2, 0.0, 0.4, 0.1, 0.3], array([0.1, 0.4]))
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        pairs = [(token, id) for id, token in enumerate(vocabulary.tokens) if token is not None]
        pairs.sort()
        self.sorted = [token for token, _ in pairs]
        self.ids: NDArray[np.int64] = np.array([id for _, id in pairs], dtype=np.int64)
        self.ids.setflags(write=False)
        self._position = {token: at for at, token in reversed(list(enumerate(self.sorted)))}
        self._torch_ids: dict[torch.device, torch.Tensor] = {}
        lengths = np.fromiter(map(len, self.sorted), dtype=np.int64, count=len(self.sorted))
        self.flat = np.frombuffer(b"".join(self.sorted), dtype=np.uint8)
        self.starts = np.concatenate(([0], np.cumsum(lengths)))

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
        """The range [lo, hi), in sorted order, of the tokens that start with `prefix`, if any."""
        return self._range(prefix, 0, len(self.sorted))

    def _range(self, prefix: bytes, lo: int, hi: int) -> tuple[int, int]:
        """The range of a prefix, inside another one."""
        lo = bisect_left(self.sorted, prefix, lo, hi)
        stem = prefix.rstrip(b"\xff")
        if not stem:  # nothing sorts behind all that starts so
            return lo, hi
        return lo, bisect_left(self.sorted, stem[:-1] + bytes([stem[-1] + 1]), lo, hi)

    def narrow(self, lo: int, hi: int, depth: int, byte: int) -> tuple[int, int]:
        """The part of a range, whose tokens agree on `depth` bytes, that continues with `byte`."""
        if lo >= hi:
            return lo, lo
        return self._range(self.sorted[hi - 1][:depth] + bytes([byte]), lo, hi)

    def same_bytes(self, token: bytes) -> tuple[int, int]:
        """The range of the tokens whose bytes are exactly `token`; empty if there is none."""
        lo = self._position.get(token)
        if lo is None:
            return 0, 0
        hi = lo + 1
        while hi < len(self.sorted) and self.sorted[hi] == token:
            hi += 1
        return lo, hi

    def prefixes(self, forced: bytes) -> list[int]:
        """Return the ids of the tokens that are proper prefixes of `forced`, longest first."""
        ids: list[int] = []
        for size in range(min(len(forced) - 1, self.vocabulary.max_token_bytes), 0, -1):
            lo, hi = self.same_bytes(forced[:size])
            if lo < hi:
                ids += reversed(self.ids[lo:hi].tolist())
        return ids

    def allowed(self, forced: bytes) -> NDArray[np.int64]:
        """Return the ids of the tokens that start with `forced` or are a proper prefix of it.

        For the empty string: all tokens with bytes. The result may be a read-only view.
        """
        lo, hi = self.range(forced)
        shorter = self.prefixes(forced)
        if not shorter:
            return self.ids[lo:hi]
        return np.concatenate((np.array(shorter, dtype=np.int64), self.ids[lo:hi]))

    def spellable(self, forced: bytes) -> bool:
        """Whether some token string decodes to `forced`, or to more that starts with it."""
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
        """Return `[width]` float32: 0 for the ids that `allowed(forced)` names, else −inf."""
        import torch

        mask = np.full(self.vocabulary.width, -np.inf, dtype=np.float32)
        mask[self.allowed(forced)] = 0.0
        return torch.from_numpy(mask)

    def bitmask(self, forced: bytes) -> NDArray[np.int32]:
        """`[⌈width / 32⌉]` int32: bit `id % 32` of word `id // 32` says whether `id` is allowed."""
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
        """Return probabilities `[…, width]` by id as `[…, n]` float64 in sorted order."""
        return np.asarray(np.asarray(probabilities)[..., self.ids], dtype=np.float64)

    def next_byte_masses(
        self, in_order: NDArray[np.float64], lo: int, hi: int, depth: int
    ) -> NDArray[np.float64]:
        """Return the mass of a range divided over the byte at `depth`, `[257]`.

        At 256 (`END_OF_TOKEN`) stands the mass of the tokens that end there.

        Args:
            in_order: `[n]` probabilities of one context, in sorted order.
            lo, hi: a range whose tokens agree on their first `depth` bytes.
            depth: offset of the byte, in bytes from the token's start.
        """
        ended = lo
        while ended < hi and len(self.sorted[ended]) == depth:
            ended += 1  # tokens that end there come first
        following = self.flat[self.starts[ended:hi] + depth]
        counts = np.bincount(following, weights=in_order[ended:hi], minlength=257)
        masses = counts.astype(np.float64, copy=False)  # of nothing, they are integers
        masses[END_OF_TOKEN] = in_order[lo:ended].sum()
        return masses
