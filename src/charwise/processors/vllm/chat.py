"""Chat that goes on in the assistant's last message (`continue_final_message`).

Such a prompt ends where a person stopped writing, like any other, and is healed like any other;
without that, a template ends it between two tokens. vLLM's own handler says which ids a template
makes of the messages. It takes ids in the place of messages where one server forwards them to
another (`kv_transfer_params`), and so it takes those that are kept.

An answer is read as that of a completion, and written back as chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from charwise.api.request import HEAL, heal_rule, without_heal
from charwise.api.writer import Message
from charwise.errors import SettingError
from charwise.processors.openai.answer import Answer, Call
from charwise.processors.vllm import exact_answers
from charwise.processors.vllm.openai_request import (
    UNFIT,
    reproducing,
    why_unfit,
    without_grammar,
)
from charwise.processors.vllm.prompts import Served
from charwise.processors.vllm.settings import Limits, is_refused

#: Fields of a choice besides its message and log-probabilities.
_FIELDS = ("index", "finish_reason", "stop_reason", "token_ids")


class _ChatAnswer(Answer):
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


#: What a chat request has besides that cannot go with healing.
_UNFIT = UNFIT | {
    "echo": "the message would be repeated without its end",
    "return_prompt_text": "the prompt would be told without its end",
}


def _takes_ids() -> bool:
    """Whether this vLLM takes ids in the place of messages; 0.30 and older do not."""
    try:
        from vllm.renderers import online_renderer
    except ImportError:
        return False
    return hasattr(online_renderer, "_reused_prompt_token_ids")


def before_rendering(request: Message, parses: bool) -> str | None:
    """Why a chat request goes through as it came, in one word; None if its prompt may be healed.

    Args:
        request: as the client sent it.
        parses: whether the server cuts reasoning or tool calls out of what is written.

    Raises:
        SettingError: healing was asked for, and cannot be had.
    """
    unfit = why_unfit(request, _UNFIT)
    if request.get("continue_final_message") is not True:
        unfit = "chat", "a chat template ends the prompt between two tokens"
    elif not _takes_ids():
        unfit = "version", "this vLLM takes no token ids for a chat; 0.32 does"
    elif parses or (request.get("tools") and request.get("tool_choice") != "none"):
        unfit = "parser", "reasoning and tool calls are cut out of what is written"
    if unfit and heal_rule(request) is not None:
        raise SettingError(f"this request cannot be healed: {unfit[1]}.")
    if exact_answers.is_wanted(request):
        raise SettingError(f'chat is healed by mask alone: leave {HEAL} out, or give "auto".')
    return unfit[0] if unfit else None


def out_of_bounds(request: Message, limits: Limits, munch: int) -> str | None:
    """ "too-much" for a chat request that vLLM refuses, as far as that shows before its messages
    are rendered: rendering a very long chat takes a while.

    >>> out_of_bounds({"messages": [{"content": "aaaa"}]}, Limits(window=3), munch=1)
    'too-much'
    """
    messages = request.get("messages")
    contents = [
        message["content"]
        for message in (messages if isinstance(messages, list) else [])
        if isinstance(message, dict) and isinstance(message.get("content"), str)
    ]
    text = sum(map(len, contents)) > limits.window * munch
    refused = is_refused(request, [], _most_tokens(request), limits, munch)
    return "too-much" if text or refused else None


def _most_tokens(request: Message) -> int | None:
    most: int | None = request.get("max_completion_tokens")
    return request.get("max_tokens") if most is None else most


async def rendered(handler: Any, request: Message) -> list[int] | None:
    """The ids that vLLM makes of the messages; None if it makes others, or refuses the request.

    Args:
        handler: vLLM's `OpenAIServingChat`.
        request: as the client sent it.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    try:
        checked = ChatCompletionRequest.model_validate(without_heal(request))
        found = await handler.render_chat_request(checked)
    except Exception:  # vLLM meets it again, and says so itself
        return None
    if not isinstance(found, tuple):
        return None
    [prompt] = found[1]
    return list(prompt["prompt_token_ids"]) if prompt.get("type") == "token" else None


def plan(model: Served, limits: Limits, request: Message, ids: Sequence[int]) -> list[Answer] | str:
    """The answer to come, or why the request goes through as it is, in one word.

    Args:
        model: that is served.
        limits: of the server.
        request: as the client sent it.
        ids: that the template makes of its messages.

    Raises:
        CharwiseError: healing was asked for, and cannot be had.
    """
    rule = heal_rule(request)
    healed = model.heal(ids, "auto" if rule is None else rule)
    if not healed.forced:
        return "nothing-to-heal"
    most = _most_tokens(request)
    room = limits.room(healed, most)
    if not room:
        return "too-much"
    body = without_heal(request) | {"kv_transfer_params": {"prompt_token_ids": healed.kept}}
    body.pop("max_completion_tokens", None)
    sent = reproducing(body, request, healed, None if most is None else room, limits)
    if sent is None:
        return without_grammar(healed, rule)
    return [_ChatAnswer(model.vocabulary, request, Call(sent, "", healed, room))]
