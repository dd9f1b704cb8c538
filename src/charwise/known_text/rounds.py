"""Rounds: evaluate what a known text needs in a few batches.

1. One teacher-forced pass over the canonical tokenization (`BasePath.branches`), and a look ahead
   for better tokens to go along (`Scout`).
2. Sum (`Lattice.sum`), collect the candidates that are worth an evaluation (`Candidates.wanted`),
   and follow those that end where a token of the base path does along it from there
   (`Batches.plan`).
3. Evaluate all of that in one batch; again from 2 until nothing is wanted.

docs/scoring.md derives it and counts the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from charwise.coverings.rows import EvaluatedRows
from charwise.known_text.base_path import BasePath, Portion
from charwise.known_text.batches import Batches
from charwise.known_text.calls import run_together
from charwise.known_text.candidates import Candidates
from charwise.known_text.effort import PRESETS, Effort
from charwise.known_text.endless import Endless
from charwise.known_text.falling_theta import FallingTheta
from charwise.known_text.lattice import Lattice
from charwise.known_text.new_vertices import NewVertices
from charwise.known_text.portions import Portions
from charwise.known_text.ranges import KnownText
from charwise.known_text.scout import Scout
from charwise.known_text.sections import Sections
from charwise.known_text.vertex import Branch, contexts_of
from charwise.tokens.index import SortedVocabulary

#: With a tolerance, all contexts are evaluated where there are so few.
_FEW = 64


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
        watch: another error that must fall below the tolerance, asked for after each step: that of
            what may follow the text. The contexts that cover its end are kept.
        at_cursor: whether a round is a call of a few contexts, of which there should be few.
        score: whether a few contexts are not enough, whatever the error is estimated at.
        lets_go: whether what only a portion needed is dropped; by default if nothing is retained.

    Attributes:
        lattice: the evaluated contexts and their sums.
        candidates: which others are worth an evaluation.
        base: the tokens that alternatives are followed along.
        batches: what is evaluated together.
        calls: model calls that this text took part in: those that made the tree, which evaluated
            its root, and each one since that evaluated a context of this text. Where an engine
            splits a batch, its calls count for every text that had a part in the batch.

    >>> import numpy as np
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
        at_cursor: bool = False,
        score: bool = False,
        lets_go: bool | None = None,
    ) -> None:
        self.evaluated = evaluated
        self.known = known
        # As `few` says, of a text whose ranges are known.
        self._all = effort.tolerance is not None and known.contexts(_FEW) <= _FEW
        if self._all:
            effort = PRESETS["exact"]
        self.base = BasePath(
            known, canonical, through=through, deepest=deepest, to_end=effort.theta > 0
        )
        self._lets_go = not evaluated.retain if lets_go is None else lets_go
        self._covers = watch is not None
        self._new = NewVertices(
            evaluated,
            known,
            lets_go=self._lets_go,
            through=through,
            distributions=distributions,
            covers=self._covers,
        )
        self.lattice = Lattice(known, self._new.root(root), effort, through)
        self.candidates = Candidates(self.lattice)
        self.batches = Batches(self.lattice, self.candidates, self.base, at_cursor=at_cursor)
        self._sections = Sections(self.lattice, self.base, lends=effort.lends)
        self._theta = FallingTheta(
            self.lattice, self._sections, effort, watch, at_cursor=at_cursor, score=score
        )
        # Before the portions of a section, with a tolerance; a θ that is named is all there is. At
        # a cursor there is no width either, and little text.
        self._scouts = (
            effort.tolerance is not None
            and effort.lends
            and effort.width > 0
            and effort.rounds > Scout.most
        )
        self._scout: Scout | None = None
        self._endless: Endless | None = None
        if effort.theta == 0:
            kept = not self._lets_go
            self._endless = Endless(self.lattice, effort.rounds, through=through, kept=kept)
        self.calls = evaluated.tree.calls
        # At a cursor each portion is a call or two more.
        self._portions = Portions(self.base, runs=effort.lends and not at_cursor)
        self._portion: Portion | None = None  # that is worked on

    def wants(self) -> list[Branch]:
        """What to evaluate next; nothing when all of the text is finished.

        It is taken in portions of at most `PORTION` canonical tokens, which bounds the contexts
        held at a time, beside those of a section's respellings: of each its canonical tokens first,
        then what is worth it, round by round.
        With θ = 0 and rounds enough this changes no number. Otherwise it may change which contexts
        are evaluated: a candidate's share is taken when its portion is worked on, and what is to
        its left is final by then. Of a text of few contexts all come first.
        """
        if self._portion is None:
            self._portion, path = self._begin(0)
            if self._all:  # known before the first call, the canonical ones among them
                path = self.base.all_branches(self.lattice.root)
            if path:
                return path
        while True:
            branches = self._scouted() or self._wanted(self._portion)
            if branches or self._portion.stop > len(self.known.text):
                return branches
            self._portion, path = self._begin(self._finish(self._portion))
            if path:
                return path

    def _begin(self, done: int) -> tuple[Portion, list[Branch]]:
        """The portion after so many tokens of the base path, at the first θ; what it needs first.

        That is its own tokens, or those of the section that begins with it.
        """
        path = self._enter(done) if self.base.starts[done] >= self.base.section else []
        portion = self._portions.after(done)
        path = path or self.base.branches(self.lattice, portion)
        self._theta.begin(portion.tokens - done, asked=sum(len(tokens) for _, tokens in path))
        return portion, path

    def _enter(self, done: int) -> list[Branch]:
        """The section after so many tokens of the base path: what it lacks of that."""
        path = self._sections.enter(done)
        if self._scouts:
            start, stop = self._sections.start, self._sections.stop
            self._scout = Scout(self.lattice, self.candidates, self.batches, self.base, start, stop)
        else:
            self._sections.begin()
        return path

    def _scouted(self) -> list[Branch]:
        """What to evaluate before the first portion of a section; at last that begins anew."""
        if self._scout is None:
            return []
        if branches := self._scout.branches():
            self._theta.aside(contexts_of(branches))
            return branches
        self._scout = None
        self._sections.begin()
        done = self.base.tokens_before(self._sections.start)
        self._portion = self._portions.after(done)
        self._theta.resume(self._portion.tokens - done)
        return []

    def _finish(self, portion: Portion) -> int:
        """Let go of all that only a portion needed; returns how many tokens are done."""
        self._sections.end()
        kept = self.lattice.freeze()
        if self._lets_go:
            if self._covers:  # what is finished may reach beyond the end
                first = max(0, len(self.known.text) - self.known.deepest)
                reaching = self.lattice.at[first : self.lattice.frozen]
                kept += [vertex for there in reaching for vertex in there]
            self.evaluated.keep([vertex.node for vertex in kept])
        self._portions.brought(self._theta.brought)
        return self.base.tokens_before(portion.stop)

    def _wanted(self, portion: Portion) -> list[Branch]:
        """What to evaluate next for a portion; nothing when its error is small enough."""
        self.lattice.sum(portion.stop)
        while True:
            # Respellings have contexts of their own to spend.
            respelled = branches = self._sections.branches() if self._theta.rounds_left else []
            if not (self._theta.spent or self._theta.step_over):
                # Before a cursor a second call for what only hindsight wants is too dear.
                foreseeing = not self._theta.again_at_cursor
                wanted = self.candidates.wanted(portion.stop, foreseeing=foreseeing)
                branches = respelled + self.batches.plan(wanted)
            if branches:
                if self._endless is not None:
                    self._endless.refuse(self._theta.brought + contexts_of(branches), portion.stop)
                self._theta.count(asked=contexts_of(respelled))
                return branches
            if not self._theta.goes_on(portion):
                return []

    @property
    def limited(self) -> bool:
        """Whether a limit on contexts, rounds or respellings ended the work, not the tolerance."""
        return self._theta.limited

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
