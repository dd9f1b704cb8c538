"""A server's `/v1/completions` as a `PartialLM`: the k best next tokens of every context.

Prompts are sent as token ids, many in one request, and one token is asked for, with `logprobs`.
What contexts share is in the server's prefix cache. vLLM also tells `prompt_logprobs`: contexts
along one text are then one request, and any token has its price, whether it is among the k best or
not, at the cost of reading that prompt without the cache. Servers without it are asked for
`logprobs` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from charwise.engines.completions.client import Client
from charwise.errors import (
    ContextLengthError,
    EngineError,
    ServerError,
    SettingError,
    check_count,
    check_number,
    shown,
)
from charwise.partial_lm import Best
from charwise.tokens.vocabulary import Vocabulary

#: What tokenizers tell apart: words, code, spaces, accents, other scripts.
_PROBE = "def naïve(x):\n\treturn x  + 0x1F  # 漢字, ещё, 12345 'don't'\n"


class CompletionsLM:
    """The completions of a server, and the tokenizer of its model.

    Args:
        client: the server.
        vocabulary: of its model, as wide as its output layer.
        model: which of its models; by default the only one.
        k: how many next tokens to ask for; vLLM gives 20, unless `--max-logprobs` says more.
        rounding: by how much any log-probability may be off, nats. The default is that of a
            softmax in float32; more stands for what other kernels make of the same weights.

    Attributes:
        window: longest context in tokens, if the server says what it is.
        prices: whether it tells the log-probabilities of prompts.
        calls: requests for completions so far.
        contexts: prompts in them.

    Raises:
        ServerError: no server, or one that does not give what is needed.
        EngineError: a tokenizer that is not the model's.
        SettingError: a model that it does not have, or none named where it has several.
    """

    def __init__(
        self,
        client: Client,
        vocabulary: Vocabulary,
        *,
        model: str | None = None,
        k: int = 20,
        rounding: float = 1e-5,
    ) -> None:
        check_count("top_logprobs", k, 1)
        check_number("rounding", rounding, 0.0, 1.0)
        self.vocabulary = vocabulary
        self.k = k
        self.rounding = float(rounding)
        self.calls = self.contexts = 0
        self._client = client
        self._lock = threading.Lock()
        self.model, self.window = self._find(model)
        self._check_tokenizer()
        self.prices = self._probe()

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        """See `PartialLM.best`.

        Raises:
            ServerError: what the server refuses, or what it leaves out.
        """
        if len(priced) != len(contexts):
            raise EngineError(f"{len(priced)} wishes for prices, {len(contexts)} contexts.")
        for context in contexts:
            if not context:
                raise EngineError("a context has no tokens: begin it with the start token.")
            if self.window is not None and len(context) > self.window:
                raise ContextLengthError(
                    f"a context of {len(context)} tokens is longer than the {self.window} that "
                    f"{self.model} reads. Shorten the prompt."
                )
        wanted = dict(zip(contexts, priced, strict=True))
        found: dict[tuple[int, ...], Best] = {}
        paths = _paths(list(wanted))
        apart = list[list[tuple[int, ...]]]()
        for path in paths:
            if self.prices and len(path) >= 8 and 2 * len(path) >= len(path[-1]):
                self._take_path(path, found)
            else:
                apart.append(path)
        ends = [p[-1] for p in apart if self.prices and any(wanted[context] for context in p)]
        known = set(ends)
        plain = [context for p in apart for context in p if context not in known]
        lasts: dict[tuple[int, ...], float] = {}
        for some in _requests(ends):
            for context, choice in zip(some, self._ask(some, prompt_logprobs=0), strict=True):
                told = _prompt_of(choice, len(context))
                for size in range(2, len(context) + 1):
                    lasts[context[:size]] = _told(told[size - 1])[context[size - 1]]
                found[context] = self._next(choice, lasts.get(context))
        for some in _requests(plain):
            for context, choice in zip(some, self._ask(some), strict=True):
                found[context] = self._next(choice, lasts.get(context))
        return [found[context] for context in contexts]

    def info(self) -> dict[str, str]:
        """The address of the server, its model, and the number of tokens that it tells."""
        return {
            "engine": f"completions of {self._client.url}",
            "model": self.model,
            "told": f"the {self.k} best next tokens"
            + (", and those of prompts" if self.prices else ""),
            "path": "the server's own",
            "why": "it is asked for one token after each context",
        }

    def _take_path(self, path: list[tuple[int, ...]], found: dict[tuple[int, ...], Best]) -> None:
        """All contexts on one path, by one request."""
        longest = path[-1]
        [choice] = self._ask([longest], prompt_logprobs=self.k)
        told = [*_prompt_of(choice, len(longest)), None]
        for context in path:
            size = len(context)
            last = _told(told[size - 1])[context[-1]] if size > 1 else None
            if context == longest:
                found[context] = self._next(choice, last)
            else:
                found[context] = self._best(_told(told[size]), last)

    def _next(self, choice: dict[str, Any], last: float | None) -> Best:
        """Return the log-probabilities of a choice's generated token."""
        try:
            [told] = choice["logprobs"]["top_logprobs"]
            by_id = {_id(name): float(logprob) for name, logprob in told.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _left_out("`logprobs` of the next token, with ids") from error
        return self._best(by_id, last)

    def _best(self, told: dict[int, float], last: float | None) -> Best:
        ids = np.fromiter(told, dtype=np.int64, count=len(told))
        logs = np.fromiter(told.values(), dtype=np.float64, count=len(told))
        if not len(ids):
            raise _left_out("`logprobs` of the next token")
        # A prompt's own token comes with the best, and is one more where it is none of them.
        most = float(np.sort(logs)[::-1][min(self.k, len(logs)) - 1])
        return Best(ids, logs, most, last)

    def _ask(self, prompts: Sequence[tuple[int, ...]], **more: int) -> list[dict[str, Any]]:
        """The choices of some prompts, in order."""
        body = {
            "model": self.model,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": self.k,
            "return_tokens_as_token_ids": True,
            **more,
        }
        with self._lock:
            self.calls += 1
            self.contexts += len(prompts)
        choices = self._client.ask("/completions", body).get("choices")
        if not isinstance(choices, list) or len(choices) != len(prompts):
            raise _left_out(f"{len(prompts)} choices for as many prompts")
        return sorted(choices, key=lambda choice: int(choice.get("index", 0)))

    def _find(self, model: str | None) -> tuple[str, int | None]:
        """The name of the model, and its window."""
        listed = self._client.ask("/models").get("data")
        if not isinstance(listed, list) or not listed:
            raise _left_out("a list of its models")
        names = [str(entry.get("id")) for entry in listed]
        if model is None and len(names) > 1:
            raise SettingError(
                f"{self._client.url} has several models: name one, model=…: {', '.join(names)}."
            )
        if model is not None and model not in names:
            raise SettingError(
                f"{self._client.url} has no model {shown(model)}: it has {', '.join(names)}."
            )
        entry = listed[0 if model is None else names.index(model)]
        longest = entry.get("max_model_len")
        # It wants room for the token that it generates.
        return str(entry.get("id")), longest - 1 if isinstance(longest, int) else None

    def _check_tokenizer(self) -> None:
        """Raise unless the server reads a text as the tokenizer does."""
        try:
            asked = {"model": self.model, "prompt": _PROBE, "add_special_tokens": False}
            theirs = self._client.ask("../tokenize", asked).get("tokens")
        except ServerError as error:
            if error.status not in (404, 405):
                raise
            theirs = self._echoed()
        ours = self.vocabulary.encode(self.vocabulary.lead + _PROBE.encode())
        if theirs != ours:
            raise EngineError(
                f"the tokenizer is not that of {self.model} on {self._client.url}: it reads a "
                f"text as {ours[:8]}…, the server as {shown(theirs)}. Give tokenizer=… the folder "
                "or the hub's name of the very model that is served."
            )

    def _echoed(self) -> list[int]:
        """How a server reads a text that has no other way to say so."""
        body = {
            "model": self.model,
            "prompt": _PROBE,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
        }
        try:
            [choice] = self._client.ask("/completions", body)["choices"]
            return [_id(name) for name in choice["logprobs"]["tokens"]][:-1]
        except (KeyError, TypeError, ValueError) as error:
            raise _left_out(
                "the ids of a text's tokens, neither by /tokenize nor by echo"
            ) from error

    def _probe(self) -> bool:
        """Whether it tells log-probabilities of prompts; raises if it does not tell any by id."""
        ids = [*self.vocabulary.bos_ids[:1], *self.vocabulary.encode("a")][:2]
        [choice] = self._ask([tuple(ids)], prompt_logprobs=0)
        self._next(choice, None)
        return choice.get("prompt_logprobs") is not None


def _requests(prompts: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """The prompts, no more than 64 for each request."""
    for first in range(0, len(prompts), 64):
        yield prompts[first : first + 64]


def _paths(contexts: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """The contexts in groups, in each of which every one begins the next.

    >>> _paths([(0, 1), (0,), (0, 2), (0, 1, 3)])
    [[(0,), (0, 1), (0, 1, 3)], [(0, 2)]]
    """
    paths: list[list[tuple[int, ...]]] = []
    for context in sorted(contexts):
        if paths and context[: len(paths[-1][-1])] == paths[-1][-1]:
            paths[-1].append(context)
        else:
            paths.append([context])
    return paths


def _id(name: str) -> int:
    """The id of "token_id:7"."""
    kind, _, number = name.rpartition(":")
    if kind != "token_id":
        raise ValueError(name)
    return int(number)


def _prompt_of(choice: dict[str, Any], size: int) -> list[Any]:
    told = choice.get("prompt_logprobs")
    if not isinstance(told, list) or len(told) != size:
        raise _left_out(f"`prompt_logprobs` of a prompt of {size} tokens")
    return told


def _told(entries: Any) -> dict[int, float]:
    """Log-probability by id, of one position of a prompt."""
    try:
        return {int(id): float(entry["logprob"]) for id, entry in entries.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _left_out("`prompt_logprobs` with ids") from error


def _left_out(what: str) -> ServerError:
    return ServerError(
        f"the server does not tell {what}. vLLM does; of other servers, those that take token ids "
        "as prompts, `logprobs`, and `return_tokens_as_token_ids`."
    )
