"""Chat requests in the form of OpenAI's API, and the answers to them."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from charwise.api.errors import Refused
from charwise.api.limits import SERVER
from charwise.api.request import CompletionRequest
from charwise.api.writer import Message, head


class _TextPart(BaseModel):
    """A part of a message that has several."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"] = "text"
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation.

    >>> ChatMessage(role="user", content=[{"type": "text", "text": "a"}]).rendered
    {'role': 'user', 'content': 'a'}
    """

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1)
    content: str | list[_TextPart] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _texts(cls, content: Any) -> Any:
        """Name the first part that is no text."""
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or part.get("type", "text") != "text":
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ValueError(f"a message has text only: leave out the part of type {kind!r}")
        return content

    @property
    def rendered(self) -> Message:
        """The message as a chat template reads it."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": text}


class ChatRequest(CompletionRequest):
    """A chat request to the completion server.

    Attributes:
        add_generation_prompt: whether the model begins a message of its own.
        continue_final_message: whether it continues the last message, which may end anywhere.
        chat_template_kwargs: further variables of the template.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0, le=SERVER.tokens)
    max_completion_tokens: int | None = Field(None, ge=0, le=SERVER.tokens)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=100)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Message = Field(default_factory=dict)

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises:
            Refused: the field.
        """
        super().check()
        if self.continue_final_message and self.add_generation_prompt:
            raise Refused(
                400,
                "continue_final_message and add_generation_prompt exclude each other: set "
                "add_generation_prompt to false.",
                "continue_final_message",
            )
        if self.top_logprobs and not self.logprobs:
            raise Refused(400, "top_logprobs needs logprobs: set it to true.", "top_logprobs")
        for name in ("suffix", "echo"):
            if getattr(self, name):
                raise Refused(400, f"a chat has no {name}: leave it out.", name)

    def translated(self) -> CompletionRequest:
        """Return the request as one for a completion, but for its prompt.

        A chat whose request does not say how many tokens goes on until the model ends it.
        """
        given = self.model_dump(
            exclude={*ChatRequest.__annotations__, "prompt"}, exclude_unset=True, by_alias=True
        )
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        given["max_tokens"] = SERVER.tokens if most is None else most
        given["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return CompletionRequest(**given)


def chat_head(model: str, *, streamed: bool) -> Message:
    """Return the fields of a chat completion that its choices stand beside.

    >>> chat_head("tiny", streamed=True)["object"]
    'chat.completion.chunk'
    """
    kind = "chat.completion.chunk" if streamed else "chat.completion"
    return head(model) | {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind}


def chat_logprobs(logprobs: Message) -> Message:
    """Return the log-probabilities of a completion in the form of a chat's.

    >>> found = {"tokens": ["a"], "bytes": [[97]], "token_logprobs": [-1.0], "top_logprobs": None}
    >>> chat_logprobs(found)["content"]
    [{'token': 'a', 'logprob': -1.0, 'bytes': [97], 'top_logprobs': []}]
    """
    alternatives = logprobs["top_logprobs"] or [{} for _ in logprobs["tokens"]]
    return {
        "content": [
            {
                "token": token,
                "logprob": logprob,
                "bytes": raw,
                "top_logprobs": [
                    {"token": other, "logprob": log, "bytes": list(other.encode())}
                    for other, log in top.items()
                ],
            }
            for token, raw, logprob, top in zip(
                logprobs["tokens"],
                logprobs["bytes"],
                logprobs["token_logprobs"],
                alternatives,
                strict=True,
            )
        ]
    }
