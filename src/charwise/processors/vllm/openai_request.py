"""Completion requests: which can be healed, and the request that vLLM gets.

One with a `suffix` becomes the model's template around two texts, healed on both sides. The
beginning of the suffix that a longer token could have joined to the middle leaves the prompt,
and is what the completion must end with: `charwise_ending` keeps the logits processor from letting
it end anywhere else, and the client gets what comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charwise.api.request import (
    HEAL,
    SHORT,
    heal_rule,
    most_tokens,
    text_of,
    texts_or_ids,
    without_heal,
)
from charwise.api.writer import Message
from charwise.errors import ContextLengthError, SettingError
from charwise.healing import Rule
from charwise.processors.healed_prompt import HealedPrompt, end_ids
from charwise.processors.openai.answer import Answer, Call
from charwise.processors.vllm.prompts import ENDING, Served
from charwise.processors.vllm.settings import FORCED, Limits, is_refused
from charwise.processors.vllm.structured import constraint, with_literal
from charwise.tokens.stops import Stops

#: The field that holds what comes after the completion; the prompt is then what comes before it.
_SUFFIX = "suffix"

#: So many completions are read as a stream.
FEW = 16

#: Fields that cannot go with healing, and why.
UNFIT = {
    "use_beam_search": "vLLM does not call logits processors in a beam search",
    "prompt_logprobs": "they would be of another prompt, since healing cuts its end off",
    _SUFFIX: "this model has no sentinels of fill-in-the-middle that are known",
    "prompt_embeds": "a prompt given as embeddings has no text",
    "truncate_prompt_tokens": "the prompt would be cut twice",
    "kv_transfer_params": "two servers would have to cut the prompt alike",
    "allowed_token_ids": "they may forbid the text to reproduce",
}


def why_unfit(request: Message, unfit: dict[str, str]) -> tuple[str, str] | None:
    """The first field that cannot go with healing, and a sentence about it; None if all can."""
    if request.get("max_tokens") == 0:
        return "max_tokens", "max_tokens is 0, so nothing is generated"
    for name, reason in unfit.items():
        value = request.get(name)
        if value not in (None, False, "", [], {}) or (name == _SUFFIX and value == ""):
            return name, f"{name} is set, and {reason}"
    return None


def plan(model: Served, limits: Limits, request: Message) -> list[Answer] | str:
    """One answer to come for each prompt, or why the request goes through as it is, in one word.

    Raises:
        CharwiseError: healing was asked for, and cannot be had.
    """
    rule = heal_rule(request)
    texts = _texts_of(model, request)
    suffix = _suffix_of(model, request, texts)
    unfit = why_unfit(request if suffix is None else {**request, _SUFFIX: None}, UNFIT)
    if rule is not None and (unfit or not texts):
        raise SettingError(
            f"this request cannot be healed: {unfit[1] if unfit else 'it has no prompt'}."
        )
    if unfit:
        return unfit[0]
    if not texts:
        return "prompt"
    most = most_tokens(request)
    if is_refused(request, texts, most, limits, model.vocabulary.munch):
        return "too-much"
    healed = _healed(model, limits, request, texts, suffix)
    if healed is None:
        return "too-much"
    if suffix is None and not any(each.forced for each in healed):
        return "nothing-to-heal"
    rooms = [limits.room(each, most) for each in healed]
    bodies = []
    for number, each in enumerate(healed):
        body = _upstream_body(request, each, number, rooms[number], limits)
        if body is None:
            return without_grammar(each, rule)
        bodies.append(body if suffix is None else _with_ending(body, each, model))
    return [
        Answer(
            model.vocabulary,
            request,
            Call(
                body,
                text_of(prompt, model.vocabulary),
                each,
                rooms[number],
                number * (request.get("n") or 1),
            ),
        )
        for number, (prompt, each, body) in enumerate(zip(texts, healed, bodies, strict=True))
    ]


def _healed(
    model: Served, limits: Limits, request: Message, texts: Sequence[Any], suffix: str | None
) -> list[HealedPrompt] | None:
    """Each prompt, cut; None if one leaves no room, which vLLM says itself.

    Raises:
        ContextLengthError: there is no room, and exact healing was asked for.
    """
    rule = heal_rule(request)
    where: Any = "auto" if rule in (None, "exact") else rule
    right = _right_rule(request, limits)
    special = request.get("add_special_tokens", True) is not False
    most = most_tokens(request)
    left = limits.window - min(most or limits.window // 4, limits.window // 2)
    healed: list[HealedPrompt] = []
    for prompt in texts:
        if suffix is None:
            healed.append(model.heal(prompt, where, special))
        else:  # which vLLM itself refuses, so that the template is laid out whatever is healed
            healed.append(model.heal_middle(prompt, suffix, where, left, right))
        if not limits.room(healed[-1], most):
            length = len(healed[-1].kept) + healed[-1].given_back
            if rule == "exact" and length >= limits.window:
                raise ContextLengthError(
                    f"the prompt has {length} tokens, and the model's window is {limits.window}: "
                    "there is no room for another. Shorten the prompt from its start."
                )
            return None
    return healed


def without_grammar(healed: HealedPrompt, rule: Any) -> str:
    """The reason for a prompt whose constraint cannot take the forced text.

    Raises:
        SettingError: healing was asked for.
    """
    if rule is None:
        return "structured-output"
    raise SettingError(
        "this request cannot be healed: its structured output would have to begin with "
        f"{healed.forced!r}, and is of a kind that cannot, or that is no text. Leave {HEAL} out, "
        "or use a regex or a choice."
    )


def _upstream_body(
    request: Message, healed: HealedPrompt, number: int, room: int, limits: Limits
) -> Message | None:
    """Return vLLM's request for one prompt; None if its grammar cannot take the forced text."""
    body = without_heal(request) | {"prompt": healed.kept}
    body.pop(_SUFFIX, None)
    if request.get("logprobs") is None:
        body["echo"] = False  # with log-probabilities it is needed for those of the prompt
    if request.get("request_id"):
        body["request_id"] = f"{request['request_id']}-{number}"
    most = None if most_tokens(request) is None else room
    return reproducing(body, request, healed, most, limits)


def reproducing(
    body: Message, request: Message, healed: HealedPrompt, most: int | None, limits: Limits
) -> Message | None:
    """A body of which the completion reproduces the forced text; None if a grammar forbids it.

    vLLM is asked for as many more tokens as the forced text can have; the surplus is cut off. Short
    completions are read as a stream, and ended in time. Many short ones are not: an event for each
    token of each would keep the server busy for longer.
    """
    body = body | {"return_token_ids": True}
    if not healed.forced:
        return body
    found = constraint(request)
    if found is None:
        body["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), FORCED: healed.forced.hex()}
    else:
        constrained = with_literal(body, healed.forced) if found[0] in limits.grammars else None
        if constrained is None:
            return None
        body = constrained
    if request.get("min_tokens"):
        body["min_tokens"] = request["min_tokens"] + healed.given_back
    body |= stops_apart(request, healed.forced)
    if most is not None:
        if most <= SHORT and (request.get("n") or 1) <= FEW:
            body["stream"] = True
        body["max_tokens"] = min(most + healed.most_again, limits.window - len(healed.kept))
    return body


def stops_apart(request: Message, begun: bytes) -> Message:
    """Fields that leave stop strings to us, where a match could begin in the begun text.

    They are searched here alone, on a stream, so that vLLM can be told to end; likewise all, where
    they do not count for the first tokens.

    >>> stops_apart({"stop": ["an", "x"]}, b"ra"), stops_apart({"stop": "x"}, b"ra")
    ({'stop': ['x'], 'stream': True}, {})
    """
    stops = Stops(request.get("stop") or None)
    safe = [] if request.get("min_tokens") else stops.apart_from(begun)
    return {"stop": safe, "stream": True} if len(safe) < len(stops.strings) else {}


def _texts_of(model: Served, request: Message) -> list[Any]:
    """The prompts of a request; one that is empty is a prefix, where the model fills in.

    Token ids are prompts only where healing is asked for.
    """
    given = request.get("prompt")
    if given == "" and isinstance(request.get(_SUFFIX), str) and model.fills_in:
        return [given]
    return texts_or_ids(given, with_ids=heal_rule(request) is not None)


def _suffix_of(model: Served, request: Message, texts: Sequence[Any]) -> str | None:
    """Return the text after the completion, if this model fills in and the prompts are text.

    It may be empty, where the text ends.
    """
    suffix = request.get(_SUFFIX)
    if not isinstance(suffix, str):
        return None
    return suffix if model.fills_in and all(isinstance(text, str) for text in texts) else None


def _right_rule(request: Message, limits: Limits) -> Rule:
    """Where to cut the suffix: by the rule of the prefix, and not at all where that cannot be.

    >>> _right_rule({}, Limits(8, holds_ends=True)), _right_rule({}, Limits(8))
    ('auto', 'off')
    """
    if _why_left_only(request, limits):
        return "off"
    return "word" if heal_rule(request) == "word" else "auto"


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
    if heal_rule(request) == "exact":
        return "an exact request goes on from its first tokens without a mask"
    return None


def _with_ending(body: Message, healed: HealedPrompt, model: Served) -> Message:
    """Return the request for a middle: the bytes that it must end with, and its end tokens.

    A middle that goes on into the suffix is ended here, so it is read as a stream.
    """
    ids = body.get("stop_token_ids") or []
    if isinstance(ids, list) and body.get("ignore_eos") is not True:
        body = body | {"stop_token_ids": [*ids, *end_ids(model.vocabulary)]}
    if healed.until and (body.get("n") or 1) <= FEW:
        body = body | {"stream": True}
    if not healed.ending:
        return body
    return body | {"vllm_xargs": {**(body.get("vllm_xargs") or {}), ENDING: healed.ending.hex()}}
