"""Which requests are healed, where their prompts are cut, and the members that go on from there.

A member is a string of tokens that minimally covers the forced text (Vieira et al. 2025, §3.1): it
writes the end of the prompt again, and its last token may go on beyond it. The server draws it
under an expression that forces the text; the client's own request goes on behind it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from charwise.api.errors import HTTPError
from charwise.api.writer import Message
from charwise.errors import CharwiseError, SettingError
from charwise.gateway.servers import ServerKind
from charwise.healing import HealedPrompt, Rule
from charwise.healing.fim import Template, request
from charwise.healing.prompt import heal_characters
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.sentinels import spelling_of
from charwise.tokens.utf8 import pending
from charwise.tokens.vocabulary import Vocabulary

Form = Literal["completions", "chat", "native", "infill"]

#: Path → the form of its requests.
FORMS: dict[str, Form] = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/completion": "native",
    "/infill": "infill",
}

#: Field → why a request that sets it is not healed.
_UNFIT = {
    **dict.fromkeys(("structured_outputs", "grammar", "json_schema", "regex", "ebnf"), "grammar"),
    **dict.fromkeys(("guided_regex", "guided_json", "guided_choice", "guided_grammar"), "grammar"),
    "structural_tag": "grammar",
    "multimodal_data": "images",
    **{name: name for name in ("suffix", "best_of", "echo", "prompt_embeds", "prompt_logprobs")},
    **{name: name for name in ("n_probs", "truncate_prompt_tokens", "return_prompt_text")},
    "response_fields": "response_fields",
}


class _Fields(BaseModel):
    """Fields that healing reads. Of another value the server itself says that it is wrong."""

    stop: str | list[str] | None = None
    logit_bias: Message | list[Any] | None = None
    kv_transfer_params: Message | None = None
    min_tokens: int | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    n: int | None = Field(None, ge=1, le=64)
    n_cmpl: int | None = Field(None, ge=1, le=1)
    n_predict: int | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None


class Unhealed(Exception):
    """A request that goes through as it came: the reason, a word, and what the server answered."""

    def __init__(self, word: str, answer: str = "") -> None:
        super().__init__(word)
        self.answer = answer


class DrawnMember(NamedTuple):
    """Tokens that cover the forced text.

    Attributes:
        ids: its tokens.
        text: what they write beyond the prompt.
        beyond: those of its tokens that write something beyond the prompt.
        logprobs: of these, in the form of OpenAI's completions, as the client sees them.
    """

    ids: tuple[int, ...]
    text: str
    beyond: tuple[int, ...]
    logprobs: Message | None = None


class Call(NamedTuple):
    """One of the second requests: the client's own, behind one member.

    Attributes:
        body: of the request.
        indexes: of its choices in the answer to the client.
        prompt, member: that it goes on from.
        over: whether the member has all the tokens that the client asked for, or a stop string.
    """

    body: Message
    indexes: list[int]
    prompt: HealedPrompt
    member: DrawnMember
    over: bool


class Healing(NamedTuple):
    """A request that may be healed.

    Attributes:
        form: of the request.
        request: as the client sent it, without `token_healing`, numbers in texts as numbers.
        rule: where to cut.
        samples: completions of each prompt.
        max_tokens: of each completion; None for no limit.
        max_tokens_field: where the request says so.
    """

    form: Form
    request: Message
    rule: Rule
    samples: int
    max_tokens: int | None
    max_tokens_field: str

    @classmethod
    def of(cls, form: Form, request: Message, rule: Any, kind: ServerKind) -> Healing:
        """The fields that healing depends on; `Unhealed`, or `HTTPError` for what is no rule."""
        native = form in ("native", "infill")
        if rule is False:
            raise Unhealed("asked")
        if rule is None or rule is True:
            rule = "auto"
        if rule not in ("auto", "word") and not (type(rule) is int and 0 < rule < 64):
            said = 'token_healing is true, false, "auto", "word", or a number of tokens, 1 to 63.'
            raise HTTPError(400, said, "token_healing")
        if native and not kind.native:
            raise Unhealed("endpoint")
        if form == "chat":
            if kind.chat_ids is None or request.get("continue_final_message") is not True:
                raise Unhealed("chat")
            if request.get("tools") and request.get("tool_choice") != "none":
                raise Unhealed("tools")
        if (request.get("response_format") or {"type": "text"}) != {"type": "text"}:
            raise Unhealed("grammar")
        for name, reason in _UNFIT.items():
            if request.get(name) not in (None, False, 0, "", [], {}):
                raise Unhealed(reason)
        try:
            fields = _Fields.model_validate(request)
        except ValidationError as error:
            raise Unhealed(str(error.errors()[0]["loc"][0])) from None
        request = request | fields.model_dump(exclude_unset=True)
        if request.get("logprobs") not in (None, False) and not kind.logprobs:
            raise Unhealed("logprobs")
        samples = request.get("n") or 1
        if native and samples > 1:
            raise Unhealed("n")
        names = ("n_predict", "max_completion_tokens", "max_tokens")
        usual = "n_predict" if native else "max_tokens"
        field = next((name for name in names if request.get(name) is not None), usual)
        most = request.get(field)
        if most is None:
            most = None if form == "chat" or "max_tokens" in request else kind.default_tokens
        elif most == 0 or (most < 0 and not kind.native):
            raise Unhealed("max_tokens")
        elif most < 0:
            most = None
        return cls(form, request, rule, samples, most, field)

    @property
    def stops(self) -> list[str]:
        """Strings that end a completion."""
        stop = self.request.get("stop") or []
        return [one for one in ([stop] if isinstance(stop, str) else stop) if one]

    @property
    def specials(self) -> bool:
        """Whether the server puts its start token before a prompt."""
        return self.request.get("add_special_tokens") is not False

    def sampling(self, kind: ServerKind) -> tuple[int, Message]:
        """How many members to draw for a prompt, and the fields that decide which are drawn."""
        count, sampling = self.samples, kind.sampling_of(self.request)
        if self.request.get("use_beam_search"):  # beams ignore expressions: they share one member
            count, sampling["temperature"] = 1, 0
        if sampling.get("logprobs") is True:  # a chat's
            sampling["logprobs"] = self.request.get("top_logprobs") or 0
        return count, sampling

    def cut(self, ids: list[int], index: SortedVocabulary) -> HealedPrompt:
        """Token ids, cut; `Unhealed` where no expression can force what would be cut off."""
        return _checked(heal_characters(ids, index, self.rule), index.vocabulary)

    def cut_infill(self, index: SortedVocabulary, window: int) -> HealedPrompt:
        """The prompt of llama.cpp's `/infill`, as its server writes it, with the prefix cut."""
        vocabulary, fields = index.vocabulary, self.request
        names = {name: id for id, name in vocabulary.special.items()}
        spelling = spelling_of(set(names))
        if spelling is None:
            raise Unhealed("template")
        try:
            prefix = (fields.get("input_prefix") or "") + (fields.get("prompt") or "")
            opening: list[int | str] = []
            if extra := fields.get("input_extra"):
                repository = [names[name] for name in spelling.repository if name in names][:1]
                file = [names[name] for name in spelling.files if name in names][:1]
                opening += [*vocabulary.bos_ids, *repository, *["myproject\n"] * len(repository)]
                for each in extra:
                    name = f"{each['filename']}\n" if file else "\n\n--- snippet ---\n\n"
                    opening += [*file, name, each["text"]]
                opening += [*file, "filename\n"] if file else []
            planned = request(
                prefix,
                fields.get("input_suffix") or "",
                Template.of(vocabulary),
                index,
                left=self.rule,
                right="off",
                opening=opening,
                most=window,
            )
        except SettingError:
            raise Unhealed("template") from None
        except (CharwiseError, KeyError, TypeError, AttributeError):
            raise Unhealed("prompt") from None
        return _checked(planned, vocabulary)

    def calls(
        self, kind: ServerKind, first: int, prompt: HealedPrompt, members: list[DrawnMember]
    ) -> list[Call]:
        """The second requests for one prompt: one for all samples with the same member.

        Args:
            kind: of the server.
            first: index of the prompt's first choice.
            prompt, members: one member for each sample, or one for all beams.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for at in range(self.samples):
            groups.setdefault(members[at % len(members)].ids, []).append(at)
        calls: list[Call] = []
        for ids, group in groups.items():
            member = members[group[0]]
            body, beyond = dict(self.request), len(member.beyond)
            for side in ("input_prefix", "input_suffix", "input_extra"):  # they are in the prompt
                body.pop(side, None)
            if self.samples > 1:
                body["n"] = len(group)
            room = None if self.max_tokens is None else self.max_tokens - beyond
            full = room is not None and room < 1
            over = full or any(stop in member.text for stop in self.stops)
            if room is not None or over:
                body[self.max_tokens_field] = 1 if over else room
            if body.get("min_tokens"):
                body["min_tokens"] = 0 if over else max(0, body["min_tokens"] - beyond)
            # Not the member's seed: the first token would be drawn with the noise of the member's.
            body = seeded(body, 2**20 + group[0])
            prompt_ids = [*prompt.kept, *ids]
            chat = self.form == "chat" and kind.chat_ids
            body = chat(body, prompt_ids) if chat else {**body, "prompt": prompt_ids}
            calls.append(Call(body, [first + at for at in group], prompt, member, over))
        return calls


def _checked(healed: HealedPrompt, vocabulary: Vocabulary) -> HealedPrompt:
    if healed.forced[:1] and (healed.forced[0] & 0xC0 == 0x80 or pending(healed.forced)):
        raise Unhealed("half-character")
    if b"\0" in healed.forced:
        raise Unhealed("nul")
    if len(healed.forced) > max(256, 4 * vocabulary.max_token_bytes):
        raise Unhealed("too-long")
    return healed


def seeded(fields: Message, number: int) -> Message:
    """The fields of one of several draws: each has a seed of its own, where there is one.

    The greatest of 32 bits is llama.cpp's word for any seed, as a negative one is.
    """
    seed = fields.get("seed")
    if seed is None or seed < 0 or seed == 2**32 - 1:
        return fields
    return {**fields, "seed": seed ^ number}
