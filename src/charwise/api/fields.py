"""Fields of a request that nothing here reads: refused, or named in a header of the answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from charwise.api.errors import Refused

#: Fields that other servers read and that change an answer; and the values of each that change
#: nothing, beside those that are empty.
_CHANGING: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        # what is generated has a form
        *("regex", "ebnf", "structural_tag", "tools", "functions"),
        # there is more to read
        *("messages", "system", "system_prompt", "template", "images", "image_data"),
        *("multimodal_data", "prompt_embeds", "input_extra", "lora", "control_vector"),
        # other tokens are drawn
        *("logit_bias", "presence_penalty", "frequency_penalty", "bad_words", "allowed_token_ids"),
        *("min_tokens", "ignore_eos", "stop_token_ids", "use_beam_search", "logits_processors"),
        *("mirostat", "mirostat_mode", "dry_multiplier"),
        # it is told otherwise
        *("post_sampling_probs", "include_stop_str_in_output"),
    ),
    (),
) | {
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "truncate_prompt_tokens": (-1,),
}

#: The same, where tokens are drawn at random.
_SAMPLERS: dict[str, tuple[Any, ...]] = {
    "min_p": (),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_n_sigma": (-1,),
    "xtc_probability": (),
    "dynatemp_range": (),
}

_EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {})


def unread(body: BaseModel, within: str = "") -> list[str]:
    """Return the names of the fields that a request has and its model does not know.

    Args:
        body: a model that keeps such fields.
        within: comes before their names, those of the objects that hold them.

    Raises:
        Refused: one of them would change the answer.

    >>> from charwise.api.request import CompletionRequest
    >>> unread(CompletionRequest(user="me", min_p=0.1, ebnf=""))
    ['user', 'min_p', 'ebnf']
    >>> unread(CompletionRequest(ebnf='root ::= "a"'))
    Traceback (most recent call last):
    charwise.api.errors.Refused: ebnf is not read here, and changes the answer: leave it out.
    """
    known = _CHANGING | (_SAMPLERS if getattr(body, "temperature", None) else {})
    names = []
    for name, value in (body.model_extra or {}).items():
        if name in known and value not in (*_EMPTY, *known[name]):
            raise Refused(
                400,
                f"{within}{name} is not read here, and changes the answer: leave it out.",
                within + name,
            )
        names.append(within + name)
    for name in type(body).model_fields:
        if isinstance(value := getattr(body, name), BaseModel):
            names += unread(value, f"{within}{name}.")
    return names


def warning(names: list[str]) -> tuple[bytes, bytes]:
    """Return the header that lists fields which are not read.

    >>> warning(["usre", "ä"])
    (b'warning', b'299 charwise "fields that are not read: usre, %C3%A4"')
    """
    shown = [quote(name[:64], errors="replace") for name in names[:20]]
    more = ["..."] if len(names) > 20 else []
    listed = ", ".join([*shown, *more])
    return b"warning", f'299 charwise "fields that are not read: {listed}"'.encode()
