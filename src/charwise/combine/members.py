"""The members of a combination, and how a text is put to each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from charwise.combine.rules import Rule
from charwise.errors import (
    SettingError,
    ZeroProbabilityError,
    shown,
)
from charwise.scoring.effort import EffortKeywords
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompt_parts import Prompt, parts_of


@dataclass(frozen=True)
class Member:
    """A model, and the text before that it alone gets.

    Attributes:
        lm: a `CharLM`, a `Combination`, or what has such a method `state`.
        before: a system prompt or a template, in the model's own form: text, or a list of texts and
            special token ids. The text goes on from its last character. It is conditioned on, and
            no evidence for a mixture.
        spend: how much the model spends: a preset or a tolerance; by default its own.
    """

    lm: Any
    before: Prompt = ""
    spend: EffortKeywords = field(default_factory=EffortKeywords)

    def after(self, text: bytes) -> Any:
        """Its state after a text.

        >>> import charwise
        >>> Member(charwise.load(), "import ").after(b"nump").next().top(1)[0][0]
        'y'
        """
        return self.lm.state(self.prompt(text), **self.spend)

    def prompt(self, text: bytes) -> Prompt:
        """Return the model's prompt for a text.

        >>> Member(None, "Q: ").prompt(b"why"), Member(None, [7, "Q: "]).prompt(b"why")
        (b'Q: why', [7, 'Q: ', b'why'])
        """
        parts = parts_of(self.before)
        if any(isinstance(part, int) for part in parts):
            return [*parts, text] if text else parts
        return b"".join(to_bytes(part) for part in parts if not isinstance(part, int)) + text


class Team(NamedTuple):
    """The members, and the rule that combines them."""

    members: tuple[Member, ...]
    rule: Rule

    def spending(self, spend: EffortKeywords) -> Team:
        """The same, whose members spend so much.

        >>> import charwise
        >>> from charwise.combine import product
        >>> product([charwise.load()]).team.spending({"preset": "fast"}).members[0].spend
        {'preset': 'fast'}
        """
        return Team(tuple(replace(one, spend=spend) for one in self.members), self.rule)


def member(lm: Any, *, before: Prompt = "") -> Member:
    """A member with a prompt prefix of its own.

    Args:
        lm: the model.
        before: what comes before the text for this model alone; it may have special token ids,
            which mean something to one tokenizer only.

    Raises:
        SettingError: what is no model.
        TokenizationError: a prefix that is no prompt.

    >>> import charwise
    >>> from charwise import combine
    >>> told = combine.member(charwise.load(), before="import numpy as np\\n")
    >>> combine.mixture([told]).state("x = n").next().top(1)[0][0]
    'p'
    """
    if not callable(getattr(lm, "state", None)):
        if callable(getattr(lm, "generate", None)):  # it is shown as many lines
            raise SettingError(
                f"{type(lm).__name__} is a model over tokens: "
                "CharLM.from_transformers(model, tokenizer) makes one over characters."
            )
        raise SettingError(f"{shown(lm)} is no model: charwise.load(…) opens one.")
    parts_of(before)
    return Member(lm, before)


def impossible(text: bytes) -> ZeroProbabilityError:
    """The error for a text that a combination cannot write.

    >>> str(impossible(b"ab"))[:52]
    "the combination gives the text ending in b'ab' (2 by"
    """
    return ZeroProbabilityError(
        f"the combination gives the text ending in {text[-20:]!r} ({len(text)} bytes) probability "
        "zero: a member cannot write it, or does not find it plausible. Check the text; a mixture "
        "takes what any of its members can write."
    )
