"""Refinement: evaluate the contexts that matter, in rounds of one batched model call each.

One round at half the width comes first, then a level at the width and threshold of the effort.
With a tolerance the width doubles until the stated error is below it. docs/scoring.md has the
pseudo-code.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SearchLimitError, shorter
from charwise.scoring.contexts import Branch, Contexts, Floats
from charwise.scoring.effort import Effort, Limits
from charwise.scoring.lattice import Lattice
from charwise.scoring.respelling import respell
from charwise.scoring.selection import LOOKAHEAD, select
from charwise.token_lm import held_bytes
from charwise.tokens.known_text import KnownText

#: Rounds of each level after the coarse one, at most.
FINE_ROUNDS = 6

#: The width at which a tolerance gives up.
WIDEST = 32

#: Canonical tokens of a long text that are worked on at a time: attention across more costs more
#: than the calls that another portion takes.
PORTION = 192

#: A text of fewer canonical tokens has a lower θ, in proportion: its calls cost more than contexts.
SHORT = 64

#: A byte's log-probability errs by this part of its surprisal, where all of it is on loan; or by
#: this part of its change since the coarse level, if that is more.
LOAN_ERROR, CHANGE_ERROR = 0.035, 0.3


class Refinement:
    """The refinement of one text after one context.

    Args:
        rows: the token tree. It may serve several texts.
        known: the text, any bytes.
        canonical: its canonical tokens.
        effort: the width and the threshold, or the tolerance.
        limits: bounds on memory and calls.
        through: also evaluate the contexts that spell the whole text, as the next byte needs.
        deepest: most tokens after the root that fit the window. Longer contexts are left out.
        distributions: keep of each context what `Lattice.distributions` needs.
        respells: whether to spend more on what occurs again, and on a short text.
        keeps: whether all evaluated contexts stay in the tree; by default if their
            log-probabilities do.
        stated: another error to hold against the tolerance, in place of the mean of `error`. It is
            asked for after each level.

    Attributes:
        lattice: the evaluated contexts and their sums.
        error: `[n + 1]` by how much the log-probability of each byte may be off, nats: an
            estimate. The entry at t is that of the byte before position t.
        calls: model calls that this text took part in.
        limited: whether a limit ended the work, or the tolerance was not reached.

    >>> import charwise
    >>> from charwise.scoring.refinement import run_together
    >>> lm, text = charwise.load(), b"import os"
    >>> rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    >>> known = KnownText.of(text, lm.index)
    >>> found = Refinement(rows, known, lm.vocabulary.encode(text), Effort(8))
    >>> run_together([found])
    >>> found.lattice.log_prefix.shape, found.limited
    ((10,), False)
    """

    def __init__(
        self,
        rows: EvaluatedRows,
        known: KnownText,
        canonical: Sequence[int],
        effort: Effort,
        limits: Limits | None = None,
        *,
        through: bool = False,
        deepest: int | None = None,
        distributions: bool = False,
        respells: bool = True,
        keeps: bool | None = None,
        stated: Callable[[Lattice], float] | None = None,
    ) -> None:
        self.rows, self.effort, self.limits = rows, effort, limits or Limits()
        contexts = Contexts(rows, known, through=through, next_bytes=distributions)
        self.lattice = Lattice(contexts, lends=not effort.exact)
        self._base = base_path(canonical, known, through)
        self.deepest = math.inf if deepest is None else deepest
        self.error = np.zeros(len(known.text) + 1)
        self.calls, self.limited = rows.tree.calls, False
        # Where log-probabilities stay, they must fit the memory.
        held = self.limits.memory // (4 * rows.index.vocabulary.width)
        self._most = min(self.limits.contexts, held) if rows.retain else self.limits.contexts
        self._keeps, self._stated = rows.retain if keeps is None else keeps, stated
        self._path = [0]  # contexts of the base path, from where the sums are not final
        self._respells, self._calls_left = respells, 0
        self.steps = self._portions()

    @property
    def contexts(self) -> int:
        """Contexts evaluated for this text, the root among them."""
        return self.lattice.contexts.evaluated

    def _portions(self) -> Iterator[list[Branch]]:
        """Yield the contexts to evaluate, one batch after another, until the text is done."""
        lattice, tokens = self.lattice, self._base
        while True:
            last = portion_of(tokens)
            self._calls_left = self.limits.calls
            chain = [self._end_of_path(len(tokens))]
            if last:
                branch = Branch(chain[0], tokens[:last])
                yield [branch]
                chain += lattice.contexts.follow(*branch)
            tokens = tokens[last:]
            if self._respells and not self.effort.exact:
                chain = yield from respell(lattice.contexts, chain, self.deepest, self._spent)
            before = lattice.done
            lattice.enter(int(lattice.contexts.position[chain[-1]]) if tokens else lattice.n, chain)
            lattice.forward()
            yield from self._levels(before)
            if not tokens:
                return
            self._path = [*self._path[:-1], *chain]
            self._finish(self._path[-1 - LOOKAHEAD :])

    def _end_of_path(self, more: int) -> int:
        """The context that the base path goes on from: the likeliest that has room for it."""
        c, end = self.lattice.contexts, self._path[-1]
        here = np.flatnonzero((c.position == c.position[end]) & (c.depth + more <= self.deepest))
        return int(here[c.log_p[here].argmax()]) if len(here) else end

    def _finish(self, path: list[int]) -> None:
        """Make the sums final up to where a part of the base path begins, and go on with that."""
        c = self.lattice.contexts
        nodes = c.node[path].tolist()
        kept = self.lattice.freeze(int(c.position[path[0]]), drop=not self._keeps)
        if not self._keeps:
            self.rows.keep(kept)
        number = {node: context for context, node in enumerate(kept)}
        self._path = [number[node] for node in nodes]

    def _levels(self, done: int) -> Iterator[list[Branch]]:
        """All levels of the portion after `done`."""
        lattice, effort = self.lattice, self.effort
        width, threshold = effort.width, effort.threshold
        if effort.exact:
            # After one round it is known what leaves the canonical tokens.
            yield from self._refine(width, threshold, 1)
            _refuse_endless(lattice, self._most)
            yield from self._refine(width, threshold, math.inf)
            return
        if self._respells:
            threshold *= min(1.0, len(self._base) / SHORT)
        # θ goes with 1 / K², as in the presets.
        yield from self._refine(float(np.ceil(width / 2)), 4 * threshold, 1)
        self._above(done)  # `stated` sees the coarse level too
        while True:
            coarse = lattice.log_prefix.copy()
            yield from self._refine(width, threshold, FINE_ROUNDS)
            self._state_error(done, coarse)
            above = self._above(done)
            if not above or width >= WIDEST:
                self.limited |= above
                return
            width, threshold = 2 * width, threshold / 4

    def _refine(self, width: float, threshold: float, rounds: float) -> Iterator[list[Branch]]:
        """Evaluate wanted contexts until none is left, or for `rounds` if the end is reached.

        The forward sums are current before and after.
        """
        lattice = self.lattice
        while rounds > 0 or not lattice.reached:
            lattice.backward()
            wanted = select(lattice, width, threshold, self.deepest)
            lower = threshold
            while not wanted and not lattice.reached and lower > 0:  # until something spells it
                lower = min(lower, 0.5) ** 2
                wanted = select(lattice, math.inf, lower, self.deepest)
            if not wanted or self._spent(wanted):
                return
            yield wanted
            lattice.forward()
            rounds -= 1

    def _spent(self, wanted: Sequence[Branch]) -> bool:
        """Whether a limit forbids to evaluate more."""
        lattice, row = self.lattice, self.rows.index.vocabulary.width
        self._calls_left -= 1
        contexts = len(lattice.contexts) + sum(len(branch.tokens) for branch in wanted)
        met = f"{self._most:,} contexts that it may evaluate" if contexts > self._most else ""
        if self._calls_left < 0:
            met = f"{self.limits.calls:,} model calls that it may take"
        elif held_bytes(self.rows.tree, row) > self.limits.memory:
            met = f"{self.limits.memory:,} bytes of memory that it may hold"
        if met and self.effort.exact:
            raise _too_many(lattice, met)
        self.limited |= bool(met)
        return bool(met)

    def _state_error(self, done: int, coarse: Floats) -> None:
        """State the errors from `done` on: of loans or the last level, and of the missing share."""
        lattice = self.lattice
        part = slice(done, lattice.stop + 1)
        logs = lattice.log_prefix[part]
        with np.errstate(invalid="ignore"):
            surprisal = np.nan_to_num(-np.diff(logs), posinf=0.0)
            changed = np.nan_to_num(np.abs(np.diff(logs) - np.diff(coarse[part])), posinf=0.0)
        loan = LOAN_ERROR * lattice.on_loan[part][1:] * surprisal
        lost = -np.log1p(-np.minimum(lattice.missing[part][:-1], 1 - 1e-12))
        self.error[done + 1 : lattice.stop + 1] = np.maximum(loan, CHANGE_ERROR * changed) + lost

    def _above(self, done: int) -> bool:
        """Whether the stated error of a portion is above the tolerance."""
        tolerance = math.inf if self.effort.tolerance is None else self.effort.tolerance
        if self._stated is not None:
            return self._stated(self.lattice) > tolerance
        part = self.error[done + 1 : self.lattice.stop + 1]
        return bool(len(part) and part.mean() > tolerance * math.log(2))


def base_path(canonical: Sequence[int], known: KnownText, through: bool) -> list[int]:
    """The canonical tokens whose contexts are needed: without the last, if it ends the text.

    >>> import charwise
    >>> lm = charwise.load()
    >>> len(base_path(lm.vocabulary.encode("os"), KnownText.of(b"os", lm.index), through=False))
    0
    """
    whole = sum(map(known.index.length, canonical)) == len(known.text)
    return list(canonical[:-1] if whole and not through else canonical)


def portion_of(tokens: Sequence[int]) -> int:
    """How many tokens of the base path a portion takes: all of them, if few would be left.

    >>> portion_of([0] * 200), portion_of([0] * 1000)
    (200, 192)
    """
    return len(tokens) if len(tokens) < PORTION + PORTION // 4 else PORTION


def _refuse_endless(lattice: Lattice, most: int) -> None:
    """Refuse early where the vocabulary alone shows that there are too many token strings.

    A model that rules out many of them may be summed over long text, so nothing is refused where
    an edge that was seen is impossible.
    """
    c = lattice.contexts
    part = c.known.window(lattice.done, min(lattice.stop, c.last))
    if (c.mass > 0).all() and part.contexts(most) > most:
        raise _too_many(lattice, f"{most:,} contexts that it may evaluate")


def _too_many(lattice: Lattice, limit: str) -> SearchLimitError:
    """The error that an exact sum meets a limit."""
    text = lattice.contexts.known.text
    return SearchLimitError(
        f"the sum over all token strings of the {len(text)} bytes {shorter(repr(text), 20)} takes "
        f"more than the {limit}. Use less text, the preset 'accurate', or higher charwise.Limits."
    )


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
