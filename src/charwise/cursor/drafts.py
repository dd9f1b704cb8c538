"""Conditional generation: samples from p(completion | the prompt's characters).

Vieira et al. 2025, §3.4 and Prop. 2: draw a member of the prompt's covering in proportion to its
prefix probability, then go on token by token, as the model always does. The member's last token
may run past the prompt, so there is no boundary at the cursor. docs/generation.md derives it, and
shows how masking (token healing) differs.

Under a constraint, members are those that run past the text with bytes that may follow
(`members.py`), and tokens those that may (`following.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from charwise.constraints.constraint import Flags
from charwise.coverings.bundles import Bundle
from charwise.cursor.completion import Placed
from charwise.cursor.drawing import Drawing, DrawnText
from charwise.cursor.following import Following, draw_tokens
from charwise.cursor.members import Members
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.shared_tree import SharedTree
from charwise.engine import TogetherLM


class Cursor(Placed, Protocol):
    """A `State`, as far as drawing tokens after it goes."""

    shared: SharedTree

    @property
    def bundles(self) -> tuple[Bundle, ...]: ...
    @property
    def logprob(self) -> float: ...
    @property
    def at_root(self) -> bool: ...


@dataclass(kw_only=True)
class Draft(DrawnText):
    """A completion being drawn, and where it stands in the token tree."""

    node: int
    token: int  # drawn after `node`, not evaluated yet; −1 before the first
    following: Following | None = None


class Drafts(Drawing[Draft]):
    """The completions of one request, each begun with a member of the prompt's covering.

    Attributes:
        shared: the tree that they are drawn on.
        rows: what the last tokens were drawn from.

    >>> import charwise
    >>> state, options = charwise.load().state("import nump"), GenerationOptions(max_new_bytes=1)
    >>> Drafts(state, options, options.limit()).completions()[0].text
    'y'
    """

    def __init__(self, state: Cursor, options: GenerationOptions, limit: Limit) -> None:
        super().__init__(state, options, limit)
        self.shared, constraint = state.shared, options.constraint
        self.tree = self.shared.tree
        self.mine: list[int] = []
        self.rows: list[tuple[Draft, torch.Tensor]] = []
        device = self.shared.engine.device
        self.torch_rng = torch.Generator(device).manual_seed(self.seed % 2**63)
        self.drafts = draw_members(state, options, self.rng)
        begun = None if constraint is None else Following.of(constraint, self.shared.index)
        for draft in self.drafts:
            draft.following = None if begun is None else begun.after(draft.raw)
            self.check(draft)

    def allowed(self, draft: Draft) -> Flags | None:
        """`[257]` the bytes that may follow a draft, at 256 the end; None for all of them."""
        return None if draft.following is None else draft.following.allowed

    def advance(self) -> None:
        """Evaluate every unfinished draft's last token and draw its next."""
        [error] = advance_together([self])
        if error is not None:
            raise error

    def ready(self) -> list[Draft]:
        """The drafts that go on: neither the limit nor the window ends them here."""
        window = self.shared.engine.window
        reached = self.limit.reached()
        for draft in self.active():
            draft.finish = reached
            if window is not None and not reached:
                longer = self.shared.length(draft.node) + (draft.token >= 0)
                draft.finish = "window" if longer > window else ""
        return self.active()

    def moved(self, drafts: list[Draft], nodes: list[int]) -> torch.Tensor:
        """Log-probabilities after these drafts, `[n, width]`; `nodes` of those with a token.

        The tree's lock is held.
        """
        self.mine += nodes
        new = [draft for draft in drafts if draft.token >= 0]
        for draft, node in zip(new, nodes, strict=True):
            draft.node = node
        logprobs = self.tree.logprobs([draft.node for draft in drafts])
        self.tree.forget(nodes)
        return logprobs

    def draw(self, drafts: list[Draft], logprobs: torch.Tensor) -> None:
        """Draw the next token of each of these drafts."""
        vocabulary = self.shared.index.vocabulary
        drafts, rows = self.reachable(drafts, logprobs)
        if not drafts:
            return
        tokens = draw_tokens(rows, self.options, self.torch_rng).tolist()
        self.rows = list(zip(drafts, rows, strict=True))
        for at, (draft, row) in enumerate(self.rows):
            if draft.following is not None:
                tokens[at], draft.following = draft.following.draw(
                    tokens[at], row, self.options, self.torch_rng
                )
        drawn = torch.tensor(tokens, device=rows.device).clamp(min=0)[:, None]
        scores = rows.gather(1, drawn)[:, 0].double().tolist()
        for draft, token, score in zip(drafts, tokens, scores, strict=True):
            if token < 0:
                draft.finish = "dead end"
                continue
            draft.logprob += score
            draft.token = token
            if token in vocabulary.end_ids:
                draft.finish = "end"
                continue
            draft.token_ids.append(token)
            self.take(draft, vocabulary.tokens[token] or b"")
            self.check(draft)

    def reachable(
        self, drafts: list[Draft], logprobs: torch.Tensor
    ) -> tuple[list[Draft], torch.Tensor]:
        """The drafts that can go on, and the rows from which they draw."""
        return drafts, logprobs

    def begun(self, draft: Draft) -> bytes:
        """The first bytes of a draft's last token that are no part of the draft: none, here."""
        return b""

    def take(self, draft: Draft, data: bytes) -> None:
        """Add the bytes of a token to a draft."""
        draft.raw += data

    def close(self) -> None:
        """Give back the memory of the contexts drawn on the way."""
        self.shared.drop(self.mine)
        self.mine = []


def draw_members(
    state: Cursor, options: GenerationOptions, rng: np.random.Generator
) -> list[Draft]:
    """n members of the covering: drawn by prefix probability, or the n most probable.

    Under a constraint those that run past the text with bytes that may follow.

    Raises:
        ConstraintError: if there is none.
    """
    shared = state.shared
    index, tree = shared.index, shared.tree
    if state.at_root:
        return [Draft(node=state.bundles[0].node, token=-1) for _ in range(options.n)]
    members = Members(shared, state.bundles)
    drafts = []
    for at in members.choose(options, rng):
        bundle, rank = members.place(at)
        token = int(index.ids[rank])
        drafts.append(
            Draft(
                raw=members.beyond(at),
                logprob=float(members.logs[at]) - state.logprob,
                token_ids=[*tree.tokens(bundle.node), token],
                node=bundle.node,
                token=token,
            )
        )
    return drafts


def advance_together(several: Sequence[Drafts]) -> list[Exception | None]:
    """Evaluate the last tokens of all unfinished drafts and draw their next.

    Whoever writes a token at a time for one request reads all of the model's weights for it. Where
    several are under way, their last tokens go through the model together, each on the tree of its
    own prompt, if the engine can (`TogetherLM`); else in a call each. What is drawn is the same.

    Args:
        several: of requests to the same engine; several may share a tree.

    Returns:
        For each of them what `Drafts.advance` would have raised, or None: one that fails does not
        end the others.

    >>> import charwise
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
        found = _extended([(trees[key], edges[key]) for key in wanted])
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


def _extended(
    wishes: Sequence[tuple[SharedTree, list[tuple[int, int]]]],
) -> list[list[int] | Exception]:
    """The nodes that each tree was asked for, or why not: in one call, or in a call each."""
    if len(wishes) > 1 and isinstance(engine := wishes[0][0].engine, TogetherLM):
        with suppress(Exception):  # of one tree, and then raised below; else for the engine to tell
            together = engine.extend_together(
                [
                    (shared.tree, [(node, [token]) for node, token in edges])
                    for shared, edges in wishes
                ]
            )
            if together is not None:
                return [[node for [node] in paths] for paths in together]
    return [_alone(shared, edges) for shared, edges in wishes]


def _alone(shared: SharedTree, edges: list[tuple[int, int]]) -> list[int] | Exception:
    try:
        branches = [(node, [token]) for node, token in edges]
        return [node for [node] in shared.tree.extend(branches, own=True)]
    except Exception as error:
        return error
