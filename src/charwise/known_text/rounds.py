"""Rounds: evaluate what a known text needs in a few batches.

1. One teacher-forced pass over the canonical tokenization.
2. Sum (`Lattice.passage`), collect the candidates that are worth an evaluation, and follow those
   that end where a canonical token does along the canonical tokens from there.
3. Evaluate all of that in one batch; again from 2 until nothing is wanted.

docs/scoring.md derives it and counts the cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from charwise.coverings.rows import EvaluatedRows
from charwise.known_text.effort import Effort, Tail, agreement
from charwise.known_text.lattice import Edge, Lattice, Vertex, Wanted
from charwise.known_text.ranges import Ints, KnownText
from charwise.tokens.index import SortedVocabulary

#: Most and fewest canonical tokens that are worked on at a time, and the contexts to aim for:
#: with more, attention to all of them costs more than the calls that a portion takes.
PORTION, LEAST, CONTEXTS = 128, 16, 320

#: Bytes of logits of one model call, at most: they are turned into masses, and forgotten.
_LOGITS = 2**25


class Step(NamedTuple):
    """A context to evaluate: `token` after the vertex `parent`, maybe one of an earlier step.

    >>> Step(parent=0, token=7, position=3, tail=(7, None), depth=1).position
    3
    """

    parent: int
    token: int
    position: int
    tail: Tail
    depth: int  # tokens after the root


class Rounds:
    """The rounds over one text after one context.

    Args:
        evaluated: what has been evaluated before is used, and what is new is added.
        root: the node after which the text stands.
        known: the text σ, any bytes.
        effort: how much to spend.
        through: also evaluate the contexts that spell the whole text, as the next byte needs.
        deepest: most tokens after the root that fit the window; longer contexts are left out.

    Attributes:
        lattice: the evaluated contexts and their sums.
        rounds: batches evaluated so far.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index = SortedVocabulary(vocabulary)
    >>> rounds = Rounds(
    ...     EvaluatedRows(lm.tree([2]), index), 0, KnownText.of(b"aa", index), Effort(0.0, 1.0)
    ... )
    >>> np.exp(rounds.run(vocabulary.encode(b"aa")).log_prefix).round(9).tolist()
    [1.0, 0.75, 0.375]
    """

    def __init__(
        self,
        evaluated: EvaluatedRows,
        root: int,
        known: KnownText,
        effort: Effort,
        *,
        through: bool = False,
        deepest: int | None = None,
    ) -> None:
        self.evaluated = evaluated
        self.effort = effort
        self.known = known
        self.lattice = Lattice(self.known, effort, through)
        self.deepest = deepest
        self.rounds = 0
        # The canonical tokens, and which of them begins where.
        self._canonical: tuple[Sequence[int], dict[int, int]] = ([], {})
        self.add([Step(-1, -1, 0, None, 0)], [root])

    def run(self, canonical: Sequence[int]) -> Lattice:
        """All rounds, from the canonical tokenization of the text to the last that is wanted.

        The text is taken in portions of `PORTION` canonical tokens, which bounds the contexts
        held at a time. With θ = 0 and rounds enough this changes no number. Otherwise it may
        change which contexts are evaluated: a candidate's share is taken when its portion is
        worked on, and what is to its left is final by then.
        """
        for steps in self.work(canonical):
            evaluate([(self, steps)])
        return self.lattice

    def work(self, canonical: Sequence[int]) -> Iterator[list[Step]]:
        """What `run` evaluates, batch by batch: each is to be evaluated before the next."""
        ends = np.cumsum([0, *map(self.evaluated.index.length, canonical)]).tolist()
        self._canonical = canonical, {position: n for n, position in enumerate(ends)}
        end, size = len(self.lattice.log_prefix), PORTION
        last, position, at, stop = 0, 0, 0, 0
        while stop < end:
            before = len(self.lattice.vertices)
            last, position, steps = self._follow(last, position, canonical[at : at + size])
            at += size
            yield steps
            stop = end if at >= len(canonical) else position
            limit = self.rounds + self.effort.rounds - 1
            while True:
                wanted = self.lattice.passage(stop)
                steps = self._steps(wanted) if self.rounds < limit else []
                if not steps:
                    break
                yield steps
            if stop < end:
                kept = self.lattice.freeze()
                if not self.evaluated.retain:
                    nodes = [self.lattice.vertices[v].node for v in kept]
                    self.evaluated.keep(nodes)
                density = (len(self.lattice.vertices) - before) / size
                size = max(LEAST, min(PORTION, int(CONTEXTS / density)))

    def _follow(
        self, last: int, position: int, canonical: Sequence[int]
    ) -> tuple[int, int, list[Step]]:
        """Canonical tokens after the vertex `last`: the new last one, where it ends, the steps."""
        lattice, steps = self.lattice, list[Step]()
        first = len(lattice.vertices)
        tail, depth = lattice.vertices[last].tail, lattice.vertices[last].depth
        for token in canonical:
            position += self.evaluated.index.length(token)
            depth += 1
            tail = (token, tail)
            inside = position < len(self.known.text) + lattice.through
            if not inside or self._too_deep(depth):
                break
            ahead = lattice.children.get((last, token))  # a lookahead may have been here
            if ahead is None:
                steps.append(Step(last, token, position, tail, depth))
                ahead = first + len(steps) - 1
            last = ahead
        return last, position, steps

    def _steps(self, wanted: list[Wanted]) -> list[Step]:
        """What to evaluate next: the wanted candidates, heaviest first, and their lookahead."""
        lattice = self.lattice
        chosen: dict[int, list[Tail]] = {}
        steps: list[Step] = []
        first = len(lattice.vertices)
        for rho, parent, token, position in sorted(wanted, reverse=True):
            tail, depth = lattice.tail(parent, token), lattice.vertices[parent].depth + 1
            if self._rejoins(rho, tail, chosen.get(position, ())) or self._too_deep(depth):
                continue
            steps.append(Step(parent, token, position, tail, depth))
            chosen.setdefault(position, []).append(tail)
            # Shares only fall, so a light candidate is evaluated alone.
            for following in self._canonical_rest(position) if self.effort.worth(rho, 0) else ():
                rho, position = self._continued(rho, position, following)
                tail, depth = (following, tail), depth + 1
                if position >= len(self.known.text) or self._too_deep(depth):
                    break
                if not self.effort.worth(rho, 0):
                    break
                there = [lattice.vertices[v].tail for v in lattice.at[position]]
                if self._rejoins(rho, tail, [*there, *chosen.get(position, ())]):
                    break
                steps.append(Step(first + len(steps) - 1, following, position, tail, depth))
                chosen.setdefault(position, []).append(tail)
        return steps

    def _continued(self, rho: float, position: int, token: int) -> tuple[float, int]:
        """What share an alternative should have one token on, and where that is.

        As the model continues the heaviest context that is evaluated there. Where none is, nothing
        is known: the alternative is in the middle of what is canonically a token.
        """
        lattice, end = self.lattice, position + self.evaluated.index.length(token)
        here = [lattice.vertices[v] for v in lattice.at[position]]
        if not here or end >= len(lattice.log_prefix) or lattice.log_prefix[end] == -np.inf:
            return 0.0, end
        heaviest = max(here, key=lambda vertex: vertex.weight)
        mass = heaviest.mass(token)
        rise = lattice.log_prefix[position] - lattice.log_prefix[end]
        return min(rho, rho * mass * math.exp(rise)), end

    def _rejoins(self, rho: float, tail: Tail, others: Sequence[Tail]) -> bool:
        """Whether one of the other contexts at a position serves as well."""
        if self.effort.gamma >= 1.0:
            return False
        return any(not self.effort.worth(rho, agreement(tail, other)) for other in others)

    def _too_deep(self, depth: int) -> bool:
        return self.deepest is not None and depth > self.deepest

    def _canonical_rest(self, position: int) -> Sequence[int]:
        """The canonical tokens that follow, if one begins at this position."""
        canonical, at = self._canonical
        first = at.get(position, len(canonical))
        return canonical[first : first + self.effort.lookahead]

    def add(self, steps: Sequence[Step], nodes: list[int]) -> None:
        """New vertices at evaluated nodes, with the masses that the text asks of each."""
        known, lattice = self.known, self.lattice
        positions: Ints = np.array([step.position for step in steps], dtype=np.int64)
        logprobs = self.evaluated.tree.logprobs(nodes)
        starting = known.starting(logprobs, positions).tolist()
        edges = _edges(known, logprobs, positions)
        depths = known.depths_at(positions).tolist()
        ends = list(known.index.vocabulary.end_ids)
        ending = logprobs[:, ends].double().exp().sum(dim=1).tolist() if lattice.through else None
        if not self.evaluated.retain:
            self.evaluated.tree.forget(nodes)
        for n, step in enumerate(steps):
            vertex = Vertex(nodes[n], step.position, step.depth, step.tail)
            vertex.starting, vertex.edges = starting[n][: depths[n]], edges[n]
            vertex.end = ending[n] if ending else 0.0
            lattice.add(vertex, step.parent, step.token)


def first_path(canonical: Sequence[int], index: SortedVocabulary, through: bool) -> Sequence[int]:
    """The canonical tokens that `Rounds.run` needs first, to be evaluated with the root.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> first_path([0, 1, 0], SortedVocabulary(Vocabulary.from_bytes([b"a", b"b"])), through=False)
    [0, 1]
    """
    most = min(PORTION, _LOGITS // (4 * index.vocabulary.width))
    return canonical[: min(most, len(canonical) - (not through))]


def evaluate(work: Sequence[tuple[Rounds, Sequence[Step]]]) -> None:
    """Evaluate the steps of one or several rounds over one tree, in as few calls as memory allows.

    >>> evaluate([])
    """
    flat = [(rounds, step) for rounds, steps in work for step in steps]
    if not flat:
        return
    evaluated = flat[0][0].evaluated
    size = max(1, _LOGITS // (4 * evaluated.index.vocabulary.width))
    for start in range(0, len(flat), size):
        edges: list[tuple[int, int]] = []
        added: dict[Rounds, tuple[list[Step], list[int]]] = {}
        for rounds, step in flat[start : start + size]:
            mine, nodes = added.setdefault(rounds, ([], []))
            vertices, parent = rounds.lattice.vertices, step.parent
            first = len(vertices)
            at = vertices[parent].node if parent < first else nodes[parent - first]
            mine.append(step)
            nodes.append(evaluated.node(at, step.token, edges))
        try:
            if edges:
                evaluated.tree.extend(edges)
        except BaseException:
            evaluated.take_back(edges)
            raise
        for rounds, (mine, nodes) in added.items():
            rounds.add(mine, nodes)
    for rounds, steps in work:
        rounds.rounds += bool(steps)


def _edges(known: KnownText, logprobs: torch.Tensor, positions: Ints) -> list[list[Edge]]:
    """For each context, the tokens that spell the next bytes of the text, with their mass."""
    rows, tokens, ends = known.edges(positions)
    device = logprobs.device
    masses = logprobs[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)]
    out: list[list[Edge]] = [[] for _ in positions]
    flat = zip(
        rows.tolist(), tokens.tolist(), ends.tolist(), masses.double().exp().tolist(), strict=True
    )
    for row, token, end, mass in flat:
        if mass > 0.0:
            out[row].append((token, end, mass))
    return out
