"""Completion requests that ask for exact healing: `"charwise_heal": "exact"`.

Each choice goes on from a member of its own, so each is a call of its own: the prompt that vLLM
gets is the kept ids and the member, and what the client gets begins inside the member. Where one
token must reproduce the forced text, the mask is exact, and is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from charwise.api.http import Headers
from charwise.api.request import heal_rule, most_tokens, without_heal
from charwise.api.writer import Message
from charwise.errors import SettingError
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.openai.answer import Answer, Call
from charwise.processors.vllm.exact import Asking, Engine, chosen, needs_search
from charwise.processors.vllm.openai_request import stops_apart
from charwise.processors.vllm.prompts import served
from charwise.processors.vllm.structured import constraint
from charwise.tokens.vocabulary import Vocabulary


def is_wanted(request: Message) -> bool:
    """Whether a request asks for exact healing.

    >>> is_wanted({"charwise_heal": "exact"}), is_wanted({})
    (True, False)
    """
    return bool(heal_rule(request) == "exact")


def _check(request: Message, prompts: int) -> None:
    """Refuse requests that cannot go with exact healing, beside those that go with none.

    Raises:
        SettingError: what it is, and why.

    >>> _check({"n": 1024}, prompts=1)
    """
    choices = prompts * (request.get("n") or 1)
    if choices > 1024:  # as many as vLLM takes prompts
        raise SettingError(
            f"this request cannot be healed exactly: it asks for {choices} completions, each of "
            f"which is a request of its own; at most 1024 may be. Send several requests, "
            'or heal with "auto".'
        )
    if request.get("logprobs") is not None:
        raise SettingError(
            "this request cannot be healed exactly: logprobs would lack those of its first "
            'tokens, which are part of the prompt by then. Leave them out, or heal with "auto".'
        )
    if constraint(request) is not None:
        raise SettingError(
            "this request cannot be healed exactly: its structured output would begin after its "
            'first tokens. Heal with "auto".'
        )


def _priority_of(request: Message, headers: Headers) -> int:
    """Return a request's priority in vLLM: the header goes first; 0 for a refused value.

    >>> _priority_of({"priority": 2}, []), _priority_of({}, [(b"x-vllm-priority", b"-1")])
    (2, -1)
    """
    shown = next((value for name, value in headers if name == b"x-vllm-priority"), b"")
    given = request.get("priority")
    with suppress(ValueError):
        given = int(shown)
    return given if type(given) is int and abs(given) < 2**63 else 0


async def draw(
    state: Any, request: Message, answers: Sequence[Answer], headers: Headers = ()
) -> list[Answer]:
    """An answer for each choice, which goes on from a member; asked of the engine itself.

    Args:
        state: of vLLM's application.
        request: as the client sent it.
        answers: as planned, one for each prompt.
        headers: of the request.

    Raises:
        HealingError: members that cannot be found.
        SettingError: an engine that cannot be asked; a model that is an adapter; what cannot go
            with exact healing.
    """
    _check(request, len(answers))
    config = state.vllm_config
    model = served(config.model_config)
    _check_base_model(state, request)
    asking = Asking(config, alone=False)
    most = most_tokens(request)
    defaults = config.model_config.get_diff_sampling_param()
    given = {name: value for name, value in request.items() if value is not None}
    salt = request.get("cache_salt")
    salt = salt if isinstance(salt, str) else None  # vLLM refuses any other
    engine = Engine(state.engine_client, asking, salt, _priority_of(request, headers))
    found: list[Answer] = []
    for number, answer in enumerate(answers):
        healed = answer.healed
        if not needs_search(model.index, healed):
            found.append(answer)
            continue
        covering = asking.covering(model.index, healed, most or 1)
        members = await engine.members(covering, healed.kept)
        seed = request.get("seed")
        rng = np.random.default_rng([abs(seed), number] if isinstance(seed, int) else None)
        drawn = chosen(members, defaults | given, request.get("n") or 1, rng)
        for copy, member in enumerate(drawn):
            found.append(_MemberAnswer(model.vocabulary, request, answer, number, copy, member))
    return found


class _MemberAnswer(Answer):
    """The answer of one choice whose first tokens are in the prompt that vLLM gets.

    Args:
        vocabulary: of the model.
        request: as the client sent it.
        answer: to all choices of the prompt, as planned.
        number: of the prompt.
        copy: of the choice among those of its prompt.
        member: its first tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        request: Message,
        answer: Answer,
        number: int,
        copy: int,
        member: Sequence[int],
    ) -> None:
        healed = answer.healed
        first = number * (request.get("n") or 1) + copy
        beyond = vocabulary.decode(member)[len(healed.forced) :]
        super().__init__(
            vocabulary,
            request | {"n": 1},
            Call(
                _body(request, healed, member, beyond, first, copy),
                answer.call.prompt,
                healed,
                most_tokens(request),
                first,
            ),
        )
        if copy:
            self.prompt_tokens = 0  # they count once
        self._member = list(member)
        self._kept = healed.kept

    def add(self, chunk: Message) -> list[Message]:
        """See `Answer.add`: the first chunk brings the member as well."""
        if self._member and chunk["choices"]:
            [choice] = chunk["choices"]
            ids = [*self._member, *(choice.get("token_ids") or [])]
            choice = {**choice, "token_ids": ids}
            if choice.get("prompt_token_ids") is not None:
                choice["prompt_token_ids"] = self._kept
            chunk = {**chunk, "choices": [choice]}
            self._member = []
        return super().add(chunk)


def _body(
    request: Message,
    healed: HealedPrompt,
    member: Sequence[int],
    beyond: bytes,
    first: int,
    copy: int,
) -> Message:
    """The body for vLLM: one completion, as much shorter as the member goes beyond the prompt."""
    body = without_heal(request)
    body |= {"prompt": [*healed.kept, *member], "n": 1, "echo": False, "return_token_ids": True}
    most = most_tokens(request)
    if most is not None:
        body["max_tokens"] = max(1, most - bool(beyond))
    least = request.get("min_tokens") or 0
    if least:
        body["min_tokens"] = max(0, least - bool(beyond))
    if isinstance(request.get("seed"), int):
        body["seed"] = request["seed"] + copy
    if request.get("request_id"):
        body["request_id"] = f"{request['request_id']}-{first}"
    return body | stops_apart(request, beyond)


def _check_base_model(state: Any, request: Message) -> None:
    """Refuse adapters: the engine is asked about the model itself.

    Raises:
        SettingError: the name is that of an adapter.
    """
    models = getattr(state, "openai_serving_models", None)
    named = request.get("model")
    is_base = getattr(models, "is_base_model", None)
    if named and is_base is not None and not is_base(named):
        raise SettingError(
            f"{named!r} is no base model of this server, and adapters are not healed exactly: "
            'heal with "auto".'
        )
