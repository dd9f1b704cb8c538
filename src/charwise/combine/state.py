"""The state of a combination after some text: its members' states, side by side.

A byte is one step of each member's state, on its own token tree; `next()` combines what the members
give to the 257 outcomes. A mixture also keeps log →p_i(text) of each member, its evidence, which a
byte changes by what the member gave to that byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np

from charwise.combine.member_scores import IMPOSSIBLE, likelihood_of_byte, likelihoods
from charwise.combine.members import Member, Team, impossible
from charwise.combine.rules import Floats, error_of_next, normalised
from charwise.combine.scoring import scores, string_logs
from charwise.constraints.constraint import END, Flags
from charwise.cursor.character_state import CharacterState
from charwise.cursor.choose import ChoicePosterior, Sums, checked_choices, posterior_of
from charwise.cursor.distributions import NextBytes
from charwise.cursor.options import GenerationOptions
from charwise.errors import ZeroProbabilityError
from charwise.surprisal.score import Score
from charwise.tokens.stops import StopStrings


class CombinedState(CharacterState):
    """An immutable state of a combination: `state + "text"`, `state - n` characters, `next()`.

    Attributes:
        team: the members, and the rule that combines them.
        states: `[n]` the members' own states; None for one that cannot write the text.
        before: `[n]` log →p_i(text), nats, where the rule asks for it.

    >>> import charwise
    >>> from charwise import combine
    >>> lm = charwise.load()
    >>> state = combine.product([lm, lm]).state("import nu")
    >>> (state + "mp").next().top(1)[0][0], (state + "x" - 1).text
    ('y', 'import nu')
    """

    def __init__(
        self,
        team: Team,
        raw: bytes,
        states: Sequence[Any],
        evidence: Floats,
        *,
        parent: Self | None = None,
        whole: bool = False,
    ) -> None:
        self.team = team
        self._raw = raw
        self.states = tuple(states)
        # [2, n, bytes added last + 1], so that some of those can be deleted again: log →p_i of
        # each beginning, and by how much that may be off.
        self._evidence = evidence
        self._parent = parent
        self._whole = whole
        if not any(state is not None for state in self.states) or not self._possible():
            raise impossible(raw)

    @property
    def raw(self) -> bytes:
        """The text, without the parts before it of single members."""
        return self._raw

    def _possible(self) -> bool:
        alive = [state is not None for state in self.states]
        return bool(np.isfinite(self.team.rule.combine(np.where(alive, self.before, -np.inf))))

    @property
    def before(self) -> Floats:
        """The log →p_i(text) of each member, `[n]` nats, where the rule asks for it; else zeros."""
        return np.asarray(self._evidence[0, :, -1])

    @property
    def shares(self) -> Floats:
        """The weight λ_i(text) of each member of a mixture, `[n]`, by Bayes' rule.

        Of a product the sizes of its weights, and ones of the least and the greatest.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = charwise.load()
        >>> told = combine.member(lm, before="x = 1\\n")
        >>> combine.mixture([lm, told]).state("").shares.tolist()
        [0.5, 0.5]
        """
        return self.team.rule.shares(self.before)

    @property
    def error(self) -> float:
        """The amount by which the next byte's distribution may be off, as a total variation."""
        return self.next().error

    @property
    def exact_from(self) -> int:
        """The offset in `text`, in bytes, from which every member sums over all tokenizations."""
        return max(
            max(0, int(state.exact_from) - (len(state.raw) - len(self.raw)))
            for state in self.states
            if state is not None
        )

    @cached_property
    def _members_next(self) -> tuple[Floats, list[NextBytes]]:
        """`[n, 257]` log p_i(byte | text), −inf of those that cannot write it; as they came."""
        logs = np.full((len(self.states), 257), -np.inf)
        known = []
        for number, state in enumerate(self.states):
            if state is not None:
                known.append(state.next())
                logs[number] = known[-1].logprobs
        return logs, known

    def _distribution(self) -> NextBytes:
        return self._next

    @cached_property
    def _next(self) -> NextBytes:
        (logs, known), rule, before = self._members_next, self.team.rule, self.before
        probs, total = normalised(rule.next(logs, before, self._whole))
        if not np.isfinite(total):
            raise ZeroProbabilityError(
                f"nothing may follow the text ending in {self.raw[-20:]!r}: what each member can "
                "go on with, another gives probability zero."
            )
        alive = iter(known)
        errors = np.array([0.0 if s is None else next(alive).error for s in self.states])
        return NextBytes(
            probs,
            error_of_next(rule, logs, before, self._whole, errors, self._evidence[1, :, -1]),
            log_total=float(total),
        )

    def _extended(self, data: bytes) -> CombinedState:
        """The state after a byte, or after a longer text in one step of each member."""
        states = []
        for state in self.states:
            try:
                states.append(None if state is None else state + data)
            except IMPOSSIBLE:
                states.append(None)
        steps = np.zeros((2, len(states), len(data)))
        if self.team.rule.remembers(self._whole):
            if len(data) == 1:
                steps[..., 0] = self._given_to(data[0], states)
            else:
                steps = likelihoods(self.team, data, self.raw)
        return CombinedState(
            self.team,
            self.raw + data,
            states,
            _onward(self._evidence[..., -1], steps),
            parent=self,
            whole=self._whole,
        )

    def _given_to(self, byte: int, after: Sequence[Any]) -> Floats:
        """`[2, n]` log-probabilities that the members give to a byte, nats, and their errors."""
        each = zip(self.team.members, self.states, after, strict=True)
        given = [likelihood_of_byte(*one, byte, self.raw) for one in each]
        return np.asarray(np.minimum(np.array(given).T, 700.0))

    def _shortened(self, n: int) -> CombinedState:
        """The state with n of the bytes deleted that came last and together."""
        raw = self.raw[: len(self.raw) - n]
        states = [
            _state_of(member, raw) if state is None else state.without_bytes(n)
            for member, state in zip(self.team.members, self.states, strict=True)
        ]
        return CombinedState(
            self.team,
            raw,
            states,
            self._evidence[..., :-n],
            parent=self._parent,
            whole=self._whole,
        )

    def _as_a_whole(self, options: GenerationOptions) -> tuple[CombinedState, GenerationOptions]:
        constraint = _Unconstrained() if options.constraint is None else options.constraint
        return self.by_the_global_rule(), replace(options, constraint=constraint)

    def choose(
        self, choices: Iterable[str | bytes], *, stop: StopStrings = None, ended: bool = False
    ) -> ChoicePosterior:
        """The posterior over a list of continuations, by the local rule; see `CharLM.choose`.

        >>> import charwise
        >>> from charwise import combine
        >>> state = combine.product([charwise.load()]).state("for i in ra")
        >>> state.choose(["nge(", "ndom."]).top(1)[0][0]
        'nge('
        """
        wanted = checked_choices(choices, stop, ended)
        texts = wanted.texts
        if self._whole:
            logs, errors, known = string_logs(
                self.team, texts, self.raw, self.before, end=wanted.ended
            )
        else:
            contexts = [self.raw] * len(texts)
            known = scores(self.team, texts, contexts, end=wanted.ended, strict=False)
            logs = np.array([_total(score) for score in known])
            errors = np.array([one.error.sum() for one in known])
        return posterior_of(wanted, self.raw, Sums(logs.tolist(), errors.tolist()))

    def by_the_global_rule(self) -> CombinedState:
        """The same state, whose next byte, and choices, are of the global rule.

        `next().log_total` is then what the masses add up to, over those of the text so far.

        >>> import charwise
        >>> from charwise import combine
        >>> lm = charwise.load()
        >>> state = combine.product([lm, lm], weights=[1, 1]).state("x = ").by_the_global_rule()
        >>> state.next().log_total < 0
        True
        """
        evidence = self._evidence[..., -1:]
        if self.team.rule.remembers(True) and not self.team.rule.remembers(False):
            steps = likelihoods(self.team, self.raw, b"")
            evidence = _onward(np.zeros(steps.shape[:2]), steps)[..., -1:]
        return CombinedState(self.team, self.raw, self.states, evidence, whole=True)

    def _renewed(self) -> CombinedState:
        return begin(self.team, self.raw)

    def __repr__(self) -> str:
        return f"CombinedState({self.text[-20:]!r}, {len(self.states)} members)"


def begin(team: Team, raw: bytes) -> CombinedState:
    """The state of a combination after a text.

    >>> import charwise
    >>> from charwise import combine
    >>> both = combine.product([charwise.load()])
    >>> begin(both.team, b"import nump").next().top(1)[0][0]
    'y'
    """
    states = [_state_of(member, raw) for member in team.members]
    steps = np.zeros((2, len(states), len(raw)))
    if raw and team.rule.remembers(False):
        steps = likelihoods(team, raw, b"")
    return CombinedState(team, raw, states, _onward(np.zeros(steps.shape[:2]), steps))


def _state_of(member: Member, raw: bytes) -> Any:
    """A member's state; None if it cannot write the text, which others may."""
    try:
        return member.after(raw)
    except IMPOSSIBLE:
        member.after(b"")  # or it is not the text
        return None


def _total(score: Score) -> float:
    end = score.end_logprob
    return float(score.logprobs.sum()) + (0.0 if end is None else end)


def _onward(start: Floats, steps: Floats) -> Floats:
    """`[…, T + 1]` a start, and its sums with the first 1, 2, … of `[…, T]` steps."""
    start = start[..., None]
    return np.concatenate([start, start + np.cumsum(steps, axis=-1)], axis=-1)


class _Unconstrained:
    """The constraint that allows all byte strings, for sampling where none was given."""

    characters = False

    def allowed(self) -> Flags:
        """`[257]`: all of them."""
        return np.ones(END + 1, dtype=np.bool_)

    def after(self, data: bytes) -> Self:
        """The same."""
        return self

    def over(self, index: object) -> NoReturn:
        """A combination draws bytes, and has no tokens."""
        raise NotImplementedError
