"""Completion requests in the form of OpenAI's API: read, and checked as far as they are used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from charwise.errors import SettingError
from charwise.tokens.vocabulary import Vocabulary

Message = dict[str, Any]

#: The request argument that says where to cut, or "off".
HEAL = "charwise_heal"

#: What servers write if a completion request does not say how much.
DEFAULT_MAX_TOKENS = 16

#: Of so few tokens none may be missing: the server is asked for as many more as the forced text has
#: bytes, and ended when they are there.
SHORT = 32

#: Fields that are numbers, and at least so much.
_NUMBERS = {"max_tokens": 0, "max_completion_tokens": 0, "min_tokens": 0, "n": 1}

#: Fields that are true or false.
_FLAGS = (
    "stream",
    "echo",
    "return_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_special_tokens",
    "use_beam_search",
    "continue_final_message",
    "return_prompt_text",
)

#: Those of `stream_options`.
_STREAM_FLAGS = ("include_usage", "continuous_usage_stats")

#: What pydantic, by which vLLM reads requests, takes for true and for false.
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})

#: The types of the fields that are computed with; the server itself answers requests with others.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "max_tokens": int,
    "max_completion_tokens": int,
    "min_tokens": int,
    "n": int,
    "stop": (str, list),
    "stream_options": dict,
    "vllm_xargs": dict,
    **dict.fromkeys(_FLAGS, bool),
}


#: Where a list of ids, or of lists of them, begins. No two repeats meet: where two share a run of
#: spaces, a body of nothing else takes the square of its length.
_IDS = re.compile(rb'"prompt"\s*:\s*\[\s*(?:\[\s*)?\d')


def is_long_and_of_ids(body: bytes) -> bool:
    """Whether a body has many token ids for a prompt, and does not ask for healing.

    To parse it would keep all other requests waiting, for a prompt that is not healed.

    >>> is_long_and_of_ids(b'{"prompt": [' + b"5, " * 50_000), is_long_and_of_ids(b'{"prompt": 5}')
    (True, False)
    """
    return len(body) > 2**16 and HEAL.encode() not in body and _IDS.search(body) is not None


def parsed(body: bytes, *, llama_cpp: bool = False) -> Message:
    """A request that can be read; empty if it cannot, and the server itself will say so.

    Args:
        body: of the request.
        llama_cpp: whether a llama.cpp is behind: a `max_tokens` of -1 is no bound there, and a
            `"true"` not true.

    Raises:
        SettingError: what servers stumble over: nesting that is too deep, half a surrogate pair.

    >>> parsed(b'{"max_tokens": "8"}'), parsed(b'{"max_tokens": -1}'), parsed(b'{"stop": [')
    ({'max_tokens': 8}, {}, {})
    """
    try:
        request = json.loads(body)
        # Written as \udXXX, in raw bytes, or either in UTF-16 or UTF-32, which have zeros.
        if b"\\ud" in body.lower() or b"\xed" in body or b"\0" in body:
            json.dumps(request, ensure_ascii=False).encode()
    except RecursionError:
        raise SettingError("the body of this request is nested too deeply.") from None
    except UnicodeEncodeError as error:
        raise SettingError(
            f"the body of this request has {error.object[error.start]!r}, half of a surrogate "
            "pair, which is no text."
        ) from None
    except ValueError:
        return {}
    if not isinstance(request, dict):
        return {}
    for name in _NUMBERS:
        if name in request:
            request[name] = _number(request[name])
    if not llama_cpp:
        _read_flags(request, _FLAGS)
        if isinstance(request.get("stream_options"), dict):
            _read_flags(request["stream_options"], _STREAM_FLAGS)
    bounded = not llama_cpp or request.get("max_tokens") != -1
    checked = request if bounded else {**request, "max_tokens": None}
    return request if _well_formed(checked) else {}


def _number(value: Any) -> Any:
    """What servers take for a whole number as one, anything else as it is.

    >>> _number("8"), _number(8.0), _number("many"), _number(0.5)
    (8, 8, 'many', 0.5)
    """
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _read_flags(fields: Message, names: Iterable[str]) -> None:
    """What vLLM takes for true or false becomes that."""
    for name in names:
        if name in fields:
            fields[name] = _flag(fields[name])


def _flag(value: Any) -> Any:
    """What vLLM takes for true or false as that, anything else as it is.

    >>> _flag("Yes"), _flag(0), _flag("maybe"), _flag(2)
    (True, False, 'maybe', 2)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    text = value.lower() if isinstance(value, str) else f"{value:g}"
    return True if text in _TRUE else False if text in _FALSE else value


def _well_formed(request: Message) -> bool:
    for name, kind in _TYPES.items():
        value = request.get(name)
        if value is not None and not isinstance(value, kind):
            return False
    for name, least in _NUMBERS.items():
        if request.get(name) is not None and request[name] < least:
            return False
    options = request.get("stream_options") or {}
    if not all(isinstance(options.get(name), bool | None) for name in _STREAM_FLAGS):
        return False
    stop = request.get("stop") or []
    return all(isinstance(string, str) and string for string in stop)


def prompts(prompt: Any, *, with_ids: bool) -> list[Any]:
    """The prompts of a request as a list, token ids only if asked for; empty if there is none."""
    if isinstance(prompt, str):
        return [prompt] if prompt else []
    if not isinstance(prompt, list) or not prompt:
        return []
    if all(isinstance(part, str) and part for part in prompt):
        return prompt
    if not with_ids:
        return []
    if all(type(part) is int for part in prompt):
        return [prompt]
    every = all(
        isinstance(part, list) and part and all(type(id) is int for id in part) for part in prompt
    )
    return prompt if every else []


def text_of(prompt: Any, vocabulary: Vocabulary) -> str:
    """A prompt of `prompts` as text."""
    if isinstance(prompt, str):
        return prompt
    return vocabulary.decode(prompt).decode("utf-8", "replace")


def asked(request: Message) -> int:
    """How many tokens are asked for.

    >>> asked({}), asked({"max_tokens": 3})
    (16, 3)
    """
    most: int | None = request.get("max_tokens")
    return DEFAULT_MAX_TOKENS if most is None else most
