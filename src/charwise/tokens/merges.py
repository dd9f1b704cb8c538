"""Byte-pair merges: which token may follow which inside one word.

Encoding a word merges neighbours, the pair of the lowest rank first. The encoder returns just
these tokens of a word if and only if it returns a·b for each two neighbours a, b of them: merges
inside a token go on as they would in that token alone, so that all that can go wrong is a merge
across a border, and the first of those sees two tokens only (Vieira et al., "Language Models over
Canonical Byte-Pair Encodings", ICML 2025).

Such a merge takes a piece l at the right edge of a and a piece r at the left edge of b, while both
are there. Let a token's *level* be the highest rank that it takes to make it. On both sides
merges go on by rising level, so l is there from its own level to that of the token that takes it
in, and so is r. Now hang each token below the piece that it begins with, brothers in the order in
which they take it in. From the top down, all tokens that begin with r are one range, and those in
which r is still there when l is, are r itself and the end of that range. So all that may not
follow a is a union of some thousand ranges at most: one sum over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: The rank of a merge that never comes; what no merge makes has rank −1.
_NEVER = 2**62


class Rules(NamedTuple):
    """Merges: the pair `left[i]`, `right[i]` becomes `made[i]`; the lowest rank goes first.

    >>> Rules(np.array([0]), np.array([1]), np.array([2]), np.array([0])).made.tolist()
    [2]
    """

    left: Ints
    right: Ints
    made: Ints
    rank: Ints


class Merges:
    """The merges of one tokenizer, which may be in any order.

    Args:
        pieces: by id the ids that encoding begins with, one for each character; empty for ids
            that encoding never makes.
        rules: the merges.

    Attributes:
        width: how many ids there are.
        reachable: `[width]` whether the merges make a token of its own characters.

    >>> a, b, ab = 0, 1, 2
    >>> rules = Rules(np.array([a]), np.array([b]), np.array([ab]), np.array([0]))
    >>> merges = Merges([[a], [b], [a, b]], rules)
    >>> merges.after(a).tolist()  # a·a, but not a·b, which is ab; and a·ab
    [True, False, True]
    """

    def __init__(self, pieces: Sequence[Sequence[int]], rules: Rules) -> None:
        self.width = len(pieces)
        self.reachable, self._left, self._right, rank = _derive(pieces, rules)
        self._level = _levels(self._left, self._right, rank)
        # Until which rank each token leaves its pieces to others: to its level, where they are
        # there when merges of that level come; else only to the rank that takes them in. Of two
        # pieces of the same level the left one is made first.
        higher = self._level[self._left], self._level[self._right]
        self._as_left = np.where(
            (higher[0] == self._level) & (higher[1] < self._level), rank, self._level
        )
        self._as_right = np.where(higher[1] == self._level, rank, self._level)
        self._at, self._after = _left_tree(self._left, self._as_left)
        self._set_ranges(rules)

    def _set_ranges(self, rules: Rules) -> None:
        """For each rule (l, r): the tokens that r is at the left edge of when l is there."""
        usable = self.reachable[rules.left] & self.reachable[rules.right]
        left, right, q = rules.left[usable], rules.right[usable], rules.rank[usable]
        order = np.argsort(left, kind="stable")
        left, right, q = left[order], right[order], q[order]
        self._first = np.searchsorted(left, np.arange(self.width + 1))
        self._rank_of, self._level_of = q, self._level[right]
        since = np.where(self._level[left] > self._level[right], self._level[left], -1)
        # Of the tokens just below r, those that take it in then or later.
        below = np.flatnonzero(self._left >= 0)
        above = int(max(q.max(initial=0), self._level.max(initial=0))) + 3
        key = self._left[below] * above + self._as_left[below]
        by_key = np.argsort(key, kind="stable")
        below, key = below[by_key], np.append(key[by_key], _NEVER)
        found = np.searchsorted(key, right * above + np.maximum(q, since))
        first = np.append(below, -1)[found]
        mine = (first >= 0) & (self._left[first] == right)
        self._begin = np.where(mine, self._at[first], self._after[right])
        self._end, self._point = self._after[right], self._at[right]

    def after(self, token: int) -> Flags:
        """`[width]` whether each token may follow this one inside a word.

        All False after a token that the merges do not make.
        """
        if not self.reachable[token]:
            return np.zeros(self.width, dtype=np.bool_)
        change = np.zeros(self.width + 1, dtype=np.int64)
        piece, until, level = token, _NEVER, _NEVER
        while piece >= 0:
            rules = slice(int(self._first[piece]), int(self._first[piece + 1]))
            meets = (self._rank_of[rules] < until) & (self._level_of[rules] < level)
            point, begin, end = (
                column[rules][meets] for column in (self._point, self._begin, self._end)
            )
            np.add.at(change, np.concatenate((point, begin)), 1)
            np.subtract.at(change, np.concatenate((point + 1, end)), 1)
            until, level = int(self._as_right[piece]), int(self._level[piece])
            piece = int(self._right[piece])
        crossed = np.cumsum(change[:-1]) > 0
        return np.asarray(self.reachable & ~crossed[self._at])


def _derive(pieces: Sequence[Sequence[int]], rules: Rules) -> tuple[Flags, Ints, Ints, Ints]:
    """Encode every token by itself, all at once: is it made, of which two, at which rank?

    Returns:
        Whether each token is what its own characters become; its last two pieces (−1: it is one
        character), and the rank of their merge (−1 likewise).
    """
    width = len(pieces)
    key = rules.left * width + rules.right
    order = np.lexsort((rules.rank, key))
    key, rank, made = (np.append(column[order], -1) for column in (key, rules.rank, rules.made))
    symbols = np.array([symbol for some in pieces for symbol in some], dtype=np.int64)
    owners = np.repeat(np.arange(width), [len(some) for some in pieces])
    left, right, last, single = (np.full(width, -1, dtype=np.int64) for _ in range(4))
    while len(symbols):
        pair = symbols[:-1] * width + symbols[1:]
        found = np.searchsorted(key[:-1], pair)
        merge = (owners[:-1] == owners[1:]) & (key[found] == pair)
        price = np.append(np.where(merge, rank[found], _NEVER), _NEVER)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        sizes = np.diff(np.append(firsts, len(owners)))
        least = np.minimum.reduceat(price, firsts)
        done = least == _NEVER
        alone = firsts[done & (sizes == 1)]
        single[owners[alone]] = symbols[alone]
        hits = np.flatnonzero((price == np.repeat(least, sizes)) & (price < _NEVER))
        hits = hits[np.diff(owners[hits], prepend=-1) != 0]  # the leftmost of each
        here = owners[hits]
        left[here], right[here], last[here] = symbols[hits], symbols[hits + 1], price[hits]
        symbols[hits] = made[found[hits]]
        kept = ~np.repeat(done, sizes)
        kept[hits + 1] = False
        symbols, owners = symbols[kept], owners[kept]
    reachable = single == np.arange(width)
    for column in (left, right, last):
        column[~reachable] = -1
    return reachable, left, right, last


def _depths(above: Ints) -> Ints:
    """How many tokens stand above each, where `above` has the next (−1: none)."""
    depth, at = np.zeros(len(above), dtype=np.int64), above
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, above[at], -1)
    return depth


def _levels(left: Ints, right: Ints, rank: Ints) -> Ints:
    """The highest rank that it takes to make each token; −1 for tokens that no merge makes."""
    level = rank.copy()
    derived = np.flatnonzero(left >= 0)
    while len(derived):
        higher = np.maximum(level[left[derived]], level[right[derived]])
        changed = higher > level[derived]
        level[derived] = np.maximum(level[derived], higher)
        if not changed.any():
            break
    return level


def _left_tree(left: Ints, taken: Ints) -> tuple[Ints, Ints]:
    """Where each token stands, from the top down, below the piece that it begins with.

    And after which place the last of those below it stands. Brothers are in the order of `taken`.
    """
    width = len(left)
    order = np.lexsort((taken, _depths(left))).tolist()
    parents, size = left.tolist(), [1] * width
    for token in reversed(order):
        if parents[token] >= 0:
            size[parents[token]] += size[token]
    at, free, top = [0] * width, [0] * width, 0
    for token in order:
        parent = parents[token]
        if parent < 0:
            at[token], top = top, top + size[token]
        else:
            at[token], free[parent] = free[parent], free[parent] + size[token]
        free[token] = at[token] + 1
    begin = np.array(at, dtype=np.int64)
    return begin, begin + np.array(size, dtype=np.int64)
