"""The fields of a request that give its answer a form: OpenAI's, vLLM's, llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from charwise.api.errors import Refused

#: Any JSON text that is an object.
_OBJECT: dict[str, Any] = {"type": "object"}

_Schema = dict[str, Any] | str | bool


class _NamedSchema(BaseModel):
    """`json_schema` of OpenAI's `response_format`."""

    model_config = ConfigDict(extra="ignore")

    schema_: _Schema | None = Field(None, alias="schema")


class _ResponseFormat(BaseModel):
    """OpenAI's `response_format`. llama.cpp's has the schema beside the type."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None
    schema_: _Schema | None = Field(None, alias="schema")

    @property
    def json_form(self) -> _Schema | None:
        """The schema; None for any text.

        Raises:
            Refused: there is none, and the type says that there is one.
        """
        inner = self.json_schema.schema_ if self.json_schema else None
        schema = inner if inner is not None else self.schema_
        if self.type == "json_schema" and schema is None:
            raise Refused(
                400, "response_format has no json_schema.schema: add it.", "response_format"
            )
        return None if self.type == "text" else _OBJECT if schema is None else schema


class _StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`."""

    model_config = ConfigDict(extra="forbid")

    json_: _Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Structured(BaseModel):
    """The fields that give an answer a form; a request has at most one of them.

    Attributes:
        response_format: OpenAI's.
        structured_outputs: vLLM's; `guided_…` are its older names.
        grammar, json_schema: llama.cpp's; a grammar is GBNF, or Lark.

    >>> Structured(guided_choice=["yes", "no"]).form
    ('choices', ['yes', 'no'])
    >>> Structured(response_format={"type": "json_object"}).form
    ('json_schema', {'type': 'object'})
    >>> Structured(grammar="").form
    """

    response_format: _ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: _Schema | None = None

    @property
    def form(self) -> tuple[str, Any] | None:
        """The keyword of `ConstraintKeywords` that is asked for, and its value; None for none.

        Raises:
            Refused: several are.
        """
        found = [one for one in self._forms() if one[1] is not None and one[1] != ""]
        if len(found) > 1:
            raise Refused(400, "the request gives its answer several forms: keep one of them.")
        return found[0] if found else None

    def _forms(self) -> Iterator[tuple[str, Any]]:
        outputs = self.structured_outputs or _StructuredOutputs.model_construct()
        yield "json_schema", self.response_format and self.response_format.json_form
        yield "json_schema", outputs.json_
        yield "json_schema", _OBJECT if outputs.json_object else None
        yield "json_schema", self.guided_json
        yield "json_schema", self.json_schema or None
        for regex in (outputs.regex, self.guided_regex):
            yield "regex", regex
        for choices in (outputs.choice, self.guided_choice):
            yield "choices", choices
        for grammar in (outputs.grammar, self.guided_grammar, self.grammar):
            yield "grammar", grammar
