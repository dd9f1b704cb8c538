"""Exact conditioning at a prompt's end: which token strings carry on over it, and how likely.

A mask reproduces a forced text σ token by token, and weighs a short token by its own probability.
Conditioning weighs every member of the covering C(σ) by the probability of the whole of it:

    p(δ·t | κ(δ·t) ≻ σ)  =  p_Δ(δ) · p_Δ(t | δ) / →p(σ)

δ spells a proper prefix of σ, t starts with the rest. Few δ weigh anything. `Search` finds them,
heaviest first, asking whoever runs the model for the log-probabilities of the tokens that may
follow each: those that `healing.allowed_next` names. What it has not asked about adds at most its
weight, so it knows how much it may miss. `Members` are drawn from; generation goes on after the
member drawn, without any mask.

It knows no engine: the model may be in this process or behind a server. `charwise.coverings` has
the same search for engines that are `TokenLM`s.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from charwise.errors import HealingError, SettingError, check_count, check_number
from charwise.healing import allowed_next
from charwise.tokens.index import SortedVocabulary

#: Most of the probability of the forced text that the members found may leave out.
TOLERANCE = 1e-3

#: Contexts asked about for one prompt, at most.
_MOST_CONTEXTS = 512

#: Contexts asked about at once, at most.
_AT_ONCE = 16


class Question(NamedTuple):
    """A question to a model: log p(id | the kept ids, then `context`) for each of `ids`.

    >>> Question((0,), np.array([3])).context
    (0,)
    """

    context: tuple[int, ...]
    ids: NDArray[np.int64]


class Search:
    """Finds the members of a covering that weigh something; see the module.

    Args:
        index: of the model's vocabulary.
        forced: σ, not empty.
        tolerance: how much of →p(σ) may be left out, at most.
        most: contexts asked about, at most.
        room: tokens that a context may have beside the kept ids; None for no bound.

    Attributes:
        asked: how many contexts were asked about.
        rounds: how often.

    Raises:
        SettingError: a forced text that is no bytes or empty, numbers out of range.
        HealingError: a forced text that the vocabulary cannot spell.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"sw", b"swim", b"weep"])
    >>> search = Search(SortedVocabulary(vocabulary), b"sw", tolerance=0)
    >>> answers = {(): {0: 0.6, 1: 0.1, 2: 0.3}, (0,): {3: 0.01}}
    >>> while questions := search.questions():
    ...     for context, ids in questions:
    ...         search.answer(context, [math.log(answers[context][id]) for id in ids.tolist()])
    >>> members = search.members()
    >>> [members.token_ids(at) for at in range(3)]
    [(1,), (2,), (0, 3)]
    >>> np.exp(members.logprobs).round(4).tolist(), members.missing
    ([0.1, 0.3, 0.006], 0.0)
    """

    def __init__(
        self,
        index: SortedVocabulary,
        forced: bytes,
        *,
        tolerance: float = TOLERANCE,
        most: int = _MOST_CONTEXTS,
        room: int | None = None,
    ) -> None:
        check_number("tolerance", tolerance, 0.0, 1.0)
        check_count("most", most, 1)
        if not forced:
            raise SettingError("there is no forced text: generate as it is.")
        self._index, self._forced = index, forced
        self._tolerance, self._most, self._room = tolerance, most, room
        # Not asked about yet: (−log weight, order, context, bytes it spells), heaviest first.
        self._frontier: list[tuple[float, int, tuple[int, ...], int]] = [(0.0, 0, (), 0)]
        self._pending: dict[tuple[int, ...], tuple[float, int, NDArray[np.int64]]] = {}
        self._found: list[_Found] = []
        self._inside = -math.inf  # log of the mass of the members found
        self._unseen = -math.inf  # log of the most that was lost for good: no room, no answer
        self._order = 0
        self.asked = self.rounds = 0
        allowed_next(forced, index)  # refuses what cannot be spelled

    def questions(self) -> list[Question]:
        """Return the questions to ask next, in one batch; none once the members are found.

        Raises:
            HealingError: the members cannot be found to the tolerance: the text has no
                probability, or takes too many contexts.
        """
        if self._pending:
            raise SettingError("answer the questions that were asked first.")
        if self._inside > -math.inf and self.missing <= self._tolerance:
            return []
        if not self._frontier:
            raise self._failure()
        wanted: list[Question] = []
        while self._frontier and len(wanted) < _AT_ONCE and self.asked < self._most:
            if self.missing <= self._tolerance:
                break
            negative, _, context, at = heapq.heappop(self._frontier)
            ids = allowed_next(self._forced[at:], self._index)
            self._pending[context] = (-negative, at, ids)
            wanted.append(Question(context, ids))
            self.asked += 1
        if not wanted:
            raise self._failure()
        self.rounds += 1
        return wanted

    def answer(self, context: tuple[int, ...], logprobs: ArrayLike, *, unseen: float = 0.0) -> None:
        """Take the answer to a question: log-probabilities of its ids, nats.

        Args:
            context: of the question.
            logprobs: of its ids, in their order; −inf for those that are not known.
            unseen: the most that those may have together, a probability.

        Raises:
            SettingError: what was not asked, or numbers that are no log-probabilities.
        """
        if context not in self._pending:
            raise SettingError(f"nothing was asked about the context {context}.")
        weight, at, ids = self._pending[context]
        logs = np.asarray(logprobs, dtype=np.float64)
        if logs.shape != ids.shape or np.isnan(logs).any() or logs.max() > 1e-3:
            raise SettingError(
                f"the context {context} has {len(ids)} questions: answer each with one "
                "log-probability, in nats."
            )
        del self._pending[context]
        if unseen > 0:
            self._unseen = float(np.logaddexp(self._unseen, weight + math.log(unseen)))
        lengths = [self._index.length(id) for id in ids[: len(ids) - self._reaching(at)].tolist()]
        for id, length, log in zip(ids.tolist(), lengths, logs.tolist(), strict=False):
            if log == -math.inf:
                continue
            if self._room is not None and len(context) >= self._room:
                self._unseen = float(np.logaddexp(self._unseen, weight + log))
                continue
            self._order += 1
            entry = (-weight - log, self._order, (*context, id), at + length)
            heapq.heappush(self._frontier, entry)
        found = _Found(context, ids[len(lengths) :], weight + logs[len(lengths) :])
        self._found.append(found)
        self._inside = float(np.logaddexp.reduce((self._inside, *found.logprobs)))

    @property
    def missing(self) -> float:
        """The most that the members found so far leave out of →p(σ): a share of it."""
        outside = np.logaddexp.reduce((self._unseen, *(-item[0] for item in self._frontier)))
        whole = np.logaddexp(outside, self._inside)
        return math.exp(outside - whole) if whole > -math.inf else 1.0

    def members(self) -> Members:
        """The members found, those of the first context first."""
        return Members(self._found, self.missing)

    def _reaching(self, at: int) -> int:
        """How many tokens reach from an offset of the forced text to its end, or beyond."""
        lo, hi = self._index.range(self._forced[at:])
        return hi - lo

    def _failure(self) -> HealingError:
        if self._inside == -math.inf and self.asked < self._most:
            return HealingError(
                f"the model gives {self._forced!r} no probability here, so nothing follows it. "
                "Give back fewer tokens, or heal with the mask."
            )
        return HealingError(
            f"{self.asked} contexts leave out up to {self.missing:.2g} of the probability of "
            f"{self._forced!r}; {self._tolerance:.2g} is allowed. Give back fewer tokens, or heal "
            "with the mask."
        )


class _Found(NamedTuple):
    """Members that differ in their last token."""

    context: tuple[int, ...]
    ids: NDArray[np.int64]  # the last tokens
    logprobs: NDArray[np.float64]  # of the members, whole


class Members:
    """Members of a covering, with their log-probabilities.

    Attributes:
        logprobs: `[n]` float64, log p_Δ of each after the kept ids, nats.
        missing: the most that the others have of the probability of the forced text, a share.
    """

    def __init__(self, found: Sequence[_Found], missing: float) -> None:
        self._found = list(found)
        self._ends = np.cumsum([len(each.ids) for each in found])
        self.logprobs: NDArray[np.float64] = np.concatenate([each.logprobs for each in found])
        self.missing = missing

    def __len__(self) -> int:
        """How many members there are."""
        return len(self.logprobs)

    def token_ids(self, at: int) -> tuple[int, ...]:
        """The tokens of one member."""
        which = int(np.searchsorted(self._ends, at, side="right"))
        context, ids, _ = self._found[which]
        return (*context, int(ids[at - self._ends[which] + len(ids)]))

    def weights(
        self,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
    ) -> NDArray[np.float64]:
        """Return the chance of each to be drawn, `[n]`.

        At temperature 1 without truncation: its probability given the forced text. Otherwise the
        members are treated as the tokens of one step are: probabilities to the power of
        1 / temperature, then the `top_k` likeliest, the likeliest that make up `top_p`, those that
        have at least `min_p` of the likeliest. At temperature 0 the best has it all.

        Raises:
            SettingError: a temperature that is negative or not a number.

        >>> vocabulary = [np.array([0, 1, 2])]
        >>> found = _Found((), np.array([4, 5, 6]), np.log([0.1, 0.3, 0.1]))
        >>> Members([found], 0.0).weights().round(3).tolist()
        [0.2, 0.6, 0.2]
        >>> Members([found], 0.0).weights(0), Members([found], 0.0).weights(top_p=0.5).tolist()
        (array([0., 1., 0.]), [0.0, 1.0, 0.0])
        """
        check_number("temperature", temperature, 0.0, math.inf)
        logs = self.logprobs
        if temperature == 0:
            return np.asarray(np.arange(len(logs)) == int(logs.argmax()), dtype=np.float64)
        p = np.exp((logs - logs.max()) / temperature)
        order = np.argsort(-p, kind="stable")
        keep = np.ones(len(p), dtype=bool)  # in order, the likeliest first
        if top_k is not None and top_k > 0:
            keep[top_k:] = False
        if top_p is not None and top_p < 1:
            kept = p[order] * keep
            keep[1:] &= np.cumsum(kept)[:-1] < top_p * kept.sum()
        if min_p is not None and min_p > 0:
            keep[1:] &= p[order][1:] >= min_p
        p[order[~keep]] = 0.0
        return np.asarray(p / p.sum())

    def draw(self, weights: NDArray[np.float64], uniform: Sequence[float]) -> list[tuple[int, ...]]:
        """A member for each number, uniform in [0, 1), by these weights.

        >>> found = _Found((7,), np.array([4, 5]), np.log([0.1, 0.3]))
        >>> members = Members([found], 0.0)
        >>> members.draw(members.weights(), [0.2, 0.3])
        [(7, 4), (7, 5)]
        """
        sums = np.cumsum(weights)
        places = np.searchsorted(sums, np.asarray(uniform) * sums[-1], side="right")
        last = int(np.flatnonzero(weights)[-1])
        return [self.token_ids(min(int(at), last)) for at in places]
