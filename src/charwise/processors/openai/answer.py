"""The answer to one prompt of a completion request, in the form of OpenAI's API.

The engine's choices start with the forced text; the client's start after its prompt. The prompt
has all the tokens that it has unhealed; of the completion those count that go beyond it, and the
one that ends it. There are never more of them than the client asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from charwise.api.writer import IMPOSSIBLE, Message, spelled, usage
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.new_text import Bounds, Continuation
from charwise.tokens.stops import Stops
from charwise.tokens.vocabulary import Vocabulary

#: Fields of a choice that a stream leaves out where they say nothing.
_OPTIONAL = (
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "prompt_token_ids",
    "prompt_logprobs",
    "routed_experts",
)


class Call(NamedTuple):
    """The request to the engine for one prompt.

    Attributes:
        body: of the request.
        prompt: its text, where an echo of it may be wanted.
        healed: how it was cut.
        max_tokens: that the client asked for.
        first_index: of its choices in the answer to the client.
    """

    body: Message
    prompt: str
    healed: HealedPrompt
    max_tokens: int | None
    first_index: int = 0


class Answer:
    """The choices for one prompt, from the engine's chunks (a whole response is one chunk).

    Args:
        vocabulary: of the model.
        request: as the client sent it.
        call: what the engine is asked.

    Attributes:
        call: what the engine is asked.
        healed: how the prompt was cut.
        top: fields of the response besides the choices.
        tells_usage: whether a stream ends with the usage.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        request: Message,
        call: Call,
    ) -> None:
        healed = call.healed
        self.call = call
        self.healed = healed
        self.top: Message = {}
        self.streams = bool(request.get("stream"))
        self.tells_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self.prompt_tokens = len(healed.kept) + healed.given_back
        self._vocabulary = vocabulary
        self._prompt = call.prompt if request.get("echo") else ""
        self._shows_ids = bool(request.get("return_token_ids"))
        self._include_stop = bool(request.get("include_stop_str_in_output"))
        self._n = request.get("n") or 1
        stops = Stops(request.get("stop") or None).strings  # refused here, not when text comes
        self._new_text = partial(
            Continuation,
            vocabulary,
            healed,
            Bounds(stops, self._include_stop, request.get("min_tokens") or 0, call.max_tokens),
            specials=request.get("skip_special_tokens") is False,
        )
        # Made as the engine tells of them: it may refuse a request for very many.
        self._choices: dict[int, _Choice] = {}

    @property
    def ended(self) -> bool:
        """Whether the engine need not go on, since every choice has ended."""
        return self.told_all

    @property
    def told_all(self) -> bool:
        """Whether every choice has ended, even if the engine still writes."""
        choices = self._choices.values()
        return len(choices) == self._n and all(choice.ended for choice in choices)

    @property
    def completion_tokens(self) -> int:
        """Generated tokens that go beyond the prompt, and those that ended a choice."""
        return sum(choice.new.counted for choice in self._choices.values())

    def add(self, chunk: Message) -> list[Message]:
        """Take a chunk of the engine; returns the choices to tell the client, if any.

        Raises:
            HealingError: the engine does not reproduce the forced text.
        """
        self._note(chunk)
        if not chunk["choices"]:
            self.tells_usage = self.tells_usage or bool(chunk.get("usage"))
            return []
        told = []
        for given in chunk["choices"]:
            choice = self._choice(given["index"])
            if choice.ended:
                continue
            delta = self._delta(choice, given)
            choice.merge(delta)
            if self._shows_ids or any(delta.get(name) for name in ("text", "finish_reason")):
                told.append(choice.with_unsent_logprobs(delta))
            else:
                choice.hold_logprobs(delta)
            if self.streams and chunk.get("usage"):
                chunk["usage"] = usage(self.prompt_tokens, choice.new.counted)
        return told

    def _note(self, chunk: Message) -> None:
        """Keep a chunk's fields of the whole response; some are in the last one only."""
        for name, value in chunk.items():
            if name not in ("choices", "usage") and self.top.get(name) is None:
                self.top[name] = value

    def choices(self) -> list[Message]:
        """The whole choices, once the engine has ended."""
        return [self._choice(number).whole for number in range(self._n)]

    def _choice(self, number: int) -> _Choice:
        if number not in self._choices:
            self._choices[number] = _Choice(self.call.first_index + number, self._new_text())
        return self._choices[number]

    def _delta(self, choice: _Choice, given: Message) -> Message:
        """One choice of a chunk, as the client sees it."""
        new = choice.new
        ids = given.get("token_ids") or []
        finish, reason = given.get("finish_reason"), given.get("stop_reason")
        ended_by_token = finish == "stop" and not isinstance(reason, str)
        silent = len(ids) - 1 if ended_by_token and not self._include_stop else len(ids)
        wants_offsets = bool(given.get("logprobs"))
        shown, offsets = [], []
        begun, taken = b"", 0
        for at, id in enumerate(ids):
            if new.ended:
                break
            taken += 1
            counted, left = new.counted, new.left
            offset = len(new.text) if wants_offsets else 0
            if at < silent:
                new.add([id])
            else:
                new.add_silent()
            if new.counted > counted:
                shown.append(at)
                offsets.append(offset)
                begun = begun or left
        if new.stopped is not None:
            finish, reason = "stop", new.stopped
        elif new.closed:
            finish, reason = "stop", None if taken < len(ids) else reason
        elif new.ended and (finish is None or taken < len(ids)):
            finish, reason = "length", None
        choice.ended = finish is not None
        delta = {
            **given,
            "index": choice.index,
            "text": new.take(final=choice.ended),
            "token_ids": ids[:taken],
            "finish_reason": finish,
            "stop_reason": reason,
        }
        if self._prompt and not choice.begun:
            delta["text"] = self._prompt + delta["text"]
        if given.get("logprobs"):
            told = self._logprobs(choice, given["logprobs"], len(ids), shown, offsets)
            if begun and not self._prompt:
                told = beyond(told, ids[shown[0]], begun, self._vocabulary)
            delta["logprobs"] = told
        choice.begun = True
        if not self._shows_ids:
            delta |= {"token_ids": None, "prompt_token_ids": None}
        return delta

    def _logprobs(
        self, choice: _Choice, given: Message, generated: int, shown: list[int], offsets: list[int]
    ) -> Message:
        """Log-probabilities of the tokens that have new text; with echo, of all tokens."""
        if not self._prompt:
            kept = {name: [values[at] for at in shown] for name, values in given.items() if values}
            return {**given, **kept, "text_offset": offsets}
        tokens = given["tokens"]
        before = len(tokens) - generated  # those of the prompt, in the first chunk
        keep = before + (shown[-1] + 1 if shown and choice.ended else generated)
        offsets = []
        for token in tokens[:keep]:
            offsets.append(choice.offset)
            choice.offset += len(token)
        return {**{name: values[:keep] for name, values in given.items()}, "text_offset": offsets}


class _Choice:
    """One completion: its new text, and all that was told of it."""

    def __init__(self, index: int, new: Continuation) -> None:
        self.index = index
        self.new = new
        self.ended = False
        self.begun = False
        self.offset = 0
        self.whole: Message = {"index": index, "text": "", **dict.fromkeys(_OPTIONAL)}
        self._held: Message | None = None

    def merge(self, delta: Message) -> None:
        """Add a part of the choice to the whole of it."""
        whole = self.whole
        for name, value in delta.items():
            if name == "text":
                whole["text"] += value
            elif name == "token_ids" and value is not None:
                whole[name] = [*(whole[name] or []), *value]
            elif name == "logprobs" and value is not None:
                whole[name] = _joined(whole[name], value)
            elif value is not None or name not in whole:
                whole[name] = value

    def hold_logprobs(self, delta: Message) -> None:
        """Keep the log-probabilities of tokens whose text is not told yet."""
        if delta.get("logprobs"):
            self._held = _joined(self._held, delta["logprobs"])

    def with_unsent_logprobs(self, delta: Message) -> Message:
        """Return the part, after the text held before it."""
        if self._held is not None:
            delta = {**delta, "logprobs": _joined(self._held, delta.get("logprobs") or {})}
            self._held = None
        return delta


def _joined(first: Message | None, second: Message) -> Message:
    if first is None:
        return second
    return {name: [*first[name], *(second.get(name) or [])] for name in first}


def usage_of(answers: Iterable[Answer]) -> Message:
    """Return the usage of all prompts together."""
    answers = list(answers)
    return usage(
        sum(answer.prompt_tokens for answer in answers),
        sum(answer.completion_tokens for answer in answers),
    )


def beyond(told: Message, id: int, begun: bytes, vocabulary: Vocabulary) -> Message:
    """Return log-probabilities whose first token begins in the prompt, as a client sees them.

    The token, and those listed beside it, show their bytes beyond the prompt. One that does not
    write the end of the prompt is no alternative.

    Args:
        told: `logprobs` of a choice, of completions or of a chat.
        id: of the first token.
        begun: bytes of it that are in the prompt.
        vocabulary: of the model.

    >>> vocabulary = Vocabulary.from_bytes([b"range", b"rank", b"(", b"ran"])
    >>> told = {"tokens": ["range"], "top_logprobs": [{"range": -0.5, "rank": -2.0, "(": -0.9}]}
    >>> beyond(told, 0, b"ran", vocabulary)
    {'tokens': ['ge'], 'top_logprobs': [{'ge': -0.5, 'k': -2.0}]}
    """
    own = spelled((vocabulary.tokens[id] or b"")[len(begun) :])

    def shown(token: str) -> str | None:
        """Return the text that a token shows; None if it is no alternative."""
        named = token.removeprefix("token_id:")
        if named != token and named.isdecimal():
            raw = vocabulary.tokens[int(named)] or b""
        else:
            raw = token.encode("utf-8", "replace")
        rest = raw.removeprefix(begun) if raw.startswith(begun) else b""
        return (token if named != token else spelled(rest)) if rest else None

    def alternative(entry: Message, text: str) -> Message:
        raw = list(entry.get("bytes") or ())[len(begun) :]
        return {**entry, "token": text, **({"bytes": raw} if "bytes" in entry else {})}

    found = {name: list(values) for name, values in told.items() if values}
    if "tokens" in found:
        first = found["tokens"][0]
        if top := (found.get("top_logprobs") or [None])[0]:
            kept = {text: p for one, p in top.items() if p > IMPOSSIBLE and (text := shown(one))}
            mine = {shown(first) or own: top[first]} if first in top else {}
            found["top_logprobs"][0] = kept | mine
        found["tokens"][0] = shown(first) or own
    if "content" in found:
        first = found["content"][0]
        others = [
            alternative(one, text)
            for one in first.get("top_logprobs") or ()
            if one["logprob"] > IMPOSSIBLE and (text := shown(one["token"]))
        ]
        text = shown(first["token"]) or own
        found["content"][0] = {**alternative(first, text), "top_logprobs": others}
    return {**told, **found}
