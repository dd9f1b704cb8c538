"""JSON schemas: llguidance says which bytes may follow, jsonschema which finished texts are valid.

llguidance allows too much: a repeated key, the 29th of February of any year, all that keywords
such as `not` refuse. So a text may end only where the `jsonschema` package agrees. Numbers are
`Decimal`. Names that no draft has, and unknown formats, are annotations.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, localcontext
from typing import Any, TypeGuard

from charwise.constraints.grammars import MOST_RULES, Grammar, grammar_of
from charwise.errors import ConstraintError, needs, quote, reason

#: Keywords whose values map names to schemas, or to lists of names.
_NAMED = (
    *("$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas"),
    *("patternProperties", "properties"),
)

#: What llguidance leaves to the check of finished texts.
_UNCHECKED = {"lenient": True, "coerce_one_of": True}

#: The whitespace between JSON's parts, as in llama.cpp's grammars: small models write it endlessly.
_WHITESPACE = {"whitespace_pattern": r"( |(\r?\n){1,2}[ \t]{0,20})"}

#: The bounds that llguidance can have, and where doubles are no longer all integers.
_NEAREST, _FARTHEST, _EXACT = 10**18, 2**63 - 2**12, 2**53

#: The automaton of a `multipleOf` has as many states: it takes seconds to make for a million.
_MOST_STATES = 10**6

#: The digits of numbers in a text; more cannot be checked.
_DIGITS = Context(prec=5000)


def json_schema(schema: Mapping[str, Any] | str | bool) -> Grammar:
    """The JSON texts that are valid under a schema.

    A text may end only where the `jsonschema` package, with its format checker, finds it valid, no
    key is repeated, and numbers are meant exactly. Properties come in the order of the schema.
    Between the parts of a text are a space at most, or one or two line ends and 20 spaces or tabs,
    unless the schema's "x-guidance" says otherwise.

    Args:
        schema: as Python objects or as JSON text.

    Raises:
        ConstraintError: what is no schema, and why; one that nothing satisfies; a number that
            cannot be matched exactly.
        MissingExtraError: if llguidance or jsonschema is not installed.

    >>> json_schema({"enum": ["a", "b"]}).after(b'"').allowed().nonzero()[0].tolist()
    [97, 98]
    """
    try:
        text = (
            schema if isinstance(schema, str) else json.dumps(schema, default=dict, allow_nan=False)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema cannot be written as JSON: {error}.") from None
    try:
        exact = _read_json(text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        more = " Give what is in the file, not its name." if text.endswith(".json") else ""
        what = reason(str(error) or "it has a number of too many digits")
        raise ConstraintError(f"the schema is no JSON: {what}.{more}") from None
    if not isinstance(exact, dict | bool):
        raise ConstraintError(f"a JSON schema is an object, not {quote(exact)}.")
    if isinstance(exact, dict) and not isinstance(exact.get("$schema", ""), str):
        raise _wrong(f"$schema is {quote(exact['$schema'])}: it must be the address of a draft")
    with localcontext(_DIGITS):
        schema = _loosened(exact)
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        if not isinstance(options := schema.get("x-guidance") or {}, dict):
            raise _wrong(f"x-guidance is {quote(options)}: it must be an object")
        space = {} if "whitespace_flexible" in options else _WHITESPACE
        schema["x-guidance"] = _UNCHECKED | space | options
    loosened = json.dumps(schema, default=float)
    if loosened.count('"$ref"') > MOST_RULES:
        raise _wrong(f"it has more than {MOST_RULES:,} references")
    # llguidance first, because it says better what is wrong.
    grammar = grammar_of("the JSON schema", f"start: %json {loosened}")
    grammar.check = _check_of(text)
    return grammar


def _loosened(schema: Any) -> Any:
    """A schema that llguidance has exactly, and that allows all that is valid.

    Multiples of a fraction are the exception: they have the digits of the step (2.50 of 0.25).
    """
    if isinstance(schema, list):
        return [_loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    loosened: dict[str, Any] = {}
    step = schema.get("multipleOf")
    least_bounds = (schema.get(name) for name in ("minimum", "exclusiveMinimum"))
    positive = any(_is_number(bound) and bound >= 0 for bound in least_bounds)
    for name, value in schema.items():
        loosened[name] = value
        if name in ("const", "enum"):
            if _as_doubles(value) != value:
                raise _inexact(name, value, "Write it in quotes, as a string")
        elif name in _NAMED and isinstance(value, dict):
            loosened[name] = {key: _loosened(one) for key, one in value.items()}
        elif name not in ("default", "examples") and isinstance(value, list | dict):
            loosened[name] = _loosened(value)
        elif name == "multipleOf" and _is_number(value):
            digits = -min(0, int(Decimal(value).as_tuple().exponent))
            if Decimal(value).scaleb(digits) > _MOST_STATES:
                raise _inexact(name, value, "Give one of few digits, or list the values in enum")
        elif name.lower().endswith(("minimum", "maximum")) and _is_number(value):
            del loosened[name]
            if _is_number(step) and step % 1:
                # Near other bounds, and below 0, llguidance lacks multiples of a fraction.
                if not positive:
                    continue
                least = name.lower().endswith("minimum")
                name, value = (
                    ("minimum", math.floor(value)) if least else ("maximum", math.ceil(value))
                )
            if (bound := _bound(name, value)) is not None:
                loosened[name] = bound
        elif name == "format" and (version := re.fullmatch(r"uuid([1-8])", str(value))):
            # As pydantic writes it.
            loosened = {"pattern": rf"^.{{14}}{version[1]}"} | loosened | {name: "uuid"}
    return loosened


def _is_number(value: object) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _as_doubles(value: Any) -> Any:
    """A JSON value as llguidance writes it: its numbers are doubles, with their shortest digits."""

    def double(text: str) -> Decimal:
        return Decimal(repr(float(text)))

    text = json.dumps(value, default=float)
    return json.loads(text, parse_int=double, parse_float=double, parse_constant=Decimal)


def _bound(name: str, bound: int | Decimal) -> float | None:
    """A bound that llguidance has exactly, at or beyond another; None for none.

    Under one with two digits after the dot it leaves out numbers (0.4 under a maximum of 0.45).
    """
    way = -1 if name.lower().endswith("minimum") else 1
    if way * bound <= -_NEAREST:
        raise _inexact(name, bound, "Give the values as strings with a pattern, or nearer bounds")
    if way * bound >= _FARTHEST:
        return None
    if not -_EXACT <= bound <= _EXACT:  # beyond it by more than the 1 that llguidance subtracts
        return way * ((way * int(bound) + 2**12) // 2**11 * 2**11)
    if isinstance(bound, int):
        return bound
    scale = 10 if abs(bound) < 10**6 else 1
    return way * math.ceil(way * bound * scale) / scale


def _inexact(name: str, value: object, instead: str) -> ConstraintError:
    return _wrong(f"{name} {quote(value)} cannot be matched exactly. {instead}")


def _wrong(what: str) -> ConstraintError:
    return ConstraintError(f"the JSON schema is wrong: {what}.")


class _Exact(Decimal):
    """A number with a fraction or an exponent; messages show its digits alone."""

    __repr__ = Decimal.__str__


def _read_json(text: str) -> Any:
    """A JSON text as Python objects, whose numbers are `int` or `Decimal`; no key is repeated."""
    return json.loads(
        text, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_distinct
    )


def _number(text: str) -> int | Decimal:
    number = Decimal(text)
    if number.adjusted() < _DIGITS.prec and number == number.to_integral_value():
        return int(number)
    return _Exact(number)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)!r} is repeated")
    return names


def _check_of(schema: str) -> Callable[[bytes], str | None]:
    """Return the check of finished texts: why one is not valid under a schema, in JSON; or None."""
    with needs("constraints", "JSON schemas need jsonschema"):
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY  # without it, references are downloaded
    parsed = _read_json(schema)
    kind = validator_for(parsed, default=Draft202012Validator)
    try:
        with localcontext(_DIGITS):
            kind.check_schema(parsed)
    except SchemaError as error:
        where = "".join(f"[{step!r}]" for step in error.absolute_path)
        raise _wrong(reason(f"{where and f'at {where}: '}{error.message}")) from None
    validator = kind(parsed, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER)

    def fault(text: bytes) -> str | None:
        try:
            with localcontext(_DIGITS):
                error = next(validator.iter_errors(_read_json(text.decode())), None)
        except Exception as error:  # a pattern or a reference that Python cannot follow, a number
            # too large for it, a text too deep: nothing has said that the text is valid.
            return reason(str(error) or "it cannot be checked")
        return None if error is None else reason(error.message)

    return fault
