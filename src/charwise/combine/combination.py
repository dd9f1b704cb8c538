"""`Combination`: several models as one, over characters, and the functions that make one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Unpack

from charwise.character_model import Asked, CharacterModel
from charwise.combine.members import Member, Team, member
from charwise.combine.rules import Extreme, Mixture, Product
from charwise.combine.scoring import scores
from charwise.combine.state import CombinedState, begin
from charwise.errors import (
    SettingError,
    TokenizationError,
    check_number,
    items,
    shown,
)
from charwise.scoring.effort import Effort, EffortKeywords
from charwise.surprisal.score import Score
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompt_parts import Prompt, is_text, parts_of


class Combination(CharacterModel):
    """Several models as one: used as a `CharLM` is, as far as that does not speak of tokens.

    Made by `mixture`, `product`, `minimum`, `maximum`, `proxy` and `contrast`. Prompts are text or
    bytes: token ids mean something to one tokenizer only, and are given to `member`. What `next`,
    `score`, `choose` and `stream` are of is the local rule, a distribution over texts that is
    normalised at each byte; `complete` also has the global one (docs/combine.md).

    A preset or a tolerance is every member's; without one each has its own default. `complete`
    draws bytes: at temperature 0 it goes on greedily from each of the n likeliest next bytes, and
    temperature, `top_p` and `top_k` apply to bytes. Its `conditioning="global"` draws from the
    combination of the members' distributions over whole texts, given the constraint if there is
    one, where a text of `max_new_bytes` counts as if it ended there. `Weighted.logprob` then is an
    estimate of what all texts add up to before normalising.

    Attributes:
        team: the members, and the rule that combines them.

    >>> import charwise
    >>> from charwise import combine
    >>> lm = charwise.load()
    >>> both = combine.mixture([lm, combine.member(lm, before="import numpy as np\\n")])
    >>> both.next("x = np.zer").top(1)[0][0]
    'o'
    """

    def __init__(self, team: Team) -> None:
        self.team = team

    @property
    def members(self) -> tuple[Member, ...]:
        """The models, each with the text before that it alone gets."""
        return self.team.members

    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
    ) -> CombinedState:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        A mixture also scores the prompt with each member: how well each foresaw it says how much
        each counts from there (`CombinedState.shares`).

        Raises:
            ZeroProbabilityError: if the combination gives the prompt probability zero.
            TokenizationError: a prompt with token ids.

        >>> import charwise
        >>> from charwise import combine
        >>> state = combine.product([charwise.load()]).state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        return begin(
            self.team.spending({"preset": preset, "tolerance": tolerance}), _text_of(prompt)
        )

    def _scored(
        self,
        prompts: Sequence[Prompt],
        contexts: Sequence[Prompt],
        asked: Asked,
        **spend: Unpack[EffortKeywords],
    ) -> list[Score]:
        # One pass of each member over the texts. Except of a mixture whose `entropy` is not asked,
        # that keeps the 257 probabilities of every byte and member: two kilobytes each.
        found = scores(
            self.team.spending(spend),
            [_text_of(prompt) for prompt in prompts],
            [_text_of(context) for context in contexts],
            end=asked.end,
            rows=asked.entropy is not None,
            progress=asked.progress,
        )
        if asked.entropy != "byte":
            return found
        return [replace(one, distributions=None) for one in found]

    def info(self) -> dict[str, str]:
        """The rule, and the `info` of each member.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.minimum([charwise.load()]).info()["rule"]
        'Extreme(greatest=False)'
        """
        found = {"rule": repr(self.team.rule)}
        for number, one in enumerate(self.team.members):
            info: Any = getattr(one.lm, "info", dict)()
            found |= {f"member {number}, {name}": value for name, value in info.items()}
        return found

    def __repr__(self) -> str:
        return f"Combination({self.team.rule!r}, {len(self.team.members)} members)"


def mixture(members: Sequence[Any], weights: Sequence[float] | None = None) -> Combination:
    """Return the mixture Σ_i λ_i p_i of distributions over texts: one member writes the whole text.

    At each byte the members count by λ_i(σ) ∝ λ_i →p_i(σ), Bayes' rule, so that who foresees the
    text better soon counts for all: over n bytes it costs at most log(1/λ_i) / n nats a byte more
    than member i does. Averaging with constant weights is another distribution.

    Args:
        members: models, or `member(…)`s.
        weights: λ, none negative; divided by their sum. By default equal.

    Raises:
        SettingError: what are no members, or no such weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> mixture([lm, lm], weights=[3, 1]).team.rule
    Mixture(weights=(0.75, 0.25))
    """
    found = _members_of(members)
    given = _weights(weights, len(found))
    if min(given) < 0 or not 0 < sum(given) < math.inf:
        raise SettingError(
            f"the weights are {shown(weights)}: of a mixture, none is negative, and one is above 0."
        )
    return Combination(Team(found, Mixture(tuple(weight / sum(given) for weight in given))))


def product(members: Sequence[Any], weights: Sequence[float] | None = None) -> Combination:
    """Return the product ∝ Π_i p_i^{w_i}: texts that all members find likely.

    What a member gives probability zero is impossible, whatever its weight's sign.

    Args:
        members: models, or `member(…)`s.
        weights: w, any numbers that are not all 0; by default 1/n each, the geometric mean.

    Raises:
        SettingError: what are no members, or no such weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> product([lm, lm]).team.rule.weights
    (0.5, 0.5)
    """
    found = _members_of(members)
    given = _weights(weights, len(found))
    if not any(given):
        raise SettingError(f"the weights are {shown(weights)}: one must be other than 0.")
    return Combination(Team(found, Product(given)))


def minimum(members: Sequence[Any]) -> Combination:
    """Return the minimum ∝ min_i p_i: texts are as likely as to the most doubtful member.

    >>> import charwise
    >>> minimum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return Combination(Team(_members_of(members), Extreme(greatest=False)))


def maximum(members: Sequence[Any]) -> Combination:
    """Return the maximum ∝ max_i p_i: texts are as likely as to the most confident member.

    >>> import charwise
    >>> maximum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return Combination(Team(_members_of(members), Extreme(greatest=True)))


def proxy(base: Any, tuned: Any, untuned: Any, alpha: float = 1.0) -> Combination:
    """Return ∝ base · (tuned / untuned)^α: the change that tuning made to another model.

    Proxy tuning (Liu et al., COLM 2024), there for models of one tokenizer; over bytes the three
    may have three.

    Args:
        base: the model that is to be tuned.
        tuned, untuned: another model after and before.
        alpha: how much of it; any number.

    Raises:
        SettingError: what are no models, or no number.

    >>> import charwise
    >>> lm = charwise.load()
    >>> proxy(lm, lm, lm, alpha=0.5).team.rule.weights
    (1.0, 0.5, -0.5)
    """
    _check_finite("alpha", alpha)
    weights = (1.0, float(alpha), -float(alpha))
    return Combination(Team(_members_of([base, tuned, untuned]), Product(weights)))


def contrast(strong: Any, weak: Any, plausibility: float = 0.1) -> Combination:
    """Return ∝ strong / weak, among the bytes that the strong model finds plausible.

    Contrastive decoding (Li et al., ACL 2023), over bytes in place of tokens: what the strong model
    gives at least `plausibility` of what it gives its likeliest byte.

    Args:
        strong, weak: the models.
        plausibility: in [0, 1]; 0 allows everything.

    Raises:
        SettingError: what are no models, or no such number.

    >>> import charwise
    >>> lm = charwise.load()
    >>> contrast(lm, lm).next("import nump").top(1)[0]
    ('y', 1.0)
    """
    check_number("plausibility", plausibility, 0.0, 1.0)
    rule = Product((1.0, -1.0), plausibility=float(plausibility))
    return Combination(Team(_members_of([strong, weak]), rule))


def _weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One finite number for each member; by default equal ones that sum to 1."""
    if weights is None:
        return (1.0 / count,) * count
    listed = items(weights)
    if listed is None:
        raise SettingError(f"the weights are {shown(weights)}: give a list of numbers.")
    if len(listed) != count:
        raise SettingError(f"{len(listed)} weights for {count} members: give one for each.")
    for weight in listed:
        _check_finite("a weight", weight)
    return tuple(float(weight) for weight in listed)


def _check_finite(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} is {shown(value)}: it must be a number.")
    try:
        finite = math.isfinite(float(value))
    except OverflowError:
        finite = False
    if not finite:
        raise SettingError(f"{name} is {shown(value)}: it must be finite.")


def _members_of(given: Sequence[Any]) -> tuple[Member, ...]:
    """Models and members, as members.

    Raises:
        SettingError: no list, an empty one, or what is no model.

    >>> _members_of([])
    Traceback (most recent call last):
    charwise.errors.SettingError: a combination has no members: give one model or more.
    """
    listed = items(given)
    if listed is None:
        raise SettingError(f"the members are {shown(given)}: give a list of models.")
    if not listed:
        raise SettingError("a combination has no members: give one model or more.")
    return tuple(one if isinstance(one, Member) else member(one) for one in listed)


def _text_of(prompt: Prompt) -> bytes:
    """A prompt that several tokenizers can read: its bytes.

    Raises:
        TokenizationError: one with token ids, or that is no prompt.

    >>> _text_of("naï"), _text_of([b"x"])
    (b'na\\xc3\\xaf', b'x')
    """
    if is_text(prompt):
        return to_bytes(prompt)
    parts = parts_of(prompt)
    if any(isinstance(part, int) for part in parts):
        raise TokenizationError(
            "the prompt has token ids, which mean something to one tokenizer only: give them to "
            "their model, with combine.member(lm, before=[…])."
        )
    return b"".join(to_bytes(part) for part in parts if not isinstance(part, int))
