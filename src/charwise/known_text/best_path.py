"""The best path that is known of a text: what leaves a base path, and pays.

The canonical tokens are seldom the best of a text that a model was not trained on: over 400 bytes,
others may be 60 nats more likely. What is tried along a base path shows what it is worth beside the
tokens that the rest of the text has, so the base should be the best path, as far as it is known.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

from charwise.known_text.vertex import Vertex
from charwise.known_text.walk import Walk


class Detour(NamedTuple):
    """Tokens that leave a base path and come back to it.

    >>> Detour(start=0, stop=3, gain=0.5, tokens=(7,)).gain
    0.5
    """

    start: int  # where it leaves the base path
    stop: int  # how far it is known beside it
    gain: float  # by how much it is more likely than the base path in between, nats
    tokens: tuple[int, ...]


def better(base: Walk, start: int, stop: int, least: float) -> list[int] | None:
    """A base path with the detours that pay most between two positions.

    Args:
        base: as far as it is evaluated.
        start, stop: positions; a token of the base path begins at the first.
        least: what they must pay together, nats.

    Returns:
        All of its tokens; None where no detours pay so much.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"]))
    >>> root = Vertex(0, 0, (), 0, edges=[(2, 2, 0.1), (0, 1, 0.5)])
    >>> ab, a = Vertex(1, 2, (2,), 1), Vertex(2, 1, (0,), 1, edges=[(1, 2, 0.5)])
    >>> root.follow(2, ab), root.follow(0, a), a.follow(1, Vertex(3, 2, (1, 0), 2))
    (None, None, None)
    >>> base = Walk([2], index)
    >>> base.follow(root)
    >>> better(base, 0, 2, least=0.5), better(base, 0, 2, least=1.0)
    ([0, 1], None)
    """
    ending: dict[int, list[Detour]] = {}
    for one in detours(base, start, stop):
        ending.setdefault(one.stop, []).append(one)
    paid: dict[int, float] = {start: 0.0}  # at most, up to there
    last: dict[int, Detour] = {}  # and how
    first = n = bisect_left(base.starts, start)
    while n < len(base.tokens) and base.starts[n + 1] <= stop and base.reaches(base.starts[n + 1]):
        before, at = base.starts[n], base.starts[n + 1]
        paid[at], n = paid[before], n + 1
        for one in ending.get(at, ()):
            if paid[one.start] + one.gain > paid[at]:
                paid[at], last[at] = paid[one.start] + one.gain, one
    if paid[base.starts[n]] < least:
        return None
    parts, at = [base.tokens[n:]], base.starts[n]
    while at > start:
        if at in last:
            parts.append(list(last[at].tokens))
            at = last[at].start
        else:
            n = bisect_left(base.starts, at) - 1
            parts.append([base.tokens[n]])
            at = base.starts[n]
    parts.append(base.tokens[:first])
    return [token for part in reversed(parts) for token in part]


def detours(base: Walk, start: int, stop: int) -> list[Detour]:
    """What is evaluated beside a base path between two positions.

    What has come back to it and was followed along it from there counts as far as it was followed.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> base = Walk([0], SortedVocabulary(Vocabulary.from_bytes([b"a"])))
    >>> base.follow(Vertex(0, 0, (), 0))  # nothing is evaluated beside it
    >>> detours(base, 0, 1)
    []
    """
    found = list[Detour]()
    for n in range(bisect_left(base.starts, start), len(base.tokens)):
        if base.starts[n + 1] > stop or not base.reaches(base.starts[n + 1]):
            break
        found += _from(base, base.starts[n], stop)
    return found


def _from(base: Walk, start: int, stop: int) -> list[Detour]:
    """The detours that leave a base path at a position where one of its tokens begins."""
    found = list[Detour]()
    origin, usual = base.vertex(start), base.token_at(start)
    left: list[tuple[Vertex, tuple[int, ...]]] = [
        (child, (token,)) for token, child in origin.children.items() if token != usual
    ]
    while left:
        vertex, tokens = left.pop()
        if vertex.position > stop or vertex.log_p == -math.inf:
            continue
        left += [(child, (*tokens, token)) for token, child in vertex.children.items()]
        if base.reaches(vertex.position):
            along = base.token_at(vertex.position)
            if along is None or along not in vertex.children:
                spent = base.log_p(start, vertex.position)
                gain = vertex.log_p - origin.log_p - spent
                found.append(Detour(start, vertex.position, gain, tokens))
    return found
