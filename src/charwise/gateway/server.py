"""The server behind the gateway: token ids and samples of it, and what it must be at the start."""

import asyncio
import json
import logging
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from charwise.api.http import Headers
from charwise.api.writer import IMPOSSIBLE, Message, spelled
from charwise.errors import ModelError, SettingError, VocabularyError, quote
from charwise.gateway.plan import DrawnMember, Unhealed, seeded
from charwise.gateway.relay import Relay
from charwise.gateway.servers import SERVERS, Sample, ServerKind
from charwise.healing.forced import HealedPrompt
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.utf8 import pending
from charwise.tokens.vocabulary import Vocabulary

logger = logging.getLogger("charwise.gateway")

#: What tokenizers differ in: spaces, indentation, digits, accents, scripts and emoji.
SAMPLE = (
    "The quick brown fox isn't here.",
    "def f(x):\n    return x[1:] == 'a'\n\n\tclass_name = CamelCase()",
    "x  =   1234567.89 + 0xFF",
    "naïve café, “Übermaß” — Привет, 日本語",
    "😀 → ∑ https://a.b/c?d=e&f=%20",
)


@dataclass
class Server:
    """A server that has our vocabulary and forces texts.

    `compare` sets the ids that it puts before a text, and whether its ids of a text are ours.
    """

    relay: Relay
    kind: ServerKind
    index: SortedVocabulary
    start: list[int] = field(default_factory=list)
    splits_alike: bool = True

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        """The names of control tokens, which servers read in a text as the tokens."""
        names = sorted(filter(None, self.index.vocabulary.special.values()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    async def ids(self, text: str, headers: Headers, specials: bool = True) -> list[int]:
        """The ids that the server makes of a text: ours, if it splits all texts as we do."""
        if not self.splits_alike or self._specials.search(text):
            return await self._served_ids(text, headers, specials)
        vocabulary = self.index.vocabulary
        data = vocabulary.implied_prefix + text.encode()
        return self.start * specials + await asyncio.to_thread(vocabulary.encode, data)

    async def _served_ids(self, text: str, headers: Headers, specials: bool = True) -> list[int]:
        if self.kind.tokenize is None:
            raise Unhealed("control-token")
        path, name, fields = self.kind.tokenize
        fields = fields if specials else {**fields, "add_special_tokens": False}
        return await self._tokens(path, headers, {**fields, name: text}, "control-token")

    async def chat_ids(self, request: Message, headers: Headers) -> list[int]:
        """The ids that its chat template makes of the messages; `Unhealed` if it does not say."""
        names = (
            *("model", "messages", "continue_final_message", "chat_template", "tools"),
            *("chat_template_kwargs", "add_special_tokens"),
        )
        body = {name: request[name] for name in names if name in request}
        path = self.kind.tokenize[0] if self.kind.tokenize else ""
        return await self._tokens(path, headers, {**body, "add_generation_prompt": False}, "chat")

    async def _tokens(self, path: str, headers: Headers, body: Message, why: str) -> list[int]:
        status, answer = await self.relay.ask(path, headers, body)
        ids = answer.get("tokens") if status == 200 and isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(type(id) is int for id in ids):
            raise Unhealed(why)
        return ids

    async def draw(
        self, healed: HealedPrompt, count: int, sampling: Message, headers: Headers
    ) -> list[DrawnMember]:
        """Draw tokens that write the forced text; `Unhealed` if the server writes another one."""
        # Where one request draws one sample, each has a seed of its own.
        each = [seeded(sampling, at) for at in range(1 if self.kind.several else count)]
        samples = count // len(each)
        batches = await asyncio.gather(*(self._samples(healed, samples, s, headers) for s in each))
        flat = [sample for samples in batches for sample in samples]

        async def member(sample: Sample) -> DrawnMember:
            for _ in range(4):  # tokens until its last character is complete
                member = _member_of(sample, healed, self.index.vocabulary)
                if isinstance(member, DrawnMember):
                    return member
                [more] = await self._samples(member, 1, sampling, headers)
                sample = Sample([*sample.ids, *more.ids])
            raise Unhealed("not-forced")

        return await asyncio.gather(*map(member, flat))

    async def _samples(
        self, healed: HealedPrompt, count: int, sampling: Message, headers: Headers
    ) -> list[Sample]:
        """Ask for samples; once more without the ban on control tokens, where that is refused."""
        kind, banned = self.kind, healed.lookalikes(self.index.vocabulary)
        body = kind.request(healed, count, sampling, banned)
        status, answer = await self.relay.ask(kind.path, headers, body)
        if status == 400 and banned:
            body = kind.request(healed, count, sampling)
            status, answer = await self.relay.ask(kind.path, headers, body)
        if status != 200:  # the client's own request gets the server's own words
            raise Unhealed("refused", json.dumps(answer)[:200])
        try:
            samples = kind.samples(answer)
            if len(samples) == count and all(sample.ids for sample in samples):
                return samples
        except (KeyError, TypeError, IndexError):
            pass
        raise Unhealed("not-forced")

    async def compare(self, headers: Headers, model: str) -> None:
        """See that the server has our vocabulary, and which ids it puts before a text.

        Where it splits the sample otherwise than we do, it is asked for the ids of every prompt. A
        server whose ids of a text are not that text in our vocabulary is a `SettingError`.
        """
        vocabulary = self.index.vocabulary
        for text in SAMPLE:
            data = vocabulary.implied_prefix + text.encode()
            try:
                ours = vocabulary.encode(data)
            except VocabularyError:  # no token string spells it
                continue
            theirs: Any = None
            try:
                theirs = await self._served_ids(text, headers)
                starts = [at for at, id in enumerate(theirs) if vocabulary.tokens[id] is not None]
                self.start = theirs[: starts[0]]
                same = vocabulary.decode(theirs) == data
                self.splits_alike &= theirs == [*self.start, *ours]
            except IndexError:  # an id that we lack, or none that spells anything
                same = False
            except Unhealed:  # it tells no ids: only how many there are
                body = {"model": model, "prompt": text, "max_tokens": 1}
                _, answer = await self.relay.ask("/v1/completions", headers, body)
                theirs = ((answer or {}).get("usage") or {}).get("prompt_tokens")
                if theirs is None:
                    raise ModelError(
                        f"the server at {self.relay.address} says neither the ids of a text nor "
                        "how many tokens it has, so its tokenizer cannot be compared."
                    ) from None
                self.start = list(vocabulary.bos_ids) if theirs > len(ours) else []
                same = theirs == len(self.start) + len(ours)
            if not same:
                raise SettingError(
                    f"the server at {self.relay.address} has another tokenizer: {quote(text)} is "
                    f"{quote(theirs)} there, and {quote(ours)} here. Give the tokenizer of its "
                    "model: --tokenizer FILE.gguf, a folder, or a name on the hub."
                )

    async def check_forcing(self, headers: Headers, model: str) -> None:
        """See that the server's guided decoding forces a text; else a `ModelError`."""
        text, forced = "The name is", b" Zq7x"
        ids = await self.ids(text, headers)
        healed, sampling = HealedPrompt(ids, forced, 1), {"model": model, "temperature": 0}
        try:
            await self.draw(healed, 1, sampling, headers)
        except Unhealed as reason:
            said = reason.answer or "it wrote another text"
            raise ModelError(
                f"the server at {self.relay.address} ({self.kind.name}) does not force a text: "
                f"{said}. Start it with guided decoding, and without a reasoning parser."
            ) from None
        # The shortest way to begin: some grammars take no tokens but those of one tokenization.
        for id in self.index.prefixes(forced)[-1:]:
            try:
                biased = sampling | {"logit_bias": {str(id): 100}}
                [member] = await self.draw(healed, 1, biased, headers)
            except Unhealed:  # it takes no biases
                return
            if member.ids[0] != id:
                logger.warning(
                    "the server at %s forces one tokenization of a text, which is not always the "
                    "model's choice: in vLLM, set the backend of structured outputs to xgrammar.",
                    self.relay.address,
                )


def _member_of(
    sample: Sample, healed: HealedPrompt, vocabulary: Vocabulary
) -> DrawnMember | HealedPrompt:
    """The member that a sample begins with; `Unhealed` where it does not write the forced text.

    A sample that ends inside a character gives a prompt to go on from, unconstrained.
    """
    text, first = b"", -1
    for at, id in enumerate(sample.ids):
        token = vocabulary.tokens[id] if 0 <= id < vocabulary.width else None
        if token is None:  # a control token: some grammars take its spelling for text
            break
        text += token
        surplus = text[len(healed.forced) :]
        if first < 0 and surplus:
            first = at
        if len(text) < len(healed.forced) or pending(surplus):
            continue
        if not text.startswith(healed.forced):
            break
        ids = tuple(sample.ids[: at + 1])
        logprobs = None
        if first == at and sample.logprobs:
            in_prompt = token[: len(token) - len(surplus)]
            logprobs = _logprobs(sample.logprobs, at, in_prompt, surplus)
        return DrawnMember(ids, surplus.decode(), ids[first:] if surplus else (), logprobs)
    else:
        if text.startswith(healed.forced):
            return healed._replace(kept=[*healed.kept, *sample.ids], forced=b"")
    raise Unhealed("not-forced")


def _logprobs(logprobs: Message, at: int, in_prompt: bytes, surplus: bytes) -> Message:
    """The log-probabilities of a token that begins in the prompt, as a client sees them.

    The token, and those listed beside it, show what they write beyond the prompt.
    """
    text, logprob = spelled(surplus), logprobs["token_logprobs"][at]
    start = in_prompt.decode("utf-8", "replace")
    top = (logprobs.get("top_logprobs") or {at: None})[at]
    beside = {
        token[len(start) :]: value
        for token, value in (top or {}).items()
        if token.startswith(start) and len(token) > len(start) and value > IMPOSSIBLE
    }
    likeliest = sorted({**beside, text: logprob}.items(), key=lambda pair: -float(pair[1]))
    return {
        "tokens": [text],
        "bytes": [list(surplus)],
        "token_logprobs": [logprob],
        "text_offset": [0],
        "top_logprobs": None if top is None else [dict(likeliest)],
    }


async def recognize(relay: Relay, name: str, headers: Headers = ()) -> tuple[ServerKind, Message]:
    """The kind of server, and what it says of its model: `model`, `tokenizer`, `window`.

    With the name "auto" the server is asked. One of an unknown kind is a `ModelError`.
    """
    status, answer = await relay.ask("/v1/models", headers)
    if status in (401, 403):
        other = "another" if headers else "a"
        raise ModelError(f"the server at {relay.address} wants {other} key: give --api-key.")
    models = answer.get("data") if isinstance(answer, dict) else None
    model = models[0] if isinstance(models, list) and models else None
    model = model if isinstance(model, dict) else {}
    owner = model.get("owned_by")
    kinds = [kind for kind in SERVERS.values() if name in (kind.name, "auto")]
    kind = next((kind for kind in kinds if name != "auto" or owner == kind.owner), None)
    if kind is None:
        raise ModelError(
            f"the server at {relay.address} is of no known kind ({quote(owner)} owns its models): "
            f"give --server, one of {', '.join(SERVERS)}."
        )
    path, tokenizer, window = kind.about
    about = (await relay.ask(path, headers))[1] if path else model

    def value(place: str) -> Any:
        inner = about
        for part in place.split("/"):
            inner = inner.get(part) if isinstance(inner, dict) else None
        return inner

    most = value(window) or model.get("max_model_len")
    return kind, {"model": model.get("id"), "tokenizer": value(tokenizer), "window": most}
