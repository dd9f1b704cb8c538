"""Structured output of a healed prompt: its grammar begins with the text to reproduce.

vLLM starts a request's grammar where its prompt ends, and offers no way to start it later. But a
grammar can take the forced text as its first literal, and then it masks as the logits processor
would: a token may come next if it goes on with that literal, or ends it and goes on with what the
client asked for. So such a request needs no other mask.

    regex             escaped text, then the pattern
    choice            each choice behind the text
    json, json_object, grammar, structural_tag
                      a structural tag: a sequence of a constant string and the format
"""

from __future__ import annotations

import json
import re
from typing import Any

from charwise.api.writer import Message

#: The kinds of constraint in `structured_outputs`.
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

#: Kinds that stay what they are behind a literal, whichever backend reads them.
_TEXTUAL = frozenset({"regex", "choice"})


def extensible(config: Any) -> frozenset[str]:
    """The kinds of constraint that can take a literal in this vLLM.

    Structural tags are xgrammar's. Where a reasoning parser decides when grammars start, none can.
    """
    if getattr(config, "reasoning_parser", None):
        return frozenset()
    backend = str(getattr(config, "backend", "auto"))
    return frozenset(_KINDS) if backend in ("auto", "xgrammar") else _TEXTUAL


def constraint(request: Message) -> tuple[str, Any] | None:
    """Return the constraint on a request's output: the kind, and its value; None without one.

    >>> constraint({"response_format": {"type": "json_object"}})
    ('json_object', True)
    >>> constraint({"structured_outputs": {"regex": "[0-9]+"}, "response_format": {"type": "text"}})
    ('regex', '[0-9]+')
    """
    given = request.get("response_format")
    form: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = form.get("type")
    if kind == "json_object":
        return "json_object", True
    if kind == "json_schema":
        schema = form.get("json_schema")
        return "json", schema.get("schema") if isinstance(schema, dict) else None
    if kind not in (None, "text"):
        return "structural_tag", form
    given = request.get("structured_outputs")
    if not given:
        return None
    found = [(kind, given[kind]) for kind in _KINDS if isinstance(given, dict) and given.get(kind)]
    return found[0] if len(found) == 1 else ("unknown", given)


def with_literal(request: Message, forced: bytes) -> Message | None:
    """The request with its constraint behind the forced text; None if there is no way.

    >>> with_literal({"structured_outputs": {"regex": "a|b"}}, b" (")
    {'structured_outputs': {'regex': ' \\\\((a|b)'}}
    """
    found = constraint(request)
    options = request.get("structured_outputs")
    kept = {
        name: option
        for name, option in (options if isinstance(options, dict) else {}).items()
        if name not in _KINDS
    }
    if found is None or kept:  # its other options are not those of every kind
        return None
    try:
        behind = _behind(forced.decode(), *found)
    except (ValueError, TypeError):  # a forced text that is none, or what vLLM will refuse
        return None
    if behind is None:
        return None
    rest = {name: request[name] for name in request if name != "response_format"}
    return rest | {"structured_outputs": behind}


def _behind(text: str, kind: str, value: Any) -> Message | None:
    if kind == "regex" and isinstance(value, str):
        return {"regex": f"{_escaped(text)}({value})"}
    if kind == "choice" and isinstance(value, list):
        return {"choice": [text + each for each in value]}
    form = _format(kind, value)
    if form is None:
        return None
    parts = [{"type": "const_string", "value": text}, form]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    return {"structural_tag": json.dumps(tag)}


def _format(kind: str, value: Any) -> Message | None:
    """A constraint as a part of a structural tag."""
    if kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if kind == "json":
        schema = json.loads(value) if isinstance(value, str) else value
        return None if _ignored(schema) else {"type": "json_schema", "json_schema": schema}
    if kind == "grammar" and "::=" in value:  # EBNF; a tag takes no other
        return {"type": "grammar", "grammar": value}
    if kind == "structural_tag":
        tag = json.loads(value) if isinstance(value, str) else value
        return tag.get("format") if isinstance(tag, dict) else None
    return None


def _ignored(schema: Any) -> bool:
    """Return whether a schema has parts that structural tags ignore."""
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    return not isinstance(schema, dict) or bool(has_xgrammar_unsupported_json_features(schema))


def _escaped(text: str) -> str:
    """A text as a pattern that regular expressions of every dialect read alike."""
    return re.sub(r"([\\^$.|?*+()\[\]{}/-])", r"\\\1", text)
