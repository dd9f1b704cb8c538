"""Token healing in SGLang: a custom logit processor and the request that goes with it.

    body, reader = heal_request("raise ValueErr", index, sampling_params={"max_new_tokens": 20})
    answer = requests.post(f"{server}/generate", json=body).json()
    text = reader.text(answer["output_ids"])

The server needs `--enable-custom-logit-processor --disable-overlap-schedule` and charwise in its
environment. What is forced travels in the request; the tokenizer is the server's own, found at the
request object that SGLang shows to a processor, as are the tokens generated so far.

An exception inside a processor would end SGLang's scheduler, and with it the server. A request
that cannot be healed is therefore aborted, with a sentence for its client, and the others go on.
Refused in this way: the overlap schedule, in which a step is masked before the token of the last
one is known, and the rows of speculative drafts, whose ids SGLang does not show. (EAGLE calls no
processor at all, so nobody can refuse there: the reader raises when the text comes back. Nor does
beam search: `heal_request` refuses it.)

SGLang unpacks whatever code a client sends as a processor. `sglang_plugin` lets it take this
processor only.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from charwise.errors import CharwiseError, EngineError, SettingError, check_count, shown
from charwise.healing import Rule
from charwise.processors.decision import Decisions
from charwise.processors.healed_prompt import heal_prompt
from charwise.processors.new_text import Bounds, Reader
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary

#: What restricts an output by a grammar, which SGLang begins with the first generated token.
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

#: The custom parameter that holds the forced bytes, in hex.
FORCED = "charwise_forced"

_decisions: WeakKeyDictionary[Any, Decisions] = WeakKeyDictionary()  # by the server's tokenizer


class HealedRequest(NamedTuple):
    """A request for a healed completion, and the reader of its answer.

    >>> from charwise.processors.healed_prompt import HealedPrompt
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab"])
    >>> reader = Reader(vocabulary, HealedPrompt([], b"a", 1))
    >>> HealedRequest({}, reader).reader.text([1])
    'b'
    """

    body: dict[str, Any]
    reader: Reader


def heal_request(
    prompt: Prompt,
    index: SortedVocabulary,
    *,
    rule: Rule = "auto",
    sampling_params: Mapping[str, Any] | None = None,
) -> HealedRequest:
    """The body of a `/generate` request, or the keyword arguments of `Engine.generate`.

    Args:
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`.
        index: of the model's vocabulary.
        rule: where to cut.
        sampling_params: SGLang's own. `max_new_tokens` counts from where the prompt is
            reproduced: the server is asked for as many more as the forced text has bytes. `stop`
            strings of which a match could begin in the forced text are left to the reader.

    The completion starts with the forced text, which `reader.text(output_ids)` takes off.

    Raises:
        HealingError, TokenizationError: as `healing.cut`.
        SettingError: `sampling_params` that make no sense here, ask for beams, or for structured
            output where something is forced.

    >>> vocabulary = Vocabulary.from_bytes([b"->", b" ", b"No", b" Node", b"N"])
    >>> body, reader = heal_request("-> No", SortedVocabulary(vocabulary))
    >>> body["input_ids"], body["sampling_params"]
    ([0], {'custom_params': {'charwise_forced': '204e6f'}})
    >>> reader.text([3])
    'de'
    """
    healed = heal_prompt(prompt, index, rule)
    kept, forced = healed.kept, healed.forced
    if not isinstance(sampling_params or {}, Mapping):
        raise SettingError(f"sampling_params is {shown(sampling_params)}: give a dict.")
    sampling = dict(sampling_params or {})
    if (sampling.get("beam_width") or 1) != 1:
        raise SettingError(
            "SGLang calls no logit processor in a beam search: leave beam_width out, and give n."
        )
    grammars = [name for name in _GRAMMARS if sampling.get(name) is not None]
    if grammars and forced:
        raise SettingError(
            f"{grammars[0]} is about the new text, and SGLang applies it from the first token on: "
            f"it would forbid what was given back of the prompt, {shown(forced)}. Use rule='off' "
            "with it."
        )
    custom = dict(sampling.get("custom_params") or {})
    if FORCED in custom:
        raise SettingError(f"custom_params has a {FORCED} already: leave it to heal_request.")
    sampling["custom_params"] = {**custom, FORCED: forced.hex()}
    asked = sampling.get("max_new_tokens")
    if asked is not None:
        check_count("max_new_tokens", asked, 1)
        sampling["max_new_tokens"] = asked + healed.most_again
    stops = Stops(sampling.get("stop"))
    if stops:
        sampling["stop"] = stops.apart_from(forced)
    body = {
        "input_ids": kept,
        "sampling_params": sampling,
        "custom_logit_processor": HealingLogitProcessor.to_str(),
    }
    return HealedRequest(
        body, Reader(index.vocabulary, healed, Bounds(stops.strings, max_tokens=asked))
    )


class HealingLogitProcessor:
    """SGLang's `CustomLogitProcessor`: masks each row by the request that it belongs to.

    SGLang sends the class, not an object: there is no state, and one object serves all requests.

    >>> HealingLogitProcessor()(torch.zeros(1, 2), [None])
    tensor([[0., 0.]])
    """

    @classmethod
    def to_str(cls) -> str:
        """Return the value of `custom_logit_processor` in a request: the class, by its name.

        >>> len(HealingLogitProcessor.to_str()) < 250
        True
        """
        return json.dumps({"callable": pickle.dumps(cls).hex()})

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Masks logits `[rows, width]` in place and returns them; one dict for each row.

        A row without our parameter, and one that has reproduced its text, stays as it is.
        """
        params: list[dict[str, Any] | None] = custom_param_list or []
        for row, own in enumerate(params):
            if own is None or FORCED not in own:
                continue
            request = own.get("__req__")
            try:
                forced = _forced(own)
                if request is None:
                    raise EngineError("SGLang shows no request to processors: use a newer SGLang.")
                if len(request.output_ids) >= len(forced):  # a token adds a byte or more
                    continue
                # For drafts, SGLang repeats the very same dict for each row of a request.
                same = [other for other in params[max(0, row - 1) : row + 2] if other is own]
                _check(request, drafts=len(same) > 1)
                decisions = _decisions_of(request.tokenizer)
                decisions.check(forced)
                decisions.mask_(logits[row], forced, request.output_ids)
            except CharwiseError as error:
                abort(request, error)
        return logits


def _forced(own: dict[str, Any]) -> bytes:
    try:
        return bytes.fromhex(own[FORCED])
    except (TypeError, ValueError):
        raise SettingError(
            f"the custom parameter {FORCED} is {own[FORCED]!r}: it is the forced bytes in hex."
        ) from None


def _check(request: Any, drafts: bool) -> None:
    """Refuse requests that cannot be masked rightly."""
    if drafts:
        raise EngineError(
            "this server checks several draft tokens at once and does not show them to logit "
            "processors: token healing needs it to run without speculative decoding."
        )
    kv = getattr(request, "kv", request)  # older versions keep it in the request itself
    if kv.kv_committed_len > len(request.origin_input_ids) + len(request.output_ids):
        raise EngineError(
            "this server samples a token before the last one is known: token healing needs it to "
            "run with --disable-overlap-schedule."
        )


def _decisions_of(tokenizer: Any) -> Decisions:
    """Made once for the server's tokenizer."""
    if tokenizer is None:
        raise EngineError("this server runs without a tokenizer: leave out --skip-tokenizer-init.")
    if tokenizer not in _decisions:
        index = SortedVocabulary(Vocabulary.from_transformers(tokenizer))
        _decisions[tokenizer] = Decisions(index)
    return _decisions[tokenizer]


def abort(request: Any, error: CharwiseError) -> None:
    """End one request, after the token it is at, with an error for its client.

    Raises:
        CharwiseError: the error, where there is no SGLang, or no request.
    """
    try:
        from sglang.srt.managers.schedule_batch import FINISH_ABORT
    except ImportError:
        raise error from None
    if request is None:
        raise error
    request.to_finish = FINISH_ABORT(str(error), 400, "BadRequestError")
