"""JSON schemas: a text may end only where it is valid, by jsonschema, with numbers as decimals."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import constraints
from charwise.constraints.schemas import _check_of, _read_json
from charwise.errors import ConstraintError
from models import examples, is_member

ROLE = {"properties": {"role": {"enum": ["user"]}}}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}
TEXT = {"type": "string"}
BITS = {"type": "array", "items": {"enum": [0, 1]}}
TAGGED = {"if": {"required": ["a"]}, "then": {"required": ["b"]}}
EITHER = {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}
TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}


def accepts(schema: Any, text: str) -> bool:
    return is_member(constraints.json_schema(schema), text)


#: Texts of each kind that llguidance takes for right or wrong by mistake, and the truth.
CASES: list[tuple[Any, str, bool]] = [
    # Classes that hold control characters, and characters that are written with an escape.
    (TEXT | {"pattern": r'^[^"]*$'}, r'"a\"b"', False),
    (TEXT | {"pattern": r'^[^"]*$'}, '"ab"', True),
    (TEXT | {"pattern": r"^[\x00-!#-~]*$"}, r'"\""', False),
    (TEXT | {"pattern": r"^[^a]*$"}, r'"\u0061"', False),
    # Keys.
    (ROLE, r'{"role":"user","\u0072ole":"admin"}', False),
    (ROLE, r'{"role":"user","x":1}', True),
    (ROLE, '{"role":"user","x":1,"x":2}', False),
    (ROLE, '{"role":"user","x":{"a":1,"a":1}}', False),
    (COUNTS | {"minProperties": 2}, '{"a":1,"a":2}', False),
    (COUNTS | {"minProperties": 2}, '{"a":1,"b":2}', True),
    ({"patternProperties": {"^a": {"type": "null"}}}, r'{"\u0061b":1}', False),
    ({"properties": {"minLenght": {"$ref": "#/$defs/tpye"}}, "$defs": {"tpye": TEXT}},
     '{"minLenght":1}', False),
    # Formats.
    (TEXT | {"format": "date"}, '"2021-02-29"', False),
    (TEXT | {"format": "date"}, '"2020-02-29"', True),
    (TEXT | {"format": "date-time"}, '"2021-02-29T00:00:00Z"', False),
    # Formats that llguidance does not know are annotations, unless jsonschema knows them.
    (TEXT | {"format": "uuid4"}, '"00000000-0000-4000-8000-000000000000"', True),
    (TEXT | {"format": "uuid4"}, '"00000000-0000-1000-8000-000000000000"', False),
    (TEXT | {"format": "password"}, '"yes"', True),
    (TEXT | {"format": "uri-reference"}, '"/a?b#c"', True),
    (TEXT | {"format": "regex"}, '"a("', False),
    ({"type": "integer", "format": "int32"}, "3", True),
    # Large and small numbers.
    ({"items": {"const": 10**22}}, "[10000000000000000000000]", True),
    ({"type": "number", "maximum": 0.1}, "0.10000000000000000001", False),
    ('{"type": "number", "maximum": 0.10000000000000000001}', "0.10000000000000000001", True),
    ({"type": "number", "exclusiveMaximum": 1}, "0.99999999999999999999999", True),
    ({"type": "number", "multipleOf": 0.1}, "0.3", True),
    ({"multipleOf": 0.01}, "1" * 60 + ".25", True),
    ({"type": "number", "multipleOf": 0.01}, "12.07", True),
    ({"type": "number", "multipleOf": 0.01}, "0.015", False),
    # Keywords that llguidance lacks.
    ({"uniqueItems": True}, "[1,1.0]", False),
    ({"uniqueItems": True}, "[1,2]", True),
    ({"not": {"type": "null"}}, "1", True),
    ({"not": {"type": "null"}}, "null", False),
    (TAGGED, '{"a":1}', False),
    (TAGGED, '{"a":1,"b":2}', True),
    (EITHER, "2.5", True),
    (EITHER, "3", False),
    ({"items": {}, "x-guidance": {"item_separator": ";"}}, "[1;2]", False),
    # Names that no draft has, and defaults, are annotations.
    ({"type": "null", "types": {"type": "strin"}}, "null", True),
    ({"items": {"definition": 1, "type": "null"}}, "[null]", True),
    ({"type": "null", "default": {"multipleOf": 1e9}}, "null", True),
    # The whitespace between parts has an end, unless the schema says otherwise.
    *((BITS, f"[0{space}]", True) for space in ("", " ", "\n", "\r\n\t", "\n\n" + 20 * " ")),
    *((BITS, f"[0{space}]", False) for space in ("  ", "\n\n\n", "\n" + 21 * " ")),
    (BITS | {"x-guidance": {"whitespace_flexible": False}}, "[0 ]", False),
    (BITS | {"x-guidance": {"whitespace_pattern": " +"}}, f"[0{90 * ' '}]", True),
    # A schema that refers to itself.
    (TREE, '{"next":' * 9 + "{}" + "}" * 9, True),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "valid"), CASES)
def test_the_end_is_allowed_where_the_text_is_valid(schema: Any, text: str, valid: bool) -> None:
    assert accepts(schema, text) == valid


BOUNDS = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]


def refused(schema: Any, says: str) -> None:
    with pytest.raises(ConstraintError, match=f"{says}.* cannot .* (Give|Write it in quotes)"):
        constraints.json_schema(schema)


@given(
    st.sampled_from(BOUNDS),
    st.sampled_from(["integer", "number"]),
    st.integers(0, 64).flatmap(lambda size: st.integers(-(2**size), 2**size)),
    st.integers(-3, 3),
)
@examples(300)
def test_bounds_of_any_size_are_exact_or_refused(
    keyword: str, kind: str, bound: int, step: int
) -> None:
    schema = {"type": kind, keyword: bound}
    if bound * (1 if keyword.lower().endswith("minimum") else -1) >= 10**18:
        refused(schema, f"{keyword} {bound}")
        return
    value = bound + step
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert accepts(schema, str(value)) == expected
    assert accepts({"items": schema}, f"[{value}]") == expected


@given(st.integers(0, 100).flatmap(lambda size: st.integers(-(2**size), 2**size)))
@examples(200)
def test_integers_of_any_size_are_exact_or_refused(value: int) -> None:
    for schema in ({"const": value}, {"enum": [value, "other"]}, {"items": {"const": [value]}}):
        if float(value) != value or Decimal(repr(float(value))) != value:
            refused(schema, str(value))
        elif "items" not in schema:
            constraint = constraints.json_schema(schema)
            assert is_member(constraint, str(value))
            assert not is_member(constraint, str(value + 1))
            assert {json.loads(text) for text in constraint.members(4) or ()} - {"other"} == {value}
        else:
            assert accepts(schema, f"[[{value}]]")
    multiples = {"type": "integer", "multipleOf": value}
    if value > 10**6:
        refused(multiples, f"multipleOf {value}")
    elif 0 < value < 1000:  # the automaton of a large one takes seconds
        assert accepts(multiples, str(7 * value))
        assert accepts(multiples, str(7 * value + 1)) == (value == 1)


@given(
    st.dictionaries(st.sampled_from(BOUNDS), st.decimals(-3, 3, places=2), min_size=1),
    st.sampled_from([None, 0.1, 0.05, 0.25, 2]),
    st.decimals(-4, 4, places=3),
)
@examples(300)
def test_decimals_within_limits(limits: dict[str, Any], step: float | None, value: Any) -> None:
    limits = {name: float(limit) for name, limit in limits.items()}
    schema = {"type": "number", **limits} | ({"multipleOf": step} if step else {})
    exact = jsonschema.Draft202012Validator(_read_json(json.dumps(schema)))
    inside = [n for n in range(-4000, 4001) if exact.is_valid(Decimal(n).scaleb(-3))]
    if inside:
        for number in (abs(value) if value == 0 else value, Decimal(inside[-1]).scaleb(-3)):
            shortest = f"{number.normalize():f}"
            dot = "." * ("." not in shortest)
            texts = [shortest, *(shortest + dot + "0" * zeros for zeros in range(1, 4))]
            assert any(accepts(schema, text) for text in texts) == exact.is_valid(number)


def test_a_text_that_fails_the_check_is_a_dead_end() -> None:
    wrong = constraints.json_schema(TEXT | {"format": "date"}).after('"2021-02-29"')
    assert not wrong.allowed().any()
    assert wrong.fault == "'2021-02-29' is not a 'date'"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e300, 1e300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
@examples(300)
def test_json_is_read_with_exact_numbers(value: Any, indent: Any, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert _read_json(text) == json.loads(text, parse_float=Decimal)
    check = _check_of(json.dumps({"const": value}))
    assert check(text.encode()) is None
    assert check(f"[{text}]".encode()) is not None
