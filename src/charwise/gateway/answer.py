"""The answer to a healed request: the server's own, with the member's text in front.

The member's tokens beyond the prompt count for `max_tokens` and `usage`; those within it do not.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from charwise.api.writer import Message, chat_logprobs, end_words
from charwise.gateway.plan import Call, Healing


class _ChoiceStart:
    """The beginning of one choice: the member's text, and stop strings that begin in it.

    The server looks for stop strings in its own text, which starts behind the member's. Nothing
    follows a text that is `over`. `finish` says why the text ended, where the server does not, and
    `stop` which string ended it.
    """

    def __init__(self, text: str, stops: Sequence[str], keep_stop: bool, over: bool) -> None:
        self.finish: str | None = None
        self.stop: str | None = None
        self._text, self._length = text, len(text)
        self._stops = stops
        self._keep_stop, self._over = keep_stop, over
        self._passes = False

    def add(self, text: str, final: bool) -> str:
        """Take the server's text; return the client's."""
        if self._passes:
            return "" if self.finish else text
        self._text += "" if self._over else text
        matches = [(self._text.find(stop), stop) for stop in self._stops]
        matches = [match for match in matches if 0 <= match[0] < self._length]
        if matches:
            at, self.stop = min(matches)
            self.finish = "stop"
            self._text = self._text[: at + (len(self.stop) if self._keep_stop else 0)]
        elif self._over:
            self.finish = "length"
        elif not final and any(
            stop.startswith(self._text[at:]) for stop in self._stops for at in range(self._length)
        ):  # one begins here, and may go on in the next chunk
            return ""
        self._passes = True
        return self._text


class HealedAnswer:
    """Writes the answers of all second requests as one."""

    def __init__(self, healing: Healing, calls: Sequence[Call]) -> None:
        self._healing, self._calls = healing, calls
        keep = bool(healing.request.get("include_stop_str_in_output"))
        self._native = healing.form in ("native", "infill")
        self._openings = {
            index: _ChoiceStart(call.member.text, healing.stops, keep, call.over)
            for call in calls
            for index in call.indexes
        }
        self._unopened = set(self._openings)  # choices without an event
        self._held: dict[int, Any] = {}  # log-probabilities of text that is not handed out yet
        self._top: Message = {}
        self._usages: list[Message] = []

    def chunk(self, number: int, chunk: Message) -> Message | None:
        """A chunk of the answer to one of the calls; None for nothing to tell."""
        if self._native:
            return self._native_chunk(chunk)
        call = self._calls[number]
        self._top = self._top or {name: chunk[name] for name in ("id", "created") if name in chunk}
        entries = chunk.get("choices") or []
        choices = [each for one in entries if (each := self._choice(call, one)) is not None]
        chunk = {**chunk, **self._top, "choices": choices}
        if chunk.get("usage"):
            chunk["usage"] = self._usage(call, chunk["usage"], len(entries) or len(call.indexes))
        if entries:
            return chunk if choices or chunk.get("usage") else None
        self._usages += [chunk["usage"]] if chunk.get("usage") else []
        ends = len(self._usages) == len(self._calls)
        return {**chunk, "usage": _sum(self._usages)} if ends else None

    def whole(self, answers: Sequence[Message]) -> Message:
        """The answers to all calls as one."""
        if self._native:
            return self._native_chunk({**answers[0], "stop": True}) or {}
        parts = [self.chunk(number, answer) or {} for number, answer in enumerate(answers)]
        choices = [choice for part in parts for choice in part.get("choices", ())]
        usages = [part["usage"] for part in parts if part.get("usage")]
        choices.sort(key=lambda choice: choice["index"])
        return {**answers[0], "choices": choices, **({"usage": _sum(usages)} if usages else {})}

    def _native_chunk(self, chunk: Message) -> Message | None:
        """A chunk of llama.cpp's own form, or a whole answer."""
        [call], opening = self._calls, self._openings[0]
        if opening.finish:
            return None
        chunk["content"] = opening.add(chunk.get("content") or "", bool(chunk.get("stop")))
        if chunk.get("tokens") and 0 in self._unopened:
            chunk["tokens"] = [*call.member.beyond, *([] if call.over else chunk["tokens"])]
        self._unopened.clear()
        if opening.finish:
            ended = {"stop": True, "stopping_word": opening.stop or ""}
            chunk |= {**ended, "stop_type": end_words(opening.finish)[1]}
        if "tokens_predicted" in chunk:
            own = 0 if call.over else chunk["tokens_predicted"]
            chunk["tokens_predicted"] = len(call.member.beyond) + own
        if "prompt" in chunk and self._healing.form == "native":
            chunk["prompt"] = self._healing.request["prompt"]
        if "tokens_evaluated" in chunk:
            chunk["tokens_evaluated"] = _prompt_tokens(call)
        return chunk if chunk["content"] or chunk.get("stop") else None

    def _choice(self, call: Call, choice: Message) -> Message | None:
        """A choice, or the part of one that a stream tells; None for nothing to tell."""
        index = call.indexes[choice["index"]]
        opening = self._openings[index]
        if opening.finish:
            return None
        choice = {**choice, "index": index}
        where, field = choice, "text"
        if self._healing.form == "chat":
            name, field = "delta" if "delta" in choice else "message", "content"
            where = choice[name] = {**(choice.get(name) or {})}
        final = choice.get("finish_reason") is not None
        if not where.get(field) and not final:
            return choice  # it opens a stream: the role, and no tokens
        where[field] = opening.add(where.get(field) or "", final)
        choice["logprobs"] = self._logprobs(index, call, choice.get("logprobs"))
        if choice.get("token_ids") is not None and index in self._unopened:
            own = [] if call.over else choice["token_ids"]
            choice["token_ids"] = [*call.member.beyond, *own]
        if prompt_ids := choice.get("prompt_token_ids"):
            choice["prompt_token_ids"] = prompt_ids[: len(prompt_ids) - len(call.member.beyond)]
        self._unopened.discard(index)
        if opening.finish:
            choice |= {"finish_reason": opening.finish, "stop_reason": opening.stop}
        elif not where[field] and not final:
            self._held[index] = choice["logprobs"]
            return None
        return choice

    def _logprobs(self, index: int, call: Call, own: Message | None) -> Message | None:
        """Log-probabilities with those of the member's last token in front."""
        if own is None:
            return None
        held = self._held.pop(index, None)
        first = call.member.logprobs if index in self._unopened else None
        if self._healing.form == "chat":
            before = held["content"] if held else []
            if first and not held:
                before = chat_logprobs(first)["content"]
                most = self._healing.request.get("top_logprobs") or 0
                before[0]["top_logprobs"] = before[0]["top_logprobs"][:most]
            return {**own, "content": [*before, *([] if call.over else own["content"] or ())]}
        own = {name: value and list(value) for name, value in own.items()}
        if call.over:
            own = {name: value and [] for name, value in own.items()}
        own["text_offset"] = [at + len(call.member.text) for at in own.get("text_offset") or ()]
        before = held or first or {}
        return {
            name: value if value is None else [*(before.get(name) or ()), *value]
            for name, value in own.items()
        }

    def _usage(self, call: Call, usage: Message, choices: int) -> Message:
        """Usage of some choices of a call, as the client counts tokens."""
        # The tokens of a prompt count once, however many calls go on from it.
        prompt = 0 if call.indexes[0] % self._healing.samples else _prompt_tokens(call)
        completion = 0 if call.over else usage.get("completion_tokens") or 0
        completion += len(call.member.beyond) * choices
        counts = {"prompt_tokens": prompt, "completion_tokens": completion}
        return {**usage, **counts, "total_tokens": prompt + completion}


def _prompt_tokens(call: Call) -> int:
    """Tokens of the client's prompt."""
    return len(call.prompt.kept) + call.prompt.removed_tokens


def _sum(usages: Iterable[Message]) -> Message:
    first, *rest = usages
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {**first, **{name: sum(each[name] for each in [first, *rest]) for name in names}}
