"""Completion and chat requests in the form of OpenAI's API, read by pydantic models.

`CompletionRequest` has the fields that the completion server answers; its other dialects translate
to it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from charwise.api.errors import Refused
from charwise.api.limits import DEFAULT_TOKENS, SERVER
from charwise.api.structured import Structured
from charwise.api.writer import Message


class _StreamOptions(BaseModel):
    """The parts of a stream besides its choices."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Extensions(Structured):
    """The fields that a request of any dialect may have besides its own.

    Attributes:
        until: "line" or "block", where a completion ends.
        n_indent: end before a line indented by less.
        threshold: offer nothing less probable.
        max_bytes: of a completion.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

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
    """Return fields of a `CompletionRequest` from those of llama.cpp.

    It writes a negative number, and an empty stop string, for none.

    >>> llama_limits(8, -1.0, -1, ["", "a"])
    {'max_tokens': 8, 'top_p': None, 'seed': None, 'stop': ['a']}
    """
    return {
        "max_tokens": SERVER.tokens if most is None or most < 0 else most,
        "top_p": None if top_p is None or top_p <= 0 else min(top_p, 1.0),
        "seed": None if seed is None or seed < 0 else seed,
        "stop": [one for one in ([stop] if isinstance(stop, str) else stop or []) if one],
    }
