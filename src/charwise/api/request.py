"""Completion and chat requests in the form of OpenAI's API, and settings: pydantic models.

The other dialects of the completion server, and chats, translate to `CompletionRequest`.
"""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from charwise.api.errors import HTTPError
from charwise.api.writer import Message
from charwise.errors import SettingError, quote

#: Tokens of a completion whose request does not say how many; OpenAI's number.
DEFAULT_TOKENS = 16

#: The most that one request to the completion server may ask for: prompts, completions of each,
#: tokens of a completion, and alternatives to a token.
MOST_PROMPTS, MOST_COMPLETIONS, MOST_TOKENS, MOST_LOGPROBS = 256, 64, 1_000_000, 100


class CheckedSettings(BaseModel):
    """Settings that cannot be changed, of exact types, each checked when they are made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True
    )

    def __init__(self, **settings: Any) -> None:
        """Raise `SettingError` for the first setting that is wrong."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"][:1])
            why = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
            raise SettingError(f"{name} is {quote(first['input'])}: it {why}.") from None


#: Where a completion may end by itself: at the end of its line, or of the block it is in.
Until = Literal["line", "block"]

#: Any JSON text that is an object.
_OBJECT: dict[str, Any] = {"type": "object"}

_Schema = dict[str, Any] | str | bool


def _no_truth(value: Any) -> Any:
    """Refuse true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no number")
    return value


def _whether_to_heal(value: Any) -> Any:
    """Refuse other words in the spelling of JSON; and 1 and 0, Python's true and false."""
    if not (value is None or isinstance(value, bool) or value == "auto"):
        raise ValueError('give true, false or "auto"')
    return value


def _prompt_form(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Name all forms of a prompt: pydantic names the first."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("give a text, a list of texts, ids, or lists of ids") from None


#: Numbers of a request: "8" is one, as for other servers; true is none.
Whole = Annotated[int, BeforeValidator(_no_truth)]
Real = Annotated[float, BeforeValidator(_no_truth)]

#: One prompt or several, each a text or token ids.
Prompts = Annotated[
    str | list[str] | list[StrictInt] | list[list[StrictInt]], WrapValidator(_prompt_form)
]

#: Field of vLLM → what says the same of whitespace in the schema.
_IN_THE_SCHEMA = {
    "disable_any_whitespace": '"x-guidance": {"whitespace_flexible": false}',
    **dict.fromkeys(
        ("whitespace_pattern", "guided_whitespace_pattern"),
        '"x-guidance": {"whitespace_pattern": "…"}',
    ),
}


def unread(name: str) -> str:
    """Return why a field is refused that would change the answer, and the way out."""
    instead = _IN_THE_SCHEMA.get(name)
    way_out = f"write {instead} in the schema in its place" if instead else "leave it out"
    return f"{name} is not read here, and changes the answer: {way_out}"


class Form(NamedTuple):
    """A form that a request gives its answer: its field, a keyword of constraints, its value."""

    field: str
    keyword: str
    value: Any


class _NamedSchema(BaseModel):
    """`json_schema` of OpenAI's `response_format`."""

    schema_: _Schema | None = Field(None, alias="schema")


class _ResponseFormat(BaseModel):
    """OpenAI's `response_format`. llama.cpp's has the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None
    schema_: _Schema | None = Field(None, alias="schema")

    @property
    def json_form(self) -> _Schema | None:
        """The schema; None for any text."""
        inner = self.json_schema.schema_ if self.json_schema else None
        schema = inner if inner is not None else self.schema_
        if self.type == "json_schema" and schema is None:
            raise HTTPError(
                400, "response_format has no json_schema.schema: add it.", "response_format"
            )
        return None if self.type == "text" else _OBJECT if schema is None else schema


class _StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`. A field that is not read here is refused if it says anything."""

    model_config = ConfigDict(extra="allow")

    json_: _Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _read_whole(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False, ""):
                raise ValueError(unread(name))
        if not self.forms:
            raise ValueError("no form is there: give json, regex, choice, grammar or json_object")
        return self

    @property
    def forms(self) -> list[Form]:
        """The forms that are asked for."""
        pairs = (
            ("json_schema", self.json_),
            ("json_schema", _OBJECT if self.json_object else None),
            ("regex", self.regex),
            ("choices", self.choice),
            ("grammar", self.grammar),
        )
        return [Form("structured_outputs", *pair) for pair in pairs if pair[1] is not None]


class _StreamOptions(BaseModel):
    """The parts of a stream besides its choices."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Extensions(BaseModel):
    """The fields that a request of any dialect may have besides its own.

    At most one of the first gives the answer a form.

    Attributes:
        response_format: OpenAI's.
        structured_outputs: vLLM's.
        grammar, json_schema: llama.cpp's; a grammar is GBNF, or Lark.
        until: "line" or "block", where a completion ends.
        n_indent: end before a line indented by less.
        threshold: offer nothing less probable.
        max_bytes: of a completion.
        token_healing: the field of other servers: false for the plain prompt, in its own tokens.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None
    grammar: str | None = None
    json_schema: _Schema | None = None
    until: Until | None = None
    n_indent: Whole | None = Field(None, ge=0)
    threshold: Real | None = Field(None, ge=0, le=1)
    max_bytes: Whole | None = Field(None, ge=0)
    token_healing: Annotated[
        Literal[True, False, "auto"] | None, BeforeValidator(_whether_to_heal)
    ] = None

    @property
    def extensions(self) -> Message:
        """These fields, for a request of another dialect."""
        fields = {name: getattr(self, name) for name in Extensions.model_fields}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def form(self) -> Form | None:
        """The form that is asked for, if one is; several, or an empty one, are refused."""
        response, outputs = self.response_format, self.structured_outputs
        schema = None if self.json_schema == "" else self.json_schema  # llama.cpp's word for none
        forms = [
            Form("response_format", "json_schema", response and response.json_form),
            *(outputs.forms if outputs else ()),
            Form("grammar", "grammar", self.grammar or None),
            Form("json_schema", "json_schema", schema),
        ]
        forms = [form for form in forms if form.value is not None]
        if empty := [form.field for form in forms if form.value == ""]:
            raise HTTPError(400, f"{empty[0]} has an empty form: leave it out.", empty[0])
        if len(forms) > 1:
            names = ", ".join(f"{form.field} ({form.keyword})" for form in forms)
            why = f"the request gives its answer several forms: keep one of {names}."
            raise HTTPError(400, why, forms[1].field)
        return forms[0] if forms else None

    def check_present(self, *names: str) -> None:
        """Refuse a request that has none of these fields."""
        if not self.model_fields_set & set(names):
            raise HTTPError(400, f'{names[0]} is missing: an empty text is "".', names[0])

    def check_suffix(self, name: str) -> None:
        """Refuse a text, in this field, after an answer that has a form."""
        if self.form is not None and getattr(self, name):
            raise HTTPError(400, f"an answer with a form has no {name}: leave it out.", name)


class CompletionRequest(Extensions):
    """A request to the completion server: OpenAI's fields, `top_k`, and our own.

    Attributes:
        max_completion_tokens: OpenAI's newer name of `max_tokens`, which has its value then.
        line_seconds: seconds for a completion, once a whole line of it is there.
    """

    model: str | None = None
    prompt: Prompts = ""
    suffix: str | None = None
    max_tokens: Whole | None = Field(DEFAULT_TOKENS, ge=0, le=MOST_TOKENS)
    max_completion_tokens: Whole | None = Field(None, ge=0, le=MOST_TOKENS)
    temperature: Real | None = Field(None, ge=0)
    top_p: Real | None = Field(None, gt=0, le=1)
    top_k: Whole | None = None
    n: Whole | None = Field(None, ge=1, le=MOST_COMPLETIONS)
    stop: str | list[str] | None = None
    seed: Whole | None = Field(None, ge=-1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    echo: bool | None = None
    logprobs: Whole | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: Whole | None = None
    line_seconds: Real | None = Field(None, ge=0)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        """Refuse a stop string that would end each text before it begins."""
        if "" in ([stop] if isinstance(stop, str) else stop or []):
            raise ValueError("a stop string is empty: leave it out")
        return stop

    @model_validator(mode="after")
    def _newer_name(self) -> Self:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self

    def check(self) -> None:
        """Refuse fields that do not go together."""
        self.check_suffix("suffix")
        if self.best_of not in (None, 1, self.n or 1):
            raise HTTPError(400, "best_of is more than n: the n best are what n gives.", "best_of")
        if self.stream_options is not None and not self.stream:
            raise HTTPError(400, "stream_options are for streams: set stream.", "stream_options")
        if self.stream_options is not None and self.stream_options.continuous_usage_stats:
            raise HTTPError(
                400,
                "continuous_usage_stats is not supported: include_usage counts once, at the end.",
                "stream_options",
            )

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text, or token ids; none, or too many, are refused."""
        self.check_present("prompt")
        several = self.prompt
        if isinstance(several, str):
            return [several]
        if not several:
            raise HTTPError(400, "prompt is an empty list.", "prompt")
        prompts: list[Any] = [several] if isinstance(several[0], int) else list(several)
        if len(prompts) > MOST_PROMPTS:
            why = f"more than {MOST_PROMPTS} prompts: send several requests."
            raise HTTPError(400, why, "prompt")
        return prompts


class _TextPart(BaseModel):
    """A part of a message that has several."""

    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1)
    content: str | list[_TextPart] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _texts(cls, content: Any) -> Any:
        """Name the first part that is no text."""
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or part.get("type", "text") != "text":
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ValueError(f"a message has text only: leave out the part of type {kind!r}")
        return content

    @property
    def rendered(self) -> Message:
        """The message as a chat template reads it."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": text}


class ChatRequest(CompletionRequest):
    """A chat request to the completion server.

    Attributes:
        add_generation_prompt: whether the model begins a message of its own.
        continue_final_message: whether it continues the last message, which may end anywhere.
        chat_template_kwargs: further variables of the template.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: Whole | None = Field(None, ge=0, le=MOST_TOKENS)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MOST_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: Message = Field(default_factory=dict)

    def check(self) -> None:
        """Refuse fields that do not go together."""
        super().check()
        if self.continue_final_message and self.add_generation_prompt:
            raise HTTPError(
                400,
                "continue_final_message and add_generation_prompt exclude each other: set "
                "add_generation_prompt to false.",
                "continue_final_message",
            )
        if self.top_logprobs and not self.logprobs:
            raise HTTPError(400, "top_logprobs needs logprobs: set it to true.", "top_logprobs")
        for name in ("suffix", "echo"):
            if getattr(self, name):
                raise HTTPError(400, f"a chat has no {name}: leave it out.", name)

    def translated(self) -> CompletionRequest:
        """Return the request as one for a completion, but for its prompt.

        Without a number of tokens a chat goes on until the model ends it.
        """
        fields = self.model_dump(
            exclude={*ChatRequest.__annotations__, "prompt"}, exclude_unset=True, by_alias=True
        )
        fields["max_tokens"] = MOST_TOKENS if self.max_tokens is None else self.max_tokens
        fields["logprobs"] = (self.top_logprobs or 0) if self.logprobs else None
        return CompletionRequest(**fields)
