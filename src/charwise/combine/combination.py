"""`Combination`: several models as one, over characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from charwise.character_model import CharacterModel
from charwise.combine.members import Member, Spend, Team, text_of
from charwise.combine.scoring import scores
from charwise.combine.state import CombinedState, begin
from charwise.cursor.options import Report
from charwise.errors import SettingError
from charwise.scoring.effort import Effort
from charwise.surprisal.score import Entropy, Score
from charwise.tokens.prompt_parts import Prompt


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
        """The models, each with what comes before the text for it alone."""
        return self.team.members

    def state(
        self,
        prompt: Prompt = "",
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        exact_from: int | None = None,
    ) -> CombinedState:
        """The immutable state after a prompt: extend it with `+`, ask `next()`.

        A mixture also scores the prompt with each member: how well each foresaw it says how much
        each counts from there (`CombinedState.shares`).

        Raises:
            ZeroProbabilityError: if the combination gives the prompt probability zero.
            TokenizationError: a prompt with token ids.
            SettingError: with `exact_from`, which is a model's own.

        >>> import charwise
        >>> from charwise import combine
        >>> state = combine.product([charwise.load()]).state("import nu")
        >>> (state + "mp").next().top(1)[0][0]
        'y'
        """
        if exact_from is not None:
            raise SettingError("a combination takes no exact_from, which is of one model: omit it.")
        return begin(self.team, text_of(prompt), Spend(preset, tolerance))

    def _scored(
        self,
        prompts: Sequence[Prompt],
        contexts: Sequence[Prompt],
        *,
        preset: str | Effort | None = None,
        tolerance: float | None = None,
        end: bool = False,
        entropy: Entropy | None = None,
        progress: Report | None = None,
    ) -> list[Score]:
        # One pass of each member over the texts. Except of a mixture whose `entropy` is not asked,
        # that keeps the 257 probabilities of every byte and member: two kilobytes each.
        found = scores(
            self.team,
            [text_of(prompt) for prompt in prompts],
            [text_of(context) for context in contexts],
            Spend(preset, tolerance),
            end=end,
            rows=entropy is not None,
            progress=progress,
        )
        return [replace(one, distributions=None) for one in found] if entropy == "byte" else found

    def info(self) -> dict[str, str]:
        """The rule, and what each member says of itself.

        >>> import charwise
        >>> from charwise import combine
        >>> combine.minimum([charwise.load()]).info()["rule"]
        'Extreme(greatest=False)'
        """
        found = {"rule": repr(self.team.rule)}
        for number, member in enumerate(self.team.members):
            info: Any = getattr(member.lm, "info", dict)()
            found |= {f"member {number}, {name}": value for name, value in info.items()}
        return found

    def __repr__(self) -> str:
        return f"Combination({self.team.rule!r}, {len(self.team.members)} members)"
