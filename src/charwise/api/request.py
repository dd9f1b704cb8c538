"""Completion and chat requests in the form of OpenAI's API, read by pydantic models.

`Request` has the fields that whoever stands in front of a server computes with, and keeps all
others. `CompletionRequest` has those that the completion server answers; its other dialects
translate to it.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from charwise.api.errors import Refused
from charwise.api.limits import DEFAULT_TOKENS, SERVER
from charwise.api.structured import Structured
from charwise.api.writer import Message
from charwise.errors import SettingError
from charwise.tokens.vocabulary import Vocabulary

#: The field of a request that says where to cut, or "off".
HEAL = "charwise_heal"

#: Completions of so few tokens are ended as soon as they are there; of longer ones the surplus is
#: cut off when the server has ended.
SHORT = 32

_Least0 = Annotated[int, Field(ge=0)]
_Stop = str | list[Annotated[str, Field(min_length=1)]]


class _StreamOptions(BaseModel):
    """The parts of a stream besides its choices."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Request(BaseModel):
    """A completion or chat request, as far as healing computes with it; other fields stay.

    Numbers and truth values are taken as vLLM takes them: it reads requests by pydantic too.
    """

    model_config = ConfigDict(extra="allow")

    max_tokens: _Least0 | None = None
    max_completion_tokens: _Least0 | None = None
    min_tokens: _Least0 | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stop: _Stop | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    echo: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    use_beam_search: bool | None = None
    continue_final_message: bool | None = None
    return_prompt_text: bool | None = None


class LlamaCppRequest(Request):
    """The same for llama.cpp: a `max_tokens` of −1 is no bound there, and "true" is not true."""

    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    stream: StrictBool | None = None
    echo: StrictBool | None = None


class Extensions(Structured):
    """The fields that a request of any dialect may have besides its own.

    Attributes:
        mode: how the prompt's end is treated.
        until: "line" or "block", where a completion ends.
        n_indent: end before a line indented by less.
        threshold: offer nothing less probable.
        max_bytes: of a completion.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    mode: Literal["exact", "healed", "plain"] | None = None
    until: Literal["line", "block"] | None = None
    n_indent: int | None = None
    threshold: float | None = None
    max_bytes: int | None = None

    @property
    def extensions(self) -> Message:
        """These fields, for a request of another dialect."""
        given = {name: getattr(self, name) for name in Extensions.model_fields}
        return {name: value for name, value in given.items() if value is not None}


class CompletionRequest(Extensions):
    """A request to the completion server.

    Attributes:
        top_k: not OpenAI's.
        line_seconds: seconds for a completion, once a whole line of it is there.
    """

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    suffix: str | None = None
    max_tokens: int | None = Field(DEFAULT_TOKENS, ge=0, le=SERVER.tokens)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=100)
    best_of: int | None = None
    line_seconds: float | None = None

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises:
            Refused: the field.
        """
        if self.best_of not in (None, 1, self.n or 1):
            raise Refused(400, "best_of is more than n: the n best are what n gives.", "best_of")
        if self.stream_options is not None and not self.stream:
            raise Refused(400, "stream_options are for streams: set stream.", "stream_options")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text, or token ids.

        Raises:
            Refused: there is none, or there are too many.
        """
        several = self.prompt
        if isinstance(several, str):
            return [several]
        if not several:
            raise Refused(400, "prompt is an empty list.", "prompt")
        found: list[Any] = [several] if isinstance(several[0], int) else list(several)
        if excess := SERVER.exceeded(len(found), 1, None, None):
            raise Refused(400, f"{excess}: send several requests.", "prompt")
        return found


def llama_limits(
    most: int | None, top_p: float | None, seed: int | None, stop: str | list[str] | None
) -> Message:
    """Return fields of a `CompletionRequest` from those of llama.cpp and of Ollama.

    Both write a negative number, and an empty stop string, for none.

    >>> llama_limits(8, -1.0, -1, ["", "a"])
    {'max_tokens': 8, 'top_p': None, 'seed': None, 'stop': ['a']}
    """
    return {
        "max_tokens": SERVER.tokens if most is None or most < 0 else most,
        "top_p": None if top_p is None or top_p <= 0 else min(top_p, 1.0),
        "seed": None if seed is None or seed < 0 else seed,
        "stop": [one for one in ([stop] if isinstance(stop, str) else stop or []) if one],
    }


#: Where a list of ids, or of lists of them, begins. No two repeats meet: where two share a run of
#: spaces, a body of nothing else takes the square of its length.
_IDS = re.compile(rb'"prompt"\s*:\s*\[\s*(?:\[\s*)?\d')


def is_long_and_of_ids(body: bytes) -> bool:
    """Return whether a body has many token ids for a prompt, and does not ask for healing.

    To parse it would keep all other requests waiting, for a prompt that is not healed.

    >>> is_long_and_of_ids(b'{"prompt": [' + b"5, " * 50_000), is_long_and_of_ids(b'{"prompt": 5}')
    (True, False)
    """
    return len(body) > 2**16 and HEAL.encode() not in body and _IDS.search(body) is not None


def parsed(body: bytes, form: type[Request] = Request) -> Message:
    """Return the fields of a request; empty if it cannot be read: the server itself will say so.

    Args:
        body: of the request.
        form: which types its fields have.

    Raises:
        SettingError: JSON that servers stumble over: too deep, or with half a surrogate pair.

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
    try:
        checked = form.model_validate(request)
    except ValidationError:
        return {}
    return {**request, **checked.model_dump(include=set(form.model_fields), exclude_unset=True)}


def heal_rule(request: Message) -> Any:
    """Return where a request says to cut; None if it does not say, or says null.

    It says so at its top level, or in `vllm_xargs`.

    Raises:
        SettingError: it says two things.

    >>> heal_rule({"charwise_heal": "word"}), heal_rule({"vllm_xargs": {"charwise_heal": 2}})
    ('word', 2)
    """
    outer, inner = request.get(HEAL), _arguments(request).get(HEAL)
    if outer is not None and inner is not None and outer != inner:
        raise SettingError(f"{HEAL} is {outer!r}, and {inner!r} in vllm_xargs: give it once.")
    return inner if outer is None else outer


def without_heal(request: Message) -> Message:
    """Return a request without our own field, which no other server knows.

    >>> without_heal({"charwise_heal": 1, "vllm_xargs": {"charwise_heal": 1, "other": 1}})
    {'vllm_xargs': {'other': 1}}
    """
    rest = {name: value for name, value in request.items() if name != HEAL}
    if HEAL in (arguments := _arguments(request)):
        rest["vllm_xargs"] = {name: arguments[name] for name in arguments if name != HEAL}
    return rest


def _arguments(request: Message) -> Message:
    given = request.get("vllm_xargs")
    return given if isinstance(given, dict) else {}


def texts_or_ids(prompt: Any, *, with_ids: bool) -> list[Any]:
    """Return the prompts of a request, token ids only if asked for; empty if there is none."""
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
    """Return a prompt of `texts_or_ids` as text."""
    if isinstance(prompt, str):
        return prompt
    return vocabulary.decode(prompt).decode("utf-8", "replace")


def most_tokens(request: Message) -> int | None:
    """Return how many tokens are asked for; None for as many as there is room for.

    >>> most_tokens({}), most_tokens({"max_tokens": 3}), most_tokens({"max_tokens": None})
    (16, 3, None)
    """
    most: int | None = request.get("max_tokens", DEFAULT_TOKENS)
    return most
