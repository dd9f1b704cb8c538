"""Rounds: evaluate the contexts that matter, in batched model calls at falling thresholds.

    evaluate the canonical tokens                          # one call: teacher forcing
    for round r = 1 … R:                                   # one call each
        sum forward; sum backward
        evaluate the candidates worth at least θ_r, among the K best at their position
    error(t) ← change of log p(t) while θ fell to a sixteenth, and the missing share

A candidate is worth its forward share of P(t), or its posterior if that is more. The forward share
alone misses what the rest of the text needs. The posterior alone starves the distributions of the
next bytes. docs/scoring.md has an example.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.windows import WARM_UP
from charwise.engine import EstimatedTree, TokenTree
from charwise.errors import LimitError, shorter
from charwise.scoring.contexts import Branch, Contexts, Floats
from charwise.scoring.effort import Effort
from charwise.scoring.lattice import WIDTH, Lattice
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.known_text import KnownText

#: The change of a result while θ fell by this factor states its error. A change over less may be a
#: tenth of the error.
ERROR_FALL = 16.0

#: Longest part, in bytes, whose repetition is noticed.
LONGEST_REPEAT = 32

#: Canonical tokens of a long text that are worked on at a time: attention across more costs more
#: than the calls that another portion takes.
PORTION = 192

#: Bounds on the evaluated contexts of one text: their number, and the bytes that they hold.
MOST_CONTEXTS, MEMORY = 100_000, 2**30

#: Most bytes of the log-probabilities of one model call.
CALL_MEMORY = 2**28


class Refinement:
    """The rounds of one text after one context.

    Args:
        tree, known, canonical: the token tree, the text, and its canonical tokens.
        effort: the number of rounds, or the tolerance.
        most_rounds: the most rounds, if not those of the effort.
        through: also evaluate the contexts that spell the whole text, as the next byte needs.
        max_depth: most tokens after the root that fit the window. Longer contexts are left out.
        distributions: keep of each context what `Lattice.distributions` needs.
        shared: the tree serves others too: nothing of it is dropped or forgotten.
        also: paths of tokens after the root that are evaluated before the first round. A tolerance
            may stop there.
        stated_error: another error to hold against the tolerance, in place of the mean of `error`.
            It is asked for before the first round and after each, with the number of the request
            that the change is to be counted from.
    """

    def __init__(
        self,
        tree: TokenTree,
        known: KnownText,
        canonical: Sequence[int],
        effort: Effort,
        *,
        most_rounds: float | None = None,
        through: bool = False,
        max_depth: int | None = None,
        distributions: bool = False,
        shared: bool = False,
        also: Sequence[Sequence[int]] = (),
        stated_error: Callable[[Lattice, int], float] | None = None,
    ) -> None:
        self.tree, self.effort, self.shared = tree, effort, shared
        contexts = Contexts(tree, known, through=through, next_bytes=distributions, shared=shared)
        self.lattice = Lattice(contexts, recombines=not effort.exact)
        # How far log p of the byte before each position may be off, nats: an estimate.
        self.error = np.zeros(len(known.text) + 1)
        self.calls = tree.calls  # model calls that this text took part in
        self._repeats = repeats(known)
        self._most_rounds = effort.rounds if most_rounds is None else most_rounds
        self._canonical = _base_path(canonical, known, through)
        self._max_depth = math.inf if max_depth is None else max_depth
        self._stated_error = stated_error
        self._also = [Branch(0, list(path)) for path in also]
        self._least_sums = 2 if also else 3  # before a tolerance may stop
        self._path = [0]  # contexts of the canonical tokens from where the sums are not final
        self.batches = self._portions()

    @staticmethod
    def first_call(canonical: Sequence[int], known: KnownText, through: bool) -> list[int]:
        """The canonical tokens of the first portion, as far as one call has room for them."""
        path = _base_path(canonical, known, through)
        return path[: min(_portion_of(path, known.index), _most_in_call(known.index))]

    @staticmethod
    def portion_size(index: SortedVocabulary) -> int:
        """Canonical tokens of a portion: many of bytes, since a combination has no attention."""
        return PORTION * (64 if index.vocabulary.max_token_bytes == 1 else 1)

    @property
    def contexts(self) -> int:
        """Contexts evaluated for this text, the root among them."""
        return self.lattice.contexts.evaluated

    def _portions(self) -> Iterator[list[Branch]]:
        """Yield the contexts to evaluate, one batch after another, until the text is done."""
        lattice, tokens = self.lattice, self._canonical
        while True:
            size, done = _portion_of(tokens, self.tree.index), lattice.done
            path = [self._end_of_path(len(tokens))]
            if size:
                branch = Branch(path[0], tokens[:size])
                yield [branch]
                path += lattice.contexts.follow(*branch)
            tokens = tokens[size:]
            stop = int(lattice.contexts.position[path[-1]]) if tokens else lattice.n
            lattice.enter(stop, path)
            lattice.sum_forward()
            yield from self._rounds(done)
            if not tokens:
                return
            self._path = [*self._path[:-1], *path]
            self._finish(self._path[-1 - WARM_UP :])

    def _end_of_path(self, more: int) -> int:
        """The context that canonical tokens go on from: the likeliest that has room for them."""
        c, end = self.lattice.contexts, self._path[-1]
        same = np.flatnonzero((c.position == c.position[end]) & (c.depth + more <= self._max_depth))
        return int(same[c.log_p[same].argmax()]) if len(same) else end

    def _finish(self, path: list[int]) -> None:
        """Make the sums final up to where a part of the path begins, and go on with that."""
        c = self.lattice.contexts
        nodes = c.node[path].tolist()
        needed = self.lattice.freeze(int(c.position[path[0]]), drop=not self.shared)
        if not self.shared:
            self.tree.keep(needed)
        number = {node: context for context, node in enumerate(needed)}
        self._path = [number[node] for node in nodes]

    def _rounds(self, done: int) -> Iterator[list[Branch]]:
        """The rounds of the portion after `done`. The forward sums are current before and after."""
        lattice, effort, number = self.lattice, self.effort, 1
        sums, thresholds = [lattice.log_prefix.copy()], [math.inf]  # before, and after each round
        exceeds = self._exceeds(sums, 0, done)
        if self._also and not done:
            yield self._also
            lattice.sum_forward()
            sums.append(lattice.log_prefix.copy())
            thresholds.append(math.inf)
            exceeds = self._exceeds(sums, 0, done)
        if not exceeds and lattice.reached:
            return
        # A round may find that a context which others were recombined with cannot be, after all.
        while number <= self._most_rounds or not lattice.reached:
            lattice.sum_backward()
            threshold = effort.threshold(number)
            thresholds.append(threshold)
            number += lattice.reached
            batch = lattice.select(threshold, self._max_depth)
            while not batch and not lattice.reached and threshold > 0:  # until something spells it
                threshold = min(threshold, 0.5) ** 2
                batch = lattice.select(threshold, self._max_depth)
            if self._is_full(batch) or (not batch and threshold == 0):
                return
            if batch:
                yield batch
                lattice.sum_forward()
            if effort.exact and len(sums) == 1:
                _refuse_endless(lattice)
            sums.append(lattice.log_prefix.copy())
            coarse = [theta >= ERROR_FALL * thresholds[-1] for theta in thresholds]
            since = int(np.flatnonzero(coarse)[-1])
            exceeds = self._exceeds(sums, since, done)
            last = not batch and effort.threshold(number) == threshold
            if last or (not exceeds and lattice.reached):
                return

    def _is_full(self, batch: Sequence[Branch]) -> bool:
        """Whether what is evaluated, with the batch, is above a bound: a LimitError if exact."""
        lattice = self.lattice
        contexts = len(lattice.contexts) + sum(len(branch.tokens) for branch in batch)
        full = contexts > MOST_CONTEXTS or self.tree.nbytes > MEMORY
        if self.effort.exact:
            if full:
                raise _too_many(lattice)
            return False
        # Of one letter, three hundred times, every split is worth it, and attention is quadratic.
        enough = 2 * WIDTH * max(64, lattice.stop - lattice.done)
        return full or (lattice.reached and contexts > enough)

    def _exceeds(self, sums: Sequence[Floats], since: int, done: int) -> bool:
        """State the errors of the portion after `done`; whether they are above the tolerance.

        The change is counted from `sums[since]`: `[n + 1]` log P(t) after that round.
        """
        lattice, tolerance = self.lattice, self.effort.tolerance
        part = slice(done, lattice.stop + 1)
        before, now = sums[since][part], sums[-1][part]
        with np.errstate(invalid="ignore"):
            change = np.nan_to_num(np.abs(np.diff(now) - np.diff(before)), posinf=0.0)
            surprisal = np.nan_to_num(np.maximum(0.0, -np.diff(now)), posinf=0.0)
        if self.effort.exact:
            change[:] = 0.0
        lost = -np.log1p(-np.minimum(lattice.missing[part][:-1], 1 - 1e-12))
        error = change + lost + self._errors_of_rows(done)
        repeated = self._repeats[done : lattice.stop].copy()
        if repeated.any() and not self.effort.exact:
            # A split of tiny share may pay at each repetition, and no threshold finds it. It would
            # add to P, so that all of the surprisal may be an error.
            repeated[: max(0, lattice.first_candidate() - done)] = False
            error = np.where(repeated, np.maximum(error, surprisal), error)
        self.error[done + 1 : lattice.stop + 1] = error
        stated = float(error.mean()) / math.log(2) if len(error) else 0.0  # bits a byte
        if self._stated_error is not None:
            stated = self._stated_error(lattice, since)
        return tolerance is None or len(sums) < self._least_sums or stated > tolerance

    def _errors_of_rows(self, done: int) -> Floats:
        """`[stop − done]` errors of a combination's rows: there each position has one context."""
        lattice, tree = self.lattice, self.tree
        c, errors = lattice.contexts, np.zeros(lattice.stop - done)
        if isinstance(tree, EstimatedTree):
            inside = np.flatnonzero((c.position >= done) & (c.position < lattice.stop))
            at = c.position[inside]
            tokens = [c.known.text[position] for position in at]
            errors[at - done] = tree.errors(c.node[inside].tolist(), tokens)
        return errors


def repeats(known: KnownText) -> NDArray[np.bool_]:
    """`[n]` whether a byte belongs to the third or a later repetition of a part of the text."""
    text = np.frombuffer(known.text, dtype=np.uint8)
    result = np.zeros(len(text), dtype=np.bool_)
    if known.index.vocabulary.max_token_bytes == 1:  # there is one spelling
        return result
    at = np.arange(len(text))
    for length in range(1, min(LONGEST_REPEAT, len(text) // 3) + 1):
        same = np.zeros(len(text), dtype=np.bool_)
        same[length:] = text[length:] == text[:-length]
        since = np.maximum.accumulate(np.where(same, -1, at))  # the last byte that differs
        result |= at - since >= 2 * length
    return result


def _base_path(canonical: Sequence[int], known: KnownText, through: bool) -> list[int]:
    """The canonical tokens whose contexts are needed: without the last, if it ends the text."""
    whole = sum(map(known.index.length, canonical)) == len(known.text)
    return list(canonical[:-1] if whole and not through else canonical)


def _portion_of(tokens: Sequence[int], index: SortedVocabulary) -> int:
    """How many of the canonical tokens a portion takes: all of them, if few would be left."""
    size = Refinement.portion_size(index)
    return len(tokens) if len(tokens) < size + size // 4 else size


def _most_in_call(index: SortedVocabulary) -> int:
    """The most contexts of one call: float32 for each token."""
    return max(1, CALL_MEMORY // (4 * index.vocabulary.width))


def _refuse_endless(lattice: Lattice) -> None:
    """Refuse early where the vocabulary alone shows that there are too many token strings.

    Not where an edge that was seen is impossible: such a model may rule out many of them.
    """
    c = lattice.contexts
    part = c.known.window(lattice.done, min(lattice.stop, c.last))
    if (c.mass > 0).all() and part.contexts(MOST_CONTEXTS) > MOST_CONTEXTS:
        raise _too_many(lattice)


def _too_many(lattice: Lattice) -> LimitError:
    """The error that an exact sum meets a bound."""
    text = lattice.contexts.known.text
    return LimitError(
        f"the sum over all token strings of the {len(text)} bytes {shorter(repr(text), 20)} takes "
        f"more than {MOST_CONTEXTS:,} contexts, or {MEMORY:,} bytes of memory. Use less text, or "
        "the preset 'accurate'."
    )


def refine(works: Sequence[Refinement]) -> None:
    """Refine several texts over one tree: each round is a batch of contexts for all of them."""
    active = list(works)
    while active:
        batches = [(work, next(work.batches, [])) for work in active]
        _evaluate([(work, branch) for work, branches in batches for branch in branches])
        active = [work for work, branches in batches if branches]


def _evaluate(branches: Sequence[tuple[Refinement, Branch]]) -> None:
    """Evaluate branches in as few calls as memory allows."""
    todo = deque(branches)
    while todo:
        room = _most_in_call(todo[0][0].tree.index)
        call, rest = list[tuple[Refinement, Branch]](), list[int]()
        while todo and room and not rest:
            work, (context, tokens) = todo.popleft()
            rest = tokens[room:]
            call.append((work, Branch(context, tokens[:room])))
            room -= len(tokens) - len(rest)
        _call(call)
        if rest:  # go on from where the call ended
            work, branch = call[-1]
            *_, context = work.lattice.contexts.follow(*branch)
            todo.appendleft((work, Branch(context, rest)))


def _call(call: Sequence[tuple[Refinement, Branch]]) -> None:
    """One evaluation for several texts, each of which gets its contexts."""
    tree = call[0][0].tree
    size, calls = tree.size, tree.calls
    paths = tree.extend(
        [(int(work.lattice.contexts.node[branch.context]), branch.tokens) for work, branch in call]
    )
    calls = tree.calls - calls
    parts = dict[Refinement, tuple[list[Branch], list[list[int]]]]()
    for (work, branch), nodes in zip(call, paths, strict=True):
        branches, along = parts.setdefault(work, ([], []))
        branches.append(branch)
        along.append(nodes)
    for work, (branches, along) in parts.items():
        work.lattice.contexts.add(branches, along)
        if any(node >= size for nodes in along for node in nodes):
            work.calls += calls
