"""JSON schemas: llguidance says which bytes may follow, `validity.py` which texts are valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from charwise.constraints.diagnostics import size
from charwise.constraints.grammars import Grammar, grammar_of
from charwise.constraints.keywords import misspelt_keyword
from charwise.constraints.large_numbers import loosened, unwritable, whole_only
from charwise.constraints.validity import Validity, read
from charwise.errors import ConstraintError, one_line, shown

#: Keywords that list all values.
_VALUES = ("const", "enum")


def json_schema(schema: Mapping[str, Any] | str | bool) -> Grammar:
    """The JSON texts that are valid under a schema.

    A text may end only where the `jsonschema` package, with its format checker, finds it valid, no
    key is repeated, and numbers are meant exactly. Properties come in the order of the schema.

    Args:
        schema: as Python objects or as JSON text. A misspelt keyword is refused; other names
            that no draft has are annotations, as the standard has it.

    Raises:
        ConstraintError: what is no schema, and why; one that nothing satisfies; a number that
            cannot be matched exactly.
        MissingExtraError: if llguidance or jsonschema is not installed.

    >>> json_schema({"enum": ["a", "b"]}).after(b'"').allowed().nonzero()[0].tolist()
    [97, 98]
    """
    text = _as_text(schema)
    try:
        exact = read(text)[0]
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema cannot be read: {one_line(str(error))}.") from None
    if not isinstance(exact, dict | bool):
        raise ConstraintError(f"a JSON schema is an object, not {shown(exact)}.")
    if wrong := misspelt_keyword(exact):
        raise ConstraintError(f"the JSON schema is wrong: {wrong}")
    # llguidance first, because it says better what is wrong.
    return grammar_of("the JSON schema", _source(exact)).checked_by(Validity(text))


def _as_text(schema: Mapping[str, Any] | str | bool) -> str:
    """A schema as JSON text.

    Raises:
        ConstraintError: what is no JSON, and where.
    """
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except (ValueError, RecursionError) as error:
            where = size(schema[: getattr(error, "pos", 0)])
            more = " Give what is in the file, not its name." if schema.endswith(".json") else ""
            raise ConstraintError(f"the schema is no JSON: {error}.{more}", where) from None
        return schema
    if not isinstance(schema, Mapping | bool):
        raise ConstraintError(f"a JSON schema is an object, not {shown(schema)}.")
    try:
        given = schema if isinstance(schema, bool) else dict(schema)
        return json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema cannot be written as JSON: {error}.") from None


def _source(schema: dict[str, Any] | bool) -> str:
    """The grammar of a schema, in llguidance's notation.

    Values at the top of the schema with integers that llguidance would round are written out.
    """
    ways: list[str] = []
    left: Any = schema
    if isinstance(schema, dict) and (name := next((one for one in _VALUES if one in schema), "")):
        values = [schema[name]] if name == "const" else schema[name]
        values = values if isinstance(values, list) else []
        rounded = [value for value in values if whole_only(unwritable(value))]
        if rounded:
            others = [value for value in values if value not in rounded]
            left = {key: of for key, of in schema.items() if key != name} | {"enum": others}
            ways = [_literal(value) for value in rounded]
    if not ways or left["enum"]:
        ways.append(f"%json {json.dumps(loosened(left), default=float)}")
    return f"start: {' | '.join(ways)}"


def _literal(value: object) -> str:
    """A value as JSON, in a string of Lark's."""
    text = json.dumps(value, default=float, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)
