"""Drafts of several requests, advanced side by side: one model call evaluates them all.

Whoever writes a token at a time for one request reads all of the model's weights for it. Where
several are under way, their last tokens go through the model together, each on the tree of its own
prompt, if the engine can (`TogetherLM`); else in a call each, as alone. What is drawn is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress

from charwise.cursor.drafts import Drafts
from charwise.cursor.shared_tree import SharedTree
from charwise.token_lm import TogetherLM


def advance_together(several: Sequence[Drafts]) -> list[Exception | None]:
    """Evaluate the last tokens of all unfinished drafts and draw their next.

    Args:
        several: of requests to the same engine; several may share a tree.

    Returns:
        For each of them what `Drafts.advance` would have raised, or None: one that fails does not
        end the others.

    >>> import charwise
    >>> from charwise.cursor.options import GenerationOptions
    >>> lm = charwise.load()
    >>> texts = ["import nu", "for i in ra"]
    >>> options = GenerationOptions(max_new_bytes=8)
    >>> both = [Drafts(lm.state(text), options, options.limit()) for text in texts]
    >>> while any(drafts.active() for drafts in both):
    ...     errors = advance_together(both)
    >>> [drafts.completion(drafts.drafts[0]).text for drafts in both]
    ['mpy as n', 'nge(1, l']
    """
    errors: dict[int, Exception] = {}
    ready = [(one, drafts) for one in several if (drafts := one.ready())]
    trees = {id(one.shared): one.shared for one, _ in ready}
    with ExitStack() as locks:
        for key in sorted(trees):  # in one order, or two callers wait for each other
            locks.enter_context(trees[key].lock)
        edges: dict[int, list[tuple[int, int]]] = {key: [] for key in trees}
        for one, drafts in ready:
            edges[id(one.shared)] += [(d.node, d.token) for d in drafts if d.token >= 0]
        wanted = [key for key in trees if edges[key]]
        found = extended([(trees[key], edges[key]) for key in wanted])
        made = dict(zip(wanted, found, strict=True))
        for one, drafts in ready:
            nodes = made.get(id(one.shared), [])
            try:
                if isinstance(nodes, Exception):
                    raise nodes
                count = sum(draft.token >= 0 for draft in drafts)
                made[id(one.shared)] = nodes[count:]
                one.draw(drafts, one.moved(drafts, nodes[:count]))
            except Exception as error:  # told below: the others go on
                errors[id(one)] = error
    return [errors.get(id(one)) for one in several]


def extended(
    wishes: Sequence[tuple[SharedTree, list[tuple[int, int]]]],
) -> list[list[int] | Exception]:
    """The nodes that each tree was asked for, or why not: in one call, or in a call each.

    >>> import charwise
    >>> lm = charwise.load()
    >>> one, other = lm.state("import nu").shared, lm.state("for i in ra").shared
    >>> [len(nodes) for nodes in extended([(one, [(0, 5)]), (other, [(0, 5), (0, 6)])])]
    [1, 2]
    """
    if len(wishes) > 1 and isinstance(engine := wishes[0][0].engine, TogetherLM):
        with suppress(Exception):  # of one tree, and then raised below; else for the engine to tell
            together = engine.extend_together(
                [(shared.evaluated.tree, edges) for shared, edges in wishes]
            )
            if together is not None:
                return list(together)
    return [_alone(shared, edges) for shared, edges in wishes]


def _alone(shared: SharedTree, edges: list[tuple[int, int]]) -> list[int] | Exception:
    try:
        return shared.evaluated.tree.extend(edges)
    except Exception as error:
        return error
