"""Exact healing in vLLM: a member of the forced text's covering is chosen, then nothing is masked.

What a covering asks about a context is a request of one token: its prompt is the kept ids
and the context, all of which but the last few are in the prefix cache. The V2 model runner gives
the log-probabilities of named tokens, 128 in a request. In V1 a request for named tokens spoils the
log-probabilities of the other clients' requests in the same step, so it is asked for the likeliest
of all tokens, as many as the server gives (`--max-logprobs`); those that it does not tell count as
missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from charwise.boundary import Members, boundary_covering
from charwise.coverings.covering import Covering, Query
from charwise.errors import HealingError, SettingError
from charwise.processors.healed_prompt import HealedPrompt
from charwise.processors.vllm.settings import sampling
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.stops import Stops


class Asking:
    """How a vLLM is asked for log-probabilities.

    Args:
        config: vLLM's, of the engine.
        alone: nobody else's requests are in the engine.

    Raises:
        SettingError: an engine whose log-probabilities are not the model's own.
    """

    def __init__(self, config: Any, *, alone: bool) -> None:
        from vllm import SamplingParams

        model = config.model_config
        if model.logprobs_mode != "raw_logprobs":
            raise SettingError(
                f"this vLLM gives {model.logprobs_mode}, and exact healing needs the model's own "
                "log-probabilities: serve with --logprobs-mode raw_logprobs."
            )
        self.width: int = model.get_vocab_size()
        self.window: int = model.max_model_len
        unspoiled = alone or bool(getattr(config, "use_v2_model_runner", False))
        self.by_name = unspoiled and hasattr(SamplingParams, "logprob_token_ids")
        most = self.width if model.max_logprobs == -1 else model.max_logprobs
        # V1 may give as many as one wants.
        self.likeliest: int = min(most, self.width, 8192)

    def parameters(self, query: Query) -> list[Any]:
        """Return the engine's parameters for one query: a list of `SamplingParams`."""
        from vllm import SamplingParams

        common = {"max_tokens": 1, "temperature": 0.0, "flat_logprobs": True, "detokenize": False}
        if not self.by_name:
            likeliest = -1 if self.likeliest == self.width else self.likeliest
            return [SamplingParams(logprobs=likeliest, **common)]
        # vLLM takes 128 names in a request, and what starts with a single byte may be much: there
        # are 64 requests at most. Shorter tokens come first; the rest is not seen.
        ids = query.ids.tolist()[: 64 * 128]
        parts = [ids[at : at + 128] for at in range(0, len(ids), 128)]
        return [SamplingParams(logprob_token_ids=part, **common) for part in parts]

    def answer(self, query: Query, completions: Sequence[Any]) -> tuple[NDArray[np.float64], float]:
        """Return the log-probabilities asked for, and the most mass that is not seen."""
        found = np.full(self.width, -np.inf)
        told = np.zeros(self.width, dtype=bool)
        for completion in completions:
            flat = completion.logprobs
            ids = np.array(flat.token_ids, dtype=np.int64)
            found[ids] = flat.logprobs
            told[ids] = True
        logs = found[query.ids]
        absent = int((~told[query.ids]).sum())
        if not absent:
            return logs, 0.0
        unseen = max(0.0, 1.0 - float(np.exp(found).sum()))
        if not self.by_name:  # none of the others is likelier than the last of the likeliest
            unseen = min(unseen, absent * float(np.exp(found[told].min())))
        return logs, unseen

    def covering(self, index: SortedVocabulary, healed: HealedPrompt, new_tokens: int) -> Covering:
        """The covering of a prompt's forced text, which leaves room for new tokens."""
        room = max(0, self.window - 1 - len(healed.kept) - new_tokens)
        return boundary_covering(index, healed.forced, room=room)

    def too_little(self, error: HealingError) -> HealingError:
        """Return the same error, with the operator's way out."""
        if self.by_name or self.likeliest == self.width:
            return error
        return HealingError(
            f"{error} This vLLM tells the {self.likeliest} likeliest tokens: served with "
            "--max-logprobs -1, or on its V2 model runner, it tells what is needed."
        )


def needs_search(index: SortedVocabulary, healed: HealedPrompt) -> bool:
    """Whether the mask would not do: some token is a proper prefix of the forced text.

    Otherwise one token reproduces all of it, and masking that one step is conditioning.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    >>> [needs_search(index, HealedPrompt([0], forced, 1)) for forced in (b"", b"a", b"ab")]
    [False, False, True]
    """
    return bool(healed.forced and index.prefixes(healed.forced))


def drawn(
    llm: Any, index: SortedVocabulary, healed: Sequence[HealedPrompt], parameters: Any
) -> dict[int, list[tuple[int, ...]]]:
    """`n` members for each prompt that needs a search, by its number; asked of a `vllm.LLM`.

    Args:
        llm: the engine.
        index: of its vocabulary.
        healed: the prompts, cut.
        parameters: `SamplingParams` of the completions.

    Raises:
        HealingError: members that cannot be found.
        SettingError: an engine that cannot be asked, or parameters that restrict the output.
    """
    for name in ("structured_outputs", "allowed_token_ids"):
        if getattr(parameters, name, None):
            raise SettingError(f"{name} restricts the output from its first token: heal by mask.")
    asking = Asking(llm.llm_engine.vllm_config, alone=True)
    new_tokens = parameters.max_tokens or 1
    coverings = {
        at: asking.covering(index, each, new_tokens)
        for at, each in enumerate(healed)
        if needs_search(index, each)
    }
    try:
        while asked := [(at, q) for at, s in coverings.items() for q in s.queries()]:
            wanted = [asking.parameters(query) for _, query in asked]
            prompts = [
                {"prompt_token_ids": [*healed[at].kept, *query.context]}
                for (at, query), parts in zip(asked, wanted, strict=True)
                for _ in parts
            ]
            outputs = llm.generate(prompts, [p for parts in wanted for p in parts], use_tqdm=False)
            told = iter(outputs)
            for (at, query), parts in zip(asked, wanted, strict=True):
                logs, unseen = asking.answer(query, [next(told).outputs[0] for _ in parts])
                coverings[at].answer(query.context, logs, unseen=unseen)
        members = {at: Members(covering) for at, covering in coverings.items()}
    except HealingError as error:
        raise asking.too_little(error) from None
    rng = np.random.default_rng(parameters.seed)
    count = parameters.n or 1
    return {at: chosen(one, parameters, count, rng) for at, one in members.items()}


def chosen(
    members: Members, parameters: Any, count: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """As many members as completions are asked for, by `SamplingParams` or a request's fields."""
    weights = members.weights(**sampling(parameters))
    return members.draw(weights, rng.random(count).tolist())


def after(
    index: SortedVocabulary,
    healed: HealedPrompt,
    members: Sequence[tuple[int, ...]],
    parameters: Any,
) -> list[Any]:
    """Parameters of one completion after each member, as much shorter as it goes beyond the prompt.

    Stop strings of which a match could begin in the member are searched by the reader alone.
    """
    found = []
    for number, member in enumerate(members):
        begun = index.vocabulary.decode(member)[len(healed.forced) :]
        one = parameters.clone()
        one.n = 1
        if one.seed is not None:
            one.seed += number
        if one.max_tokens is not None:
            one.max_tokens = max(1, one.max_tokens - bool(begun))
        one.min_tokens = max(0, (one.min_tokens or 0) - bool(begun))
        one.stop = [] if one.min_tokens else Stops(one.stop).apart_from(begun)
        found.append(one)
    return found


class Engine(NamedTuple):
    """The engine that serves a request, asked by its client.

    Attributes:
        client: of the engine.
        asking: how it is asked.
        salt: the request's `cache_salt`: what it asks must not be found in the cache by others.
        priority: the request's, which what it asks has too.
    """

    client: Any
    asking: Asking
    salt: str | None = None
    priority: int = 0

    async def members(self, covering: Covering, kept: list[int]) -> Members:
        """Answer the queries of a covering after these ids, and return its members.

        Raises:
            HealingError: members that cannot be found.
        """
        try:
            while queries := covering.queries():
                answers = await asyncio.gather(*(self._ask(kept, each) for each in queries))
                for query, (logs, unseen) in zip(queries, answers, strict=True):
                    covering.answer(query.context, logs, unseen=unseen)
            return Members(covering)
        except HealingError as error:
            raise self.asking.too_little(error) from None

    async def _ask(self, kept: list[int], query: Query) -> tuple[NDArray[np.float64], float]:
        prompt: dict[str, Any] = {"prompt_token_ids": [*kept, *query.context]}
        if self.salt:
            prompt["cache_salt"] = self.salt

        async def one(parameters: Any) -> Any:
            name = f"charwise-{uuid4().hex}"
            outputs = self.client.generate(prompt, parameters, name, priority=self.priority)
            told = [output async for output in outputs if output.outputs]
            if not told:
                raise HealingError("vLLM ended a request without an answer: ask again.")
            return told[-1].outputs[0]

        parts = await asyncio.gather(*(one(each) for each in self.asking.parameters(query)))
        return self.asking.answer(query, parts)
