"""Model calls: the contexts that one or several texts over one tree want evaluated, in one batch.

A batch is one call, or several where memory bounds the log-probabilities of a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from charwise.scoring.contexts import Branch
from charwise.scoring.refinement import Refinement


def run_together(works: Sequence[Refinement]) -> None:
    """Refine several texts over one tree: each round is a batch of contexts for all of them.

    >>> run_together([])
    """
    active = list(works)
    while active:
        wanted = [(work, next(work.steps, [])) for work in active]
        _evaluate([(work, branch) for work, branches in wanted for branch in branches])
        active = [work for work, branches in wanted if branches]


def _evaluate(wanted: Sequence[tuple[Refinement, Branch]]) -> None:
    """Evaluate branches in as few calls as memory allows."""
    todo = deque(wanted)
    while todo:
        first = todo[0][0]
        room = first.limits.in_call(first.rows.index.vocabulary.width)
        call, left = list[tuple[Refinement, Branch]](), list[int]()
        while todo and room and not left:
            work, (context, tokens) = todo.popleft()
            left = tokens[room:]
            call.append((work, Branch(context, tokens[:room])))
            room -= len(tokens) - len(left)
        _call(call)
        if left:  # go on from where the call ended
            work, cut = call[-1]
            *_, context = work.lattice.contexts.follow(*cut)
            todo.appendleft((work, Branch(context, left)))


def _call(call: Sequence[tuple[Refinement, Branch]]) -> None:
    """One evaluation for several texts, each of which gets its contexts."""
    rows = call[0][0].rows
    size, calls = rows.tree.size, rows.tree.calls
    found = rows.follow(
        [(int(work.lattice.contexts.node[branch.context]), branch.tokens) for work, branch in call]
    )
    calls = rows.tree.calls - calls
    parts = dict[Refinement, tuple[list[Branch], list[list[int]]]]()
    for (work, branch), nodes in zip(call, found, strict=True):
        branches, along = parts.setdefault(work, ([], []))
        branches.append(branch)
        along.append(nodes)
    for work, (branches, along) in parts.items():
        work.lattice.contexts.add(branches, along)
        if any(node >= size for nodes in along for node in nodes):
            work.calls += calls
