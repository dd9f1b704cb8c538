"""The members of a covering one by one, the most probable first, and how many there are."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import log
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SearchLimitError, check_count
from charwise.tokens.index import SortedVocabulary

#: Contexts evaluated ahead in one call: the heaviest that are known but not evaluated.
_AHEAD = 32

#: Contexts that a search for the first members visits, if no other number is asked for.
MAX_CONTEXTS = 10_000


_Entry = tuple[float, int, int, int, int, int]


class Member(NamedTuple):
    """One token string of a covering.

    >>> member = Member((0, 1), b"na\\xc3\\xaf", -2.0)
    >>> member.text, member.raw
    ('naï', b'na\\xc3\\xaf')
    """

    token_ids: tuple[int, ...]
    raw: bytes  # its decoding, which starts with σ
    logprob: float  # log →p_Δ, nats

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character, or not yet one."""
        return self.raw.decode("utf-8", "replace")


def members_in_order(
    evaluated: EvaluatedRows,
    root: int,
    text: bytes,
    *,
    exactly: bool = False,
    max_contexts: int | None = None,
) -> Iterator[Member]:
    """The members of C(text), the most probable first; `exactly` keeps those that spell it.

    A context's weight bounds all of its members, so a member that reaches the top of the heap
    is heavier than everything not seen yet.

    Raises:
        SearchLimitError: where it would visit more than `max_contexts` for the next member.

    >>> from charwise.engines.ngram import example_lm
    >>> evaluated = EvaluatedRows.of(example_lm(), [2])
    >>> [member.token_ids for member in members_in_order(evaluated, 0, b"aa")]
    [(0, 0), (0, 1)]
    """
    index = evaluated.index
    if not text:
        yield Member((), b"", 0.0)
        return
    # Entries: (−log bound, order, position, parent, token, rank). Contexts have rank −1; a
    # member is the rank-th heaviest token of its context, which is `parent`.
    heap: list[_Entry] = [(0.0, 0, 0, root, -1, -1)]
    ranked: dict[int, NDArray[np.int64]] = {}
    order = found = 0

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
            found += 1
            yield Member(ids, text[:position] + index.sorted[token], -bound)
            push_member(weights[parent], position, parent, rank + 1)
            continue
        if len(weights) == max_contexts:
            raise _unsettled(text, found, max_contexts)
        node = _node_of(evaluated, heap, parent, token)
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


def _node_of(evaluated: EvaluatedRows, heap: list[_Entry], parent: int, token: int) -> int:
    """The node of a context; if it is new, the heaviest that wait are evaluated with it."""
    if token < 0:
        return parent
    edges = [(parent, token)]
    if not evaluated.knows(parent, token):
        ahead = heapq.nsmallest(_AHEAD - 1, heap)
        edges += [(e[3], e[4]) for e in ahead if e[5] < 0 and e[4] >= 0]
    return evaluated.extend(edges)[0]


def _unsettled(text: bytes, found: int, most: int) -> SearchLimitError:
    return SearchLimitError(
        f"{most:,} contexts were visited, and {found} members of the text ending in "
        f"{text[-20:]!r} ({len(text)} bytes) are settled: it has too many tokenizations of like "
        "weight. Give its beginning as token ids, [*ids, 'the end'], ask for fewer members, or "
        "raise max_contexts; `found` of this error has those that are settled."
    )


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
    for position in range(max(0, len(text) - index.vocabulary.munch), len(text)):
        lo, hi = index.range(text[position:])
        total += spellings[position] * (hi - lo)
    return total


def _encodings_size(index: SortedVocabulary, text: bytes) -> int:
    """|E(text)|, how many token strings decode to exactly this text.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> _encodings_size(SortedVocabulary(Vocabulary.from_bytes([b"a", b"aa"])), b"aaa")
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
        raw: the text.

    >>> from charwise.engines.ngram import example_lm
    >>> encodings = Encodings(EvaluatedRows.of(example_lm(), [2]), 0, b"aab")
    >>> encodings.size, encodings.top(1)[0].token_ids
    (1, (0, 1))
    """

    def __init__(self, evaluated: EvaluatedRows, root: int, raw: bytes) -> None:
        self._evaluated = evaluated
        self._root = root
        self.raw = raw

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character."""
        return self.raw.decode("utf-8", "replace")

    @cached_property
    def size(self) -> int:
        """How many there are; of a long text a number of many digits."""
        return _encodings_size(self._evaluated.index, self.raw)

    def top(self, k: int, *, max_contexts: int = MAX_CONTEXTS) -> list[Member]:
        """The k most probable, in guaranteed order; `logprob` is that of the tokens, log →p_Δ.

        Raises:
            SearchLimitError: if `max_contexts` do not settle which they are.
        """
        members = partial(members_in_order, self._evaluated, self._root, self.raw, exactly=True)
        return first_members(members, k, max_contexts)


def first_members(
    members: Callable[..., Iterator[Member]], k: int, max_contexts: int
) -> list[Member]:
    """The first k of members in order.

    Args:
        members: `members_in_order` of a text, which is told `max_contexts`.
        k: how many.
        max_contexts: most contexts to visit.

    Raises:
        SearchLimitError: if `max_contexts` do not settle which they are.

    >>> import charwise
    >>> from functools import partial
    >>> lm = charwise.load()
    >>> rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    >>> members = partial(members_in_order, rows, 0, b"import nump")
    >>> [member.text for member in first_members(members, 1, 100)]
    ['import numpy']
    """
    check_count("k", k, 0)
    check_count("max_contexts", max_contexts, 1)
    found = list[Member]()
    try:
        for member in islice(members(max_contexts=max_contexts), min(k, sys.maxsize)):
            found.append(member)
    except SearchLimitError as error:
        error.found = tuple(found)
        raise
    return found
