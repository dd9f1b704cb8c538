"""Rounds: evaluate what a known text needs in a few batches.

1. One teacher-forced pass over the canonical tokenization (`BasePath.branches`).
2. Sum (`Lattice.sum`), collect the candidates that are worth an evaluation (`Candidates.wanted`),
   and follow those that end where a canonical token does along the canonical tokens from there
   (`Batches.plan`).
3. Evaluate all of that in one batch; again from 2 until nothing is wanted.

docs/scoring.md derives it and counts the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.rows import EvaluatedRows
from charwise.known_text.base_path import BasePath, Portion
from charwise.known_text.batches import Batches
from charwise.known_text.calls import PORTION, run_together
from charwise.known_text.candidates import Candidates
from charwise.known_text.effort import FINER, PRESETS, Effort
from charwise.known_text.estimate import LIMITED, byte_errors
from charwise.known_text.lattice import Lattice
from charwise.known_text.new_vertices import NewVertices
from charwise.known_text.ranges import KnownText
from charwise.known_text.repeats import RESPELLED, Repeats, contexts_of
from charwise.known_text.respellings import Respelling, respellings
from charwise.known_text.vertex import Branch
from charwise.tokens.index import SortedVocabulary

#: Fewest canonical tokens that are worked on at a time, and the contexts to aim for.
LEAST, CONTEXTS = 16, 240

#: Canonical tokens of the first portion: how hard the text is, is not known yet.
_FIRST = 32

#: Contexts to spend on other ways to split what repeats, before one is taken: for each canonical
#: token of a section, and in a short section.
_RESPELLING, _SHORT = 2, 256

#: With a tolerance, all contexts are evaluated where there are so few.
_FEW = 64

#: Contexts that any text may take, beside those that its length allows.
_SPARE = 600

#: Most rounds with the first θ, and with each later one, on the way to a tolerance: what is left
#: then is wanted by the next θ too. The first is for the estimate of what the second leaves.
_BEGINNING, _STEP = 2, 10

#: Before a cursor, where a round is a call of a few contexts, the first θ takes one.
_BEGINNING_AT_CURSOR = 1


class Rounds:
    """The rounds over one text after one context.

    Args:
        evaluated: what has been evaluated before is used, and what is new is added.
        root: the node after which the text stands.
        known: the text σ, any bytes.
        canonical: its canonical tokens.
        effort: how much to spend.
        through: also evaluate the contexts that spell the whole text, as the next byte needs.
        deepest: most tokens after the root that fit the window; longer contexts are left out.
        distributions: keep of each context what `next_bytes.distributions` needs.
        watch: another error that must fall below the tolerance, asked for after each step.

    Attributes:
        lattice: the evaluated contexts and their sums.
        base: the tokens that alternatives are followed along.
        candidates: which others are worth an evaluation.
        batches: what is evaluated with them.
        limited: whether a limit on contexts or rounds ended the work before the tolerance did.
        calls: model calls that this text took part in: those that made the tree, which evaluated
            its root, and each one since that evaluated a context of this text. Where an engine
            splits a batch, its calls count for every text that had a part in the batch.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index = SortedVocabulary(vocabulary)
    >>> evaluated, known = EvaluatedRows(lm.tree([2]), index), KnownText.of(b"aa", index)
    >>> rounds = Rounds(evaluated, 0, known, vocabulary.encode(b"aa"), Effort(0.0, 1.0))
    >>> np.exp(rounds.run().log_prefix).round(9).tolist()
    [1.0, 0.75, 0.375]
    >>> rounds.calls, rounds.contexts  # the root; and [a]
    (2, 2)
    """

    def __init__(
        self,
        evaluated: EvaluatedRows,
        root: int,
        known: KnownText,
        canonical: Sequence[int],
        effort: Effort,
        *,
        through: bool = False,
        deepest: int | None = None,
        distributions: bool = False,
        watch: Callable[[Lattice], float] | None = None,
    ) -> None:
        self.evaluated = evaluated
        self.known = known
        if effort.tolerance is not None and known.contexts(_FEW) <= _FEW:
            effort = PRESETS["exact"]  # `few`, of a text whose ranges are known
        self._effort = effort
        self._watch = watch
        self.base = BasePath(
            known, canonical, through=through, deepest=deepest, to_end=effort.theta > 0
        )
        self._new = NewVertices(evaluated, known, through=through, distributions=distributions)
        # Other ways to split what repeats, and those that are tried in the section up to a byte.
        self._respellings: list[Respelling] | None = None
        self._repeats: Repeats | None = None
        self.limited = self._respelled = False
        self.lattice = Lattice(known, self._new.root(root), effort, through)
        self.candidates = Candidates(self.lattice)
        self.batches = Batches(
            self.lattice, self.candidates, self.base, at_cursor=watch is not None
        )
        self.calls = evaluated.tree.calls
        # The portion that is worked on, its canonical tokens, and how many contexts there were
        # before it.
        self._portion: Portion | None = None
        self._size = self._working = min(PORTION, _FIRST)  # the next portion's, and this one's
        self._begun = 0
        # There: θ, rounds taken and those of this θ, the most contexts to spend, and log →p as of
        # the step before.
        self._theta, self._taken, self._in_step, self._at_most = effort.steps[0], 0, 0, 0
        self._before: NDArray[np.float64] | None = None

    def wants(self) -> list[Branch]:
        """What to evaluate next; nothing when all of the text is finished.

        It is taken in portions of at most `PORTION` canonical tokens, which bounds the contexts
        held at a time, beside those of a section's respellings: of each its canonical tokens first,
        then what is worth it, round by round.
        With θ = 0 and rounds enough this changes no number. Otherwise it may change which contexts
        are evaluated: a candidate's share is taken when its portion is worked on, and what is to
        its left is final by then.
        """
        if self._portion is None:
            self._portion, path = self._begin(0)
            if path:
                return path
        while True:
            branches = self._wanted(self._portion)
            if branches or self._portion.stop > len(self.known.text):
                return branches
            self._portion, path = self._begin(self._finish(self._portion))
            if path:
                return path

    def _begin(self, done: int) -> tuple[Portion, list[Branch]]:
        """The portion after so many canonical tokens, from the first θ on, and what it needs first.

        That is its canonical tokens, or those of the section that begins with it.
        """
        path = self._enter(done) if self.base.starts[done] >= self.base.section else []
        portion = self.base.portion(done, self._size)
        self._working = max(1, portion.tokens - done)
        path = path or self.base.branches(self.lattice, portion)
        size = sum(len(branch.tokens) for branch in path)
        self._begun, self._taken, self._before = self.contexts + size, 1, None
        self._at_most = self._begun + self._most(portion)
        self._take(self._effort.steps[0])
        return portion, path

    def _enter(self, done: int) -> list[Branch]:
        """Enter the section after so many canonical tokens, in which respellings are tried."""
        base, section = self.base, self.base.enter(done)
        if self._effort.lends:
            if self._respellings is None:
                self._respellings = respellings(base.known.text, base.tokens, base.known.index)
            self._repeats = Repeats(
                self._respellings,
                list(base.tokens),
                base.known.index,
                base.starts[done],
                min(section.stop, len(base.known.text) - (not base.through)),
                max(_SHORT, _RESPELLING * (section.tokens - done)),
                base.too_deep,
            )
        return base.branches(self.lattice, section)

    def _finish(self, portion: Portion) -> int:
        """Let go of all that only a portion needed; returns how many canonical tokens are done."""
        if self._repeats is not None and not self._repeats.done:
            self._repeats.end()  # what it would go on from may be let go of
        kept = self.lattice.freeze()
        if not self.evaluated.retain:
            self.evaluated.keep([vertex.node for vertex in kept])
        # Where a portion brings many contexts, the next one is shorter.
        brought = max(1, self.contexts - self._begun)
        self._size = max(LEAST, min(PORTION, CONTEXTS * self._working // brought))
        return self.base.tokens_before(portion.stop)

    def _take(self, theta: float) -> None:
        self._theta, self._in_step = theta, 0
        self.lattice.effort = self._effort.at(theta)

    def _most(self, portion: Portion) -> int:
        """Contexts to spend on a portion, at most, with a tolerance."""
        if self._effort.tolerance is None:
            return 10**12
        size = portion.tokens - self.base.tokens_before(self.lattice.frozen)
        return int(_SPARE + size * (16 + 0.1 / self._effort.tolerance))

    def _wanted(self, portion: Portion) -> list[Branch]:
        """What to evaluate next for a portion; nothing when its error is small enough."""
        self.lattice.sum(portion.stop)
        while True:
            beginning = _BEGINNING if self._watch is None else _BEGINNING_AT_CURSOR
            most = beginning if self._before is None else _STEP
            busy = self._in_step < most or self._effort.tolerance is None
            if self._taken < self._effort.rounds and self.contexts < self._at_most:
                branches = self._respell()
                if busy:
                    branches += self.batches.plan(self.candidates.wanted(portion.stop))
                if branches:
                    self._taken, self._in_step = self._taken + 1, self._in_step + 1
                    return branches
            if not self._finer(portion):
                return []

    def _finer(self, portion: Portion) -> bool:
        """End a step: estimate the error, and say whether a finer θ is worth it."""
        lattice, start = self.lattice, self.lattice.frozen
        stop = min(portion.stop, len(self.known.text) + 1)
        first = max(0, start - 1)
        part = slice(first, stop)
        after = lattice.log_prefix[part].copy()
        errors = byte_errors(self._before, after, lattice.lent[part], lattice.missing[part])
        doubts = np.zeros(len(errors))
        if self._repeats is not None:
            self._respelled |= self._repeats.adopted
            errors *= RESPELLED if self._respelled else 1.0
            doubts = self._repeats.doubts(first, after)
        tolerance = self._effort.tolerance
        within = math.inf if tolerance is None else tolerance * math.log(2) * len(errors)
        # No finer θ takes doubts away.
        enough = self._before is not None and float(errors.sum()) <= within
        self.limited |= enough and float((errors + doubts).sum()) > within
        if self._watch is not None and portion.stop > len(self.known.text):
            off = self._watch(lattice)
            enough &= tolerance is None or off <= tolerance
        # All that was followed may end in contexts that do not go on: then nothing is known.
        enough &= tolerance is None or bool(np.isfinite(after).all())
        last = self._effort.steps[1]
        more = self._taken < self._effort.rounds and self.contexts < self._at_most
        if tolerance is not None and not enough and not (more and self._theta > last):
            self.limited = True  # what the last step would have changed is not known
            fall = np.nan_to_num(-np.diff(after), nan=0.0, posinf=0.0)
            errors += LIMITED * fall
        lattice.error[first + 1 : stop] = errors + doubts
        self._before = after
        if enough or not more or self._theta <= last:
            return False
        self._take(max(last, self._theta / FINER))
        return True

    def _respell(self) -> list[Branch]:
        """Respellings of what the section repeats."""
        if self._repeats is None or self._repeats.done:
            return []
        found = self._repeats.branches(self.lattice.root)
        if self._repeats.tokens is not self.base.tokens:
            self.base.respell(self._repeats.tokens)
        new = contexts_of(found)
        self._begun, self._at_most = self._begun + new, self._at_most + new
        return found

    @property
    def contexts(self) -> int:
        """Contexts evaluated for this text, the root among them."""
        return len(self.lattice.vertices)

    def run(self) -> Lattice:
        """All rounds, from the canonical tokenization of the text to the last that is wanted."""
        run_together([self])
        return self.lattice

    def add(self, branches: Sequence[Branch], found: Sequence[Sequence[int]]) -> None:
        """Branches that were evaluated, at these nodes."""
        self._new.add(self.lattice, branches, found)


def few(effort: Effort, text: bytes, index: SortedVocabulary) -> bool:
    """Whether a text has so few contexts that all of them are evaluated.

    >>> import charwise
    >>> lm = charwise.load()
    >>> few(lm.effort, b"os", lm.index), few(lm.effort, b"import os", lm.index)
    (True, False)
    """
    return (
        effort.tolerance is not None
        and len(text) < _FEW
        and KnownText.of(text, index).contexts(_FEW) <= _FEW
    )
