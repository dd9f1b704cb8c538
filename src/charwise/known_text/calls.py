"""Model calls: what one or several texts over one tree want evaluated, side by side.

A batch is one call, or several where memory bounds the logits of a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from charwise.coverings.rows import EvaluatedRows
from charwise.known_text.vertex import Branch, Unevaluated
from charwise.tokens.index import SortedVocabulary

#: Most canonical tokens that are worked on at a time: with more, attention to all of them costs
#: more than the calls that a portion takes.
PORTION = 128

#: Canonical tokens of a section, in which other ways to split what repeats are tried.
SECTION = 256

#: Bytes of logits of one model call, at most: they are turned into masses, and forgotten.
_LOGITS = 2**25


class Work(Protocol):
    """The `Rounds` of a text, as far as its calls go.

    Attributes:
        evaluated: the tree.
        calls: model calls that it took part in.
    """

    evaluated: EvaluatedRows
    calls: int

    def wants(self) -> list[Branch]: ...
    def add(self, branches: Sequence[Branch], found: Sequence[Sequence[int]]) -> None: ...


def first_path(canonical: Sequence[int], index: SortedVocabulary, through: bool) -> Sequence[int]:
    """The canonical tokens that `Rounds.run` needs first, to be evaluated with the root.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> first_path([0, 1, 0], SortedVocabulary(Vocabulary.from_bytes([b"a", b"b"])), through=False)
    [0, 1]
    """
    most = min(SECTION, _batch(index))
    return canonical[: min(most, len(canonical) - (not through))]


def run_together(works: Sequence[Work]) -> None:
    """The rounds of several texts over one tree side by side: a batch of what all of them want.

    A text is done when it wants nothing.

    >>> run_together([])
    """
    while works:
        wanted = [(work, work.wants()) for work in works]
        evaluate(wanted)
        works = [work for work, branches in wanted if branches]


def evaluate(wanted: Sequence[tuple[Work, Sequence[Branch]]]) -> None:
    """Evaluate branches of one or several texts over one tree, in as few calls as memory allows.

    >>> evaluate([])
    """
    todo = deque((rounds, branch) for rounds, branches in wanted for branch in branches)
    done = 0  # contexts of the first branch that earlier calls evaluated
    while todo:
        call, new = list[tuple[Work, Branch]](), Unevaluated()
        most = _batch(todo[0][0].evaluated.index)
        while todo:
            rounds, branch = todo[0]
            left = branch.after(done)
            taken = new.take(left, most)
            call.append((rounds, Branch(left.parent, left.tokens[:taken])))
            done += taken
            if done < len(branch.tokens):
                break
            todo.popleft()
            done = 0
        _call(call)


def _call(call: Sequence[tuple[Work, Branch]]) -> None:
    """One evaluation for several texts, each of which gets its vertices."""
    evaluated = call[0][0].evaluated
    size, calls = evaluated.tree.size, evaluated.tree.calls
    found = evaluated.follow([(branch.parent.node, branch.tokens) for _, branch in call])
    calls = evaluated.tree.calls - calls
    shares: dict[Work, tuple[list[Branch], list[list[int]]]] = {}
    for (rounds, branch), nodes in zip(call, found, strict=True):
        branches, along = shares.setdefault(rounds, ([], []))
        branches.append(branch)
        along.append(nodes)
    for rounds, (branches, along) in shares.items():
        rounds.add(branches, along)
        if any(node >= size for nodes in along for node in nodes):
            rounds.calls += calls


def _batch(index: SortedVocabulary) -> int:
    """Most contexts of one call."""
    return max(1, _LOGITS // (4 * index.vocabulary.width))
