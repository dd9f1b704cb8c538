"""The server's tokenizer, which must be ours, and the questions asked before the first request."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import httpx

from charwise.api.writer import Message
from charwise.errors import ModelError, SettingError, VocabularyError, shown
from charwise.gateway.plan import Member, Unhealed, member_of
from charwise.gateway.relay import Headers, Relay
from charwise.gateway.servers import SERVERS, MemberRequest, ServerKind
from charwise.healing.prompt import HealedPrompt
from charwise.tokens.index import SortedVocabulary

logger = logging.getLogger("charwise.gateway")

#: What tokenizers differ in: spaces, indentation, digits, accents, scripts and emoji.
SAMPLE = (
    "The quick brown fox isn't here.",
    "def f(x):\n    return x[1:] == 'a'\n\n\tclass_name = CamelCase()",
    "x  =   1234567.89 + 0xFF",
    "naïve café, “Übermaß” — Привет, 日本語",
    "😀 → ∑ https://a.b/c?d=e&f=%20",
)


class ServedTokenizer:
    """Token ids of prompts, as the server itself would have them.

    Args:
        index: of our vocabulary.
        kind: of the server.
        relay: to the server.

    Attributes:
        start: ids that the server puts before a text; `compare` sets them.
    """

    def __init__(self, index: SortedVocabulary, kind: ServerKind, relay: Relay) -> None:
        self.index = index
        self.start: list[int] = []
        self.relay = relay
        self._kind = kind
        names = sorted(filter(None, index.vocabulary.special.values()), key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, names)) or "(?!)")

    def ids(self, text: str, *, specials: bool = True) -> list[int] | None:
        """The ids of a text; None if a control token is spelled in it, which servers read as one.

        Raises:
            VocabularyError: a text that no token string spells.
        """
        if self._specials.search(text):
            return None
        vocabulary = self.index.vocabulary
        return self.start * specials + vocabulary.encode(vocabulary.implied_prefix + text.encode())

    async def served_ids(self, text: str, headers: Headers, *, specials: bool = True) -> list[int]:
        """The ids that the server makes of a text.

        Raises:
            Unhealed: it does not say.
        """
        if self._kind.tokenize is None:
            raise Unhealed("control-token")
        path, field, fields = self._kind.tokenize
        fields = fields if specials else {**fields, "add_special_tokens": False}
        return await self._asked(path, headers, {**fields, field: text}, "control-token")

    async def chat_ids(self, request: Message, headers: Headers) -> list[int]:
        """The ids that the server's chat template makes of the messages.

        Raises:
            Unhealed: it does not say.
        """
        names = (
            *("model", "messages", "continue_final_message", "chat_template", "tools"),
            *("chat_template_kwargs", "add_special_tokens"),
        )
        body = {name: request[name] for name in names if name in request}
        path = self._kind.tokenize[0] if self._kind.tokenize else ""
        return await self._asked(path, headers, {**body, "add_generation_prompt": False}, "chat")

    async def _asked(self, path: str, headers: Headers, body: Message, why: str) -> list[int]:
        status, answer = await self.relay.ask(path, headers, body)
        ids = answer.get("tokens") if status == 200 and isinstance(answer, dict) else None
        if not isinstance(ids, list) or not all(type(id) is int for id in ids):
            raise Unhealed(why)
        return ids

    async def compare(self, headers: Headers, model: str) -> None:
        """See that the server has our vocabulary, and which ids it puts before a text.

        Where it splits the sample otherwise than we do, it is asked for the ids of every prompt.

        Args:
            headers: with the key that the server wants, if any.
            model: its name there.

        Raises:
            SettingError: its ids of a text are not that text in our vocabulary.
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
                theirs = await self.served_ids(text, headers)
                starts = [at for at, id in enumerate(theirs) if vocabulary.tokens[id] is not None]
                self.start = theirs[: starts[0]]
                same = vocabulary.decode(theirs) == data
                if theirs != [*self.start, *ours]:
                    self._specials = re.compile("")
            except IndexError:
                same = False
            except Unhealed:  # it tells no ids: only how many there are
                body = {"model": model, "prompt": text, "max_tokens": 1}
                _, answer = await self.relay.ask("/v1/completions", headers, body)
                theirs = ((answer or {}).get("usage") or {}).get("prompt_tokens", 0)
                self.start = list(vocabulary.bos_ids) if theirs > len(ours) else []
                same = theirs == len(self.start) + len(ours)
            if not same:
                raise SettingError(
                    f"the server at {self.relay.address} has another tokenizer: {shown(text)} is "
                    f"{shown(theirs)} there, and {shown(ours)} here. Give the tokenizer of its "
                    "model: --tokenizer FILE.gguf, a folder, or a name on the hub."
                )

    async def check_forcing(self, headers: Headers, model: str) -> None:
        """See that the server's guided decoding forces a text.

        Raises:
            ModelError: it does not.
        """
        text, kind = "The name is", self._kind
        healed = HealedPrompt(self.ids(text) or await self.served_ids(text, headers), b" Zq7x", 1)
        member = MemberRequest(healed, 1, {"model": model, "temperature": 0})
        status, answer = await self.relay.ask(kind.path, headers, kind.request(member))
        found: Any = None
        try:
            if status == 200:
                found = member_of(kind.samples(answer)[0], healed, self.index.vocabulary)
        except (KeyError, TypeError, IndexError):
            pass
        if not isinstance(found, Member):
            said = "it wrote another text" if status == 200 else json.dumps(answer)[:200]
            raise ModelError(
                f"the server at {self.relay.address} ({kind.name}) does not force a text: {said}. "
                "Start it with guided decoding, and without a reasoning parser."
            )
        # The shortest way to begin: some grammars take no tokens but those of one tokenization.
        short = self.index.prefixes(healed.forced)[-1:]
        biased = {**member.sampling, "logit_bias": {str(id): 100 for id in short}}
        body = kind.request(member._replace(sampling=biased))
        status, answer = await self.relay.ask(kind.path, headers, body)
        if short and status == 200 and kind.samples(answer)[0].ids[:1] != short:
            logger.warning(
                "the server at %s forces one tokenization of a text, which is not always the "
                "model's choice: in vLLM, set the backend of structured outputs to xgrammar.",
                self.relay.address,
            )


async def recognize(relay: Relay, name: str, headers: Headers = ()) -> tuple[ServerKind, Message]:
    """The kind of server, and what it says of its model: `model`, `tokenizer`, `window`.

    Args:
        relay: to the server.
        name: of the kind; "auto" asks.
        headers: with the key that the server wants, if any.

    Raises:
        ModelError: no server, or one of an unknown kind.
    """
    try:
        status, answer = await relay.ask("/v1/models", headers)
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise ModelError(f"no server answers at {relay.address}: {why}.") from None
    if status in (401, 403):
        raise ModelError(f"the server at {relay.address} wants a key: give --api-key.")
    listed = answer.get("data") if isinstance(answer, dict) else None
    model = listed[0] if isinstance(listed, list) and listed else {}
    owner = model.get("owned_by")
    kinds = [kind for kind in SERVERS.values() if name in (kind.name, "auto")]
    kind = next((kind for kind in kinds if name != "auto" or owner == kind.owner), None)
    if kind is None:
        raise ModelError(
            f"the server at {relay.address} is of no known kind ({shown(owner)} owns its models): "
            f"give --server, one of {', '.join(SERVERS)}."
        )
    description = {"tokenizer": model.get("root"), "window": model.get("max_model_len")}
    if kind.name == "sglang":
        description["tokenizer"] = ((await relay.ask("/get_model_info", headers))[1] or {}).get(
            "tokenizer_path"
        )
    if kind.native:
        properties = (await relay.ask("/props", headers))[1] or {}
        description["tokenizer"] = properties.get("model_path")
        description["window"] = (properties.get("default_generation_settings") or {}).get("n_ctx")
    return kind, {**description, "model": model.get("id")}
