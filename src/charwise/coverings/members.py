"""The members of a covering one by one, the most probable first, and how many there are."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import log
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import check_count
from charwise.tokens.index import SortedVocabulary

#: Contexts evaluated ahead in one call: the heaviest that are known but not evaluated.
_AHEAD = 32


class Member(NamedTuple):
    """One token string of a covering.

    >>> Member((0, 1), b"aab", -2.0).text
    b'aab'
    """

    token_ids: tuple[int, ...]
    text: bytes  # its decoding, which starts with σ
    logprob: float  # log →p_Δ, nats


def members_in_order(
    evaluated: EvaluatedRows, root: int, text: bytes, *, exactly: bool = False
) -> Iterator[Member]:
    """The members of C(text), the most probable first; `exactly` keeps those that spell it.

    A context's weight bounds all of its members, so a member that reaches the top of the heap
    is heavier than everything not seen yet.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> [member.token_ids for member in members_in_order(evaluated, 0, b"aa")]
    [(0, 0), (0, 1)]
    """
    index = evaluated.index
    if not text:
        yield Member((), b"", 0.0)
        return
    # Entries: (−log bound, order, position, parent, token, rank). Contexts have rank −1; a
    # member is the rank-th heaviest token of its context, which is `parent`.
    heap: list[tuple[float, int, int, int, int, int]] = [(0.0, 0, 0, root, -1, -1)]
    ranked: dict[int, NDArray[np.int64]] = {}
    order = 0

    def push_member(log_weight: float, position: int, node: int, rank: int) -> None:
        nonlocal order
        if rank < len(ranked[node]):
            at = int(ranked[node][rank])
            logp = log(float(evaluated.row(node).in_order[at]))
            if logp > -math.inf:
                order += 1
                entry = (-log_weight - logp, order, position, node, at, rank)
                heapq.heappush(heap, entry)

    weights: dict[int, float] = {}
    while heap:
        bound, _, position, parent, token, rank = heapq.heappop(heap)
        if rank >= 0:
            ids = (*evaluated.tree.tokens(parent), int(index.ids[token]))
            yield Member(ids, text[:position] + index.sorted[token], -bound)
            push_member(weights[parent], position, parent, rank + 1)
            continue
        ahead = [e for e in heapq.nsmallest(_AHEAD - 1, heap) if e[5] < 0 and e[4] >= 0]
        pairs = [(e[3], e[4]) for e in ahead]
        node = parent if token < 0 else evaluated.extend([(parent, token), *pairs])[0]
        weights[node] = -bound
        rest = text[position:]
        lo, hi = index.twins(rest) if exactly else index.range(rest)
        masses = evaluated.row(node).in_order[lo:hi]
        ranked[node] = lo + np.argsort(-masses, kind="stable")
        push_member(-bound, position, node, 0)
        for next_token, logp in evaluated.continuations(node, rest):
            order += 1
            end = position + index.length(next_token)
            heapq.heappush(heap, (bound - logp, order, end, node, next_token, -1))


def covering_size(index: SortedVocabulary, text: bytes) -> int:
    """|C(text)|, how many token strings cover a text, counted without enumerating them.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> covering_size(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"])), b"aa")
    2
    """
    if not text:
        return 1
    spellings = _spellings(index, text)
    total = 0
    for position in range(len(text)):
        lo, hi = index.range(text[position:])
        total += spellings[position] * (hi - lo)
    return total


def encodings_size(index: SortedVocabulary, text: bytes) -> int:
    """|E(text)|, how many token strings decode to exactly this text.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> encodings_size(SortedVocabulary(Vocabulary.from_bytes([b"a", b"aa"])), b"aaa")
    3
    """
    return _spellings(index, text)[-1]


def _spellings(index: SortedVocabulary, text: bytes) -> list[int]:
    """How many token strings decode to each prefix of the text."""
    counts = [1] + [0] * len(text)
    for position in range(len(text)):
        if counts[position]:
            for end in range(position + 1, min(len(text), position + index.vocabulary.munch) + 1):
                lo, hi = index.twins(text[position:end])
                counts[end] += counts[position] * (hi - lo)
    return counts


class Encodings:
    """All token strings that decode to exactly a text.

    Attributes:
        text: the text.
        size: how many there are.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> encodings = Encodings(evaluated, 0, b"aab")
    >>> encodings.size, encodings.top(1)[0].token_ids
    (1, (0, 1))
    """

    def __init__(self, evaluated: EvaluatedRows, root: int, text: bytes) -> None:
        self._evaluated = evaluated
        self._root = root
        self.text = text
        self.size = encodings_size(evaluated.index, text)

    def top(self, k: int) -> list[Member]:
        """The k most probable, in guaranteed order; `logprob` is that of the tokens, log →p_Δ."""
        check_count("k", k, 0)
        members = members_in_order(self._evaluated, self._root, self.text, exactly=True)
        return list(islice(members, k))
