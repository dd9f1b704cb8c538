"""Completion requests in the form of OpenAI's API: which can be healed, and what vLLM is asked."""

from __future__ import annotations

from typing import Any

from charwise.errors import SettingError
from charwise.processors.new_text import HealedPrompt
from charwise.processors.openai.answer import Answer
from charwise.processors.openai.request import HEAL, Message, asked, prompts, text_of
from charwise.processors.vllm.prompts import FORCED, served
from charwise.tokens.stops import Stops

#: Fields that cannot go with healing, and why.
_UNFIT = {
    "use_beam_search": "vLLM does not call logits processors in a beam search",
    "prompt_logprobs": "they would be of another prompt, since healing cuts its end off",
    "suffix": "the completion does not continue the prompt's end",
    "prompt_embeds": "a prompt given as embeddings has no text",
    "truncate_prompt_tokens": "the prompt would be cut twice",
    "structured_outputs": "the grammar may forbid the text to reproduce",
    "response_format": "the grammar may forbid the text to reproduce",
    "allowed_token_ids": "they may forbid the text to reproduce",
}


def plan(config: Any, request: Message) -> list[Answer]:
    """One answer to come for each prompt; none if the request goes through as it is.

    Raises:
        CharwiseError: healing was asked for, and cannot be had.
    """
    from vllm import envs

    most = getattr(envs, "VLLM_MAX_COMPLETION_PROMPTS", None)  # older versions have no bound
    arguments = request.get("vllm_xargs") or {}
    rule = arguments.get(HEAL)
    if rule == "off" or FORCED in arguments:
        return []
    texts = prompts(request.get("prompt"), with_ids=rule is not None)
    unfit = _unfit(request)
    if rule is not None and (unfit or not texts):
        raise SettingError(f"this request cannot be healed: {unfit or 'it has no prompt'}.")
    if unfit or not texts or (most is not None and len(texts) > most):
        return []
    model = served(config.model_config)
    window = config.model_config.max_model_len
    if any(len(prompt) > window * model.vocabulary.munch for prompt in texts):
        return []  # vLLM has no room for it either, and says so without reading all of it
    special = request.get("add_special_tokens", True) is not False
    healed = [model.heal(prompt, "auto" if rule is None else rule, special) for prompt in texts]
    if not any(each.forced for each in healed):
        return []
    if any(len(each.kept) + each.given_back + asked(request) > window for each in healed):
        return []  # too long also unhealed: vLLM says so, with the numbers that the client knows
    return [
        Answer(
            model.vocabulary,
            request,
            text_of(prompt, model.vocabulary),
            each,
            max_tokens=asked(request),
            first_index=number * (request.get("n") or 1),
            body=_upstream_body(request, each, number),
        )
        for number, (prompt, each) in enumerate(zip(texts, healed, strict=True))
    ]


def _unfit(request: Message) -> str | None:
    if request.get("max_tokens") == 0:
        return "max_tokens is 0, so nothing is generated"
    for name, reason in _UNFIT.items():
        value = request.get(name)
        unset = value is None or value is False or value in ("", [], {"type": "text"})
        if not unset:
            return f"{name} is set, and {reason}"
    return None


def _upstream_body(request: Message, healed: HealedPrompt, number: int) -> Message:
    """What vLLM is asked for one prompt.

    The tokens that were given back are added to the bounds on tokens: prompt and completion
    together have the room they would have had; what is too much is cut off. Stop strings of which
    a match could begin in the forced text are searched here alone, on a stream, so that vLLM can
    be told to end; likewise all, where they do not count for the first tokens.
    """
    body = without_heal(request) | {"prompt": healed.kept, "return_token_ids": True}
    if request.get("logprobs") is None:
        body["echo"] = False  # with log-probabilities it is needed for those of the prompt
    if request.get("request_id"):
        body["request_id"] = f"{request['request_id']}-{number}"
    if not healed.forced:
        return body
    body["vllm_xargs"] = {**body.get("vllm_xargs", {}), FORCED: healed.forced.hex()}
    body["max_tokens"] = asked(request) + healed.given_back
    if request.get("min_tokens"):
        body["min_tokens"] = request["min_tokens"] + healed.given_back
    stops = Stops(request.get("stop") or None)
    safe = [] if request.get("min_tokens") else stops.apart_from(healed.forced)
    if len(safe) < len(stops.strings):
        body |= {"stop": safe, "stream": True}
    return body


def without_heal(request: Message) -> Message:
    """The request without our argument, which vLLM does not know.

    >>> without_heal({"vllm_xargs": {"charwise_heal": "off", "other": 1}})
    {'vllm_xargs': {'other': 1}}
    """
    arguments = request.get("vllm_xargs")
    if not arguments or HEAL not in arguments:
        return dict(request)
    rest = {name: value for name, value in arguments.items() if name != HEAL}
    return {**request, "vllm_xargs": rest}
