"""Token healing in SGLang's `/generate` and `Engine.generate`: its guided decoding forces the text.

    body, reader = heal_request("raise ValueErr", index, sampling_params={"max_new_tokens": 20})
    answer = requests.post(f"{server}/generate", json=body).json()
    text = reader.text(answer["output_ids"])

`charwise gateway` heals all clients of a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from charwise.errors import SettingError
from charwise.healing import Rule
from charwise.healing.continuation import Bounds, Reader
from charwise.healing.prompt import heal_characters
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.stops import Stops

#: What restricts an output by a grammar, which SGLang begins with the first generated token.
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class HealedRequest(NamedTuple):
    """A request for a healed completion, and the reader of its answer."""

    body: dict[str, Any]
    reader: Reader


def heal_request(
    prompt: Prompt,
    index: SortedVocabulary,
    *,
    rule: Rule = "auto",
    sampling_params: Mapping[str, Any] | None = None,
) -> HealedRequest:
    r"""Return the body of a `/generate` request, or the keyword arguments of `Engine.generate`.

    Args:
        prompt: text, bytes, or a list of texts and token ids, as for `healing.cut`.
        index: of the model's vocabulary.
        rule: where to cut.
        sampling_params: SGLang's own. `max_new_tokens` counts from where the prompt is
            reproduced: the server is asked for as many more as the forced text has bytes. `stop`
            strings of which a match could begin in the forced text are left to the reader.

    The completion starts with the forced text, which `reader.text(output_ids)` takes off.

    Raises:
        VocabularyError: what cannot be cut, or forced.
        SettingError: a grammar of the client's own, where something is forced.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"->", b" ", b"No", b" Node", b"N"])
    >>> body, reader = heal_request("-> No", SortedVocabulary(vocabulary))
    >>> body["input_ids"], body["sampling_params"]
    ([0], {'regex': ' No(.|\\n)*'})
    >>> reader.text([3])
    'de'
    """
    healed = heal_characters(prompt, index, rule)
    sampling = dict(sampling_params or {})
    most, stops = sampling.get("max_new_tokens"), Stops(sampling.get("stop"))
    if healed.forced:
        if given := [name for name in _GRAMMARS if sampling.get(name) is not None]:
            raise SettingError(
                f"{given[0]} begins at the first token, which reproduces the prompt: use "
                "rule='off' with it."
            )
        sampling["regex"] = healed.regex()
        if most is not None:
            sampling["max_new_tokens"] = most + healed.most_again
        if stops:
            sampling["stop"] = stops.apart_from(healed.forced)
        if banned := healed.lookalikes(index.vocabulary):
            bias = {str(id): -100 for id in banned}
            sampling["logit_bias"] = {**(sampling.get("logit_bias") or {}), **bias}
    reader = Reader(index.vocabulary, healed, Bounds(stops.strings, max_tokens=most))
    return HealedRequest({"input_ids": healed.kept, "sampling_params": sampling}, reader)
