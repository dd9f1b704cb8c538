"""Token healing in vLLM without a server: its own guided decoding forces the text.

    request = heal_request("raise ValueErr", index, SamplingParams(max_tokens=8))
    [output] = llm.generate([request.prompt], request.sampling_params)
    text = request.reader.text(output.outputs[0].token_ids)

Before a server, `charwise gateway` heals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from charwise.errors import SettingError
from charwise.healing import Rule
from charwise.healing.continuation import Bounds, Reader
from charwise.healing.prompt import heal_characters
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops


class HealedRequest(NamedTuple):
    """A prompt and its parameters for `LLM.generate`, and the reader of the answer's ids."""

    prompt: dict[str, list[int]]
    sampling_params: Any
    reader: Reader


def heal_request(
    prompt: Prompt, index: SortedVocabulary, sampling_params: Any, *, rule: Rule = "auto"
) -> HealedRequest:
    """Return the request for a healed completion.

    Args:
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`.
        index: of the model's vocabulary.
        sampling_params: vLLM's own. `max_tokens` counts from where the prompt is reproduced: the
            engine is asked for as many more as the forced text has bytes. `stop` strings of which
            a match could begin in the forced text are left to the reader.
        rule: where to cut.

    Raises:
        VocabularyError: what cannot be cut, or forced.
        SettingError: structured outputs, or beams, where something is forced.
    """
    healed = heal_characters(prompt, index, rule)
    params = sampling_params.clone()
    stops = Stops(params.stop)
    keep, least = params.include_stop_str_in_output, params.min_tokens
    bounds = Bounds(stops.strings, keep, least, params.max_tokens)
    if healed.forced:
        from vllm.sampling_params import StructuredOutputsParams

        if params.structured_outputs is not None:
            raise SettingError(
                "structured_outputs begin at the first token, which reproduces the prompt: use "
                "rule='off' with them."
            )
        params.structured_outputs = StructuredOutputsParams(regex=healed.regex())
        params.stop = stops.apart_from(healed.forced)
        if params.max_tokens is not None:
            params.max_tokens += healed.most_again
        if banned := healed.lookalikes(index.vocabulary):
            params.logit_bias = {**(params.logit_bias or {}), **dict.fromkeys(banned, -100.0)}
    return HealedRequest(
        {"prompt_token_ids": healed.kept}, params, Reader(index.vocabulary, healed, bounds)
    )
