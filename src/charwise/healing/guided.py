"""Token healing by an engine's own guided decoding: the requests for vLLM, SGLang, TensorRT-LLM.

    request = vllm_request("raise ValueErr", index, SamplingParams(max_tokens=8))
    [output] = llm.generate({"prompt_token_ids": request.ids}, request.sampling_params)
    text = request.text(output.outputs[0].token_ids)

The engine gets the kept ids, and a regular expression that forces the rest of the prompt, so it
works with speculation, CUDA graphs and overlapped scheduling.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from charwise.errors import SettingError
from charwise.healing.continuation import Bounds, Continuation
from charwise.healing.forced import HealedPrompt, Rule
from charwise.healing.prompt import heal_characters
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary


class GuidedRequest(NamedTuple):
    """A prompt and its parameters for an engine, and what reads the ids of the answer.

    Attributes:
        ids: of the prompt, up to the cut.
        sampling_params: the engine's own, with the expression.
        vocabulary, healed, bounds: as for `Continuation`.
    """

    ids: list[int]
    sampling_params: Any
    vocabulary: Vocabulary
    healed: HealedPrompt
    bounds: Bounds

    def continuation(self) -> Continuation:
        """The new text of a completion whose tokens are still to come."""
        return Continuation(self.vocabulary, self.healed, self.bounds)

    def text(self, ids: Iterable[int]) -> str:
        """The text that a whole completion adds to the prompt.

        Tokens that do not reproduce the forced text are a `VocabularyError`.
        """
        new = self.continuation()
        new.add(ids)
        return new.take(final=True)


def vllm_request(
    prompt: Prompt, index: SortedVocabulary, sampling_params: Any, *, rule: Rule = "auto"
) -> GuidedRequest:
    """Return the request for a healed completion by `vllm.LLM.generate`.

    Its `max_tokens` count from where the prompt is reproduced: the engine is asked for one more for
    each forced byte. Stop strings of which a match could begin in the forced text are left to the
    reader. A prompt that cannot be cut or forced is a `VocabularyError`, structured outputs where
    something is forced are a `SettingError`.
    """
    from vllm.sampling_params import StructuredOutputsParams

    request = _request(
        prompt, index, rule, sampling_params.clone(), "structured_outputs", StructuredOutputsParams
    )
    params = request.sampling_params
    params.stop = params.stop or []  # vLLM wants a list
    if banned := request.healed.lookalikes(index.vocabulary):
        params.logit_bias = {**(params.logit_bias or {}), **dict.fromkeys(banned, -100.0)}
    return request


def sglang_request(
    prompt: Prompt,
    index: SortedVocabulary,
    sampling_params: Mapping[str, Any],
    *,
    rule: Rule = "auto",
) -> GuidedRequest:
    """Return the request for a healed completion by SGLang's `/generate` or `Engine.generate`.

    Both take `input_ids`, which are the request's `ids`, and `sampling_params`, whose
    `max_new_tokens` and `stop` count as for `vllm_request`.
    """
    healed, params = heal_characters(prompt, index, rule), dict(sampling_params)
    most, stops = params.get("max_new_tokens"), Stops(params.get("stop"))
    if healed.forced:
        for name in ("json_schema", "regex", "ebnf", "structural_tag"):
            if params.get(name) is not None:
                raise _grammar_refused(name)
        params["regex"] = healed.regex()
        if most is not None:
            params["max_new_tokens"] = most + len(healed.forced)
        if stops:
            params["stop"] = stops.safe_after(healed.forced)
        if banned := healed.lookalikes(index.vocabulary):
            bias = {str(id): -100 for id in banned}
            params["logit_bias"] = {**(params.get("logit_bias") or {}), **bias}
    bounds = Bounds(stops.strings, max_tokens=most)
    return GuidedRequest(healed.kept, params, index.vocabulary, healed, bounds)


def tensorrt_llm_request(
    prompt: Prompt, index: SortedVocabulary, sampling_params: Any, *, rule: Rule = "auto"
) -> GuidedRequest:
    """Return the request for a healed completion by `tensorrt_llm.LLM.generate`.

    The `LLM` must have been made with `guided_decoding_backend="xgrammar"`. `max_tokens` and `stop`
    count as for `vllm_request`.
    """
    from tensorrt_llm.llmapi import GuidedDecodingParams

    request = _request(
        prompt, index, rule, copy.copy(sampling_params), "guided_decoding", GuidedDecodingParams
    )
    if banned := request.healed.lookalikes(index.vocabulary):
        bad = request.sampling_params.bad_token_ids or ()
        request.sampling_params.bad_token_ids = [*bad, *banned]
    return request


def _request(
    prompt: Prompt,
    index: SortedVocabulary,
    rule: Rule,
    params: Any,
    field: str,
    guide: Callable[..., Any],
) -> GuidedRequest:
    """Return the request with these parameters, a copy, whose `field` gets the expression."""
    healed = heal_characters(prompt, index, rule)
    stops, most = Stops(params.stop), params.max_tokens
    bounds = Bounds(stops.strings, params.include_stop_str_in_output, params.min_tokens or 0, most)
    if healed.forced:
        if getattr(params, field) is not None:
            raise _grammar_refused(field)
        setattr(params, field, guide(regex=healed.regex()))
        params.stop = stops.safe_after(healed.forced) or None
        if most is not None:
            params.max_tokens = most + len(healed.forced)
    return GuidedRequest(healed.kept, params, index.vocabulary, healed, bounds)


def _grammar_refused(name: str) -> SettingError:
    return SettingError(
        f"{name} begins at the first token, which reproduces the prompt: use rule='off' with it."
    )
