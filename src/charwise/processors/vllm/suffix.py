"""Completion requests with a `suffix`: the model's template around two texts, healed on both sides.

The beginning of the suffix that a longer token could have joined to the middle leaves the prompt,
and is what the completion must end with: `charwise_ending` keeps the logits processor from letting
it end anywhere else, and the client gets what comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charwise.api.request import Message, texts_or_ids
from charwise.healing import Rule
from charwise.processors.new_text import HealedPrompt
from charwise.processors.vllm.limits import Limits
from charwise.processors.vllm.prompts import ENDING, Served
from charwise.processors.vllm.settings import rule_of
from charwise.processors.vllm.structured import constraint

#: The field that holds what comes after the completion; the prompt is then what comes before it.
SUFFIX = "suffix"


def texts_of(model: Served, request: Message) -> list[Any]:
    """The prompts of a request; one that is empty is a prefix, where the model fills in.

    Token ids are prompts only where healing is asked for.
    """
    given = request.get("prompt")
    if given == "" and isinstance(request.get(SUFFIX), str) and model.fills_in:
        return [given]
    return texts_or_ids(given, with_ids=rule_of(request) is not None)


def suffix_of(model: Served, request: Message, texts: Sequence[Any]) -> str | None:
    """What comes after the completion, if this model is known to fill in, and the prompts are text.

    It may be empty, where the text ends.
    """
    suffix = request.get(SUFFIX)
    if not isinstance(suffix, str):
        return None
    return suffix if model.fills_in and all(isinstance(text, str) for text in texts) else None


def right_rule(request: Message, limits: Limits) -> Rule:
    """Where to cut the suffix: by the rule of the prefix, and not at all where that cannot be.

    >>> right_rule({}, Limits(8, holds_ends=True)), right_rule({}, Limits(8))
    ('auto', 'off')
    """
    if _why_left_only(request, limits):
        return "off"
    return "word" if rule_of(request) == "word" else "auto"


def _why_left_only(request: Message, limits: Limits) -> str | None:
    """Why the beginning of a suffix stays as it is; None if the middle may have to end with it.

    >>> _why_left_only({"logprobs": 1}, Limits(8, holds_ends=True))
    'logprobs would list tokens that are not part of the middle'
    """
    if not limits.holds_ends:
        return "the V2 model runner keeps what is written on its device"
    if request.get("logprobs") is not None:
        return "logprobs would list tokens that are not part of the middle"
    if constraint(request) is not None:
        return "structured output says itself where it ends"
    if rule_of(request) == "exact":
        return "an exact request goes on from its first tokens without a mask"
    return None


def ending(body: Message, healed: HealedPrompt, model: Served) -> Message:
    """The body of a request for a middle: what it must end with, and the tokens that end it."""
    ids = body.get("stop_token_ids") or []
    if isinstance(ids, list) and body.get("ignore_eos") is not True:
        body = body | {"stop_token_ids": [*ids, *model.vocabulary.stop_ids]}
    if not healed.ending:
        return body
    return body | {"vllm_xargs": {**(body.get("vllm_xargs") or {}), ENDING: healed.ending.hex()}}
