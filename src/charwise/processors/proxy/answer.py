"""Answers of servers that tell text and no token ids.

The text is tokenized here, and read like token ids: the forced text is taken off, stop strings are
searched and tokens are counted. A piece of a stream is a token's text as a rule, and becomes that
token, so that a stream is asked for where the server has good ones. A text that comes in one piece,
such as the tokens of one character, is counted as the tokenizer splits it.
"""

from __future__ import annotations

from typing import Any

from charwise.api.errors import UpstreamError
from charwise.api.writer import Message
from charwise.processors.openai.answer import Answer, Call
from charwise.tokens.vocabulary import Vocabulary


class TextAnswer(Answer):
    """The choices for one prompt; arguments and attributes are those of `Answer`.

    Args:
        counts: whether nothing is wanted of the server after the last token that is asked for: its
            numbers are known here, and it has many tokens to go.
    """

    def __init__(
        self, vocabulary: Vocabulary, request: Message, call: Call, *, counts: bool = False
    ) -> None:
        super().__init__(vocabulary, request, call)
        self._counts = counts
        # Where nothing is kept of a prompt, some servers take the space off that it begins with.
        self._lead = "" if call.body.get("prompt") else vocabulary.lead.decode()
        self._begun: set[int] = set()
        self._over: set[int] = set()
        self._fields: set[str] = set()  # of the server's choices

    @property
    def ended(self) -> bool:
        """Whether the server has said all, or need not go on, for every choice.

        It need not after a stop string, nor after the last token where its numbers are not wanted.
        Otherwise it has a few tokens to go at most, and then its numbers.
        """
        return len(self._over) == self._n

    def add(self, chunk: Message) -> list[Message]:
        """Take a chunk of the server; returns the choices to tell the client, if any.

        Raises:
            HealingError: the server does not reproduce the forced text.
            UpstreamError: what it says is no completion.
        """
        usage = chunk.get("usage")
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if isinstance(counted, int):
            self.prompt_tokens = counted + self.healed.given_back
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not all(map(self._is_choice, choices)):
            raise UpstreamError(f"the server behind answered with no completion: {str(chunk)[:80]}")
        for choice in chunk["choices"]:
            self._fields.update(choice)
            choice["token_ids"] = self._ids(choice)
        told = super().add(chunk)
        for choice in chunk["choices"]:
            new = self._choice(choice["index"]).new
            enough = new.ended if self._counts else new.stopped is not None
            if enough or choice.get("finish_reason") is not None:
                self._over.add(choice["index"])
        return list(map(self._as_theirs, told))

    def choices(self) -> list[Message]:
        """The whole choices, once the server has ended."""
        return list(map(self._as_theirs, super().choices()))

    def _as_theirs(self, choice: Message) -> Message:
        """A choice with the fields that the server's has: those of ours are for reading it."""
        theirs = {*_FIELDS, *self._fields}
        return {name: value for name, value in choice.items() if name in theirs}

    @property
    def stopped(self) -> str | None:
        """The stop string that was found here in the first choice."""
        return self._choice(0).new.stopped

    def _is_choice(self, choice: Any) -> bool:
        if not isinstance(choice, dict) or choice.get("index") not in range(self._n):
            return False
        text = choice.get("text", "")
        return isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text)

    def _ids(self, choice: Message) -> list[int]:
        text = choice.get("text") or ""
        if text and choice["index"] not in self._begun:
            self._begun.add(choice["index"])
            if not text.startswith(self._lead):
                text = self._lead + text
        ids = list(self._vocabulary.encode(text)) if text else []
        if choice.get("finish_reason") == "stop":
            ids += [0]  # the token that ended it, or a stop string: it has no text
        return ids


#: The fields that every choice has.
_FIELDS = ("index", "text", "logprobs", "finish_reason")


class NativeForm:
    """The answer to a request in the form of llama.cpp's own `/completion`; see `Form`.

    Args:
        answer: the same in OpenAI's form.

    Attributes:
        complete: whether the last chunk was handed out.
    """

    def __init__(self, answer: TextAnswer) -> None:
        self.answer = answer
        self.bodies = [answer.call.body]
        self.streams = answer.streams
        self.complete = False
        self._text = ""
        self._last: Message = {}
        self._said_all = False

    def add(self, number: int, chunk: Message) -> Message | None:
        """Take a chunk of the server, and return the stream's events for it.

        Raises:
            HealingError: the server does not reproduce the forced text.
        """
        self._said_all = bool(chunk.get("stop"))
        told = None if self.complete else self._told(chunk)
        if told is not None:
            self._last = told
            self._text += told["content"]
        elif self.complete:
            self._last = {**chunk, **self._last}  # what only the server's last word has: timings
        return told

    def needs_no_more(self, number: int) -> bool:
        """Whether the server has said all that is told."""
        if self.streams:
            return self.complete
        return self._said_all or self.answer.stopped is not None

    def whole(self) -> Message:
        """Return the whole answer."""
        return {**self._last, "content": self._text}

    def tail(self) -> list[bytes]:
        """Return nothing: these streams have no end mark."""
        return []

    def _told(self, chunk: Message) -> Message | None:
        finish = None
        if chunk.get("stop"):
            finish = "length" if chunk.get("stop_type") == "limit" else "stop"
        given = {"index": 0, "text": chunk.get("content", ""), "finish_reason": finish}
        choices = self.answer.add({"choices": [given]})
        if not choices:
            return None
        [choice] = choices
        new = {"content": choice["text"], "tokens": []}
        new["tokens_predicted"] = self.answer.completion_tokens
        if "tokens_evaluated" in chunk:
            new["tokens_evaluated"] = chunk["tokens_evaluated"] + self.answer.healed.given_back
        if choice["finish_reason"] is None:
            return {**chunk, **new, "stop": False}
        self.complete = True
        stopped = self.answer.stopped
        if finish is None or stopped is not None:
            new["stop_type"] = "limit" if stopped is None else "word"
            new["stopping_word"] = stopped or ""
        return {**chunk, **new, "stop": True}
