"""The answer to a healed chat request: read as that of a completion, and written back as chat."""

from __future__ import annotations

from typing import Any

from charwise.processors.openai.answer import Answer

Message = dict[str, Any]


#: Fields of a choice besides its message and log-probabilities.
_FIELDS = ("index", "finish_reason", "stop_reason", "token_ids")


class ChatAnswer(Answer):
    """An `Answer` whose choices have messages (deltas in a stream) in the place of text.

    Log-probabilities are one list of tokens, without offsets. The chunk that opens a stream tells
    the role and has no tokens; it goes on as it is.
    """

    def add(self, chunk: Message) -> list[Message]:
        """Take a chunk of the engine; returns the choices to tell the client, if any.

        Raises:
            HealingError: the engine does not reproduce the forced text.
        """
        chunk["prompt_token_ids"] = chunk.get("prompt_token_ids") if self._shows_ids else None
        opening = [
            given
            for given in chunk["choices"]
            if not given.get("token_ids") and not given.get("finish_reason")
        ]
        if opening:
            self._note(chunk)
            return opening
        given = {**chunk, "choices": [_as_completion(each) for each in chunk["choices"]]}
        told = [self._as_chat(each) for each in super().add(given)]
        if chunk.get("usage"):
            chunk["usage"] = given["usage"]
        return told

    def _note(self, chunk: Message) -> None:
        super()._note(chunk)
        if not self.streams:  # it may be read as a stream all the same
            self.top["object"] = "chat.completion"

    def choices(self) -> list[Message]:
        """The whole choices, once the engine has ended."""
        return [self._as_chat(each) for each in super().choices()]

    def _as_chat(self, choice: Message) -> Message:
        chat = {name: choice[name] for name in _FIELDS if name in choice}
        message = {**(choice.get("message") or {}), "content": choice["text"]}
        logprobs = choice.get("logprobs")
        chat["logprobs"] = {"content": logprobs["content"]} if logprobs else None
        if not self.streams:
            return chat | {"message": {"role": "assistant", **message}}
        return chat | {"delta": message}


def _as_completion(choice: Message) -> Message:
    rest = {name: value for name, value in choice.items() if name not in ("message", "delta")}
    message = choice.get("message") or choice.get("delta") or {}
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content")
    return {
        **rest,
        "text": message.get("content") or "",
        "message": message,
        "logprobs": {"content": content} if content else None,
    }
