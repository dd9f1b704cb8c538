"""JSON schemas: llguidance says which bytes may follow, `validity.py` which texts are valid.

The standard has a validator pass over keywords that it does not know. A schema whose `minLength` is
misspelt then allows every string, in silence: what looks like a keyword that restricts is refused.
All else that is unknown is an annotation, as the standard has it (`nullable`, `x-order`).

llguidance keeps numbers as doubles. Bounds that it would round are moved outwards to a number that
it matches exactly. It then allows a little more than the schema, and the check of finished texts
has the last word. What cannot be matched so is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, TypeGuard

from charwise.constraints.constraint import finite
from charwise.constraints.diagnostics import size
from charwise.constraints.grammars import Grammar, grammar_of
from charwise.constraints.validity import Validity, read
from charwise.errors import ConstraintError, reason, shorter, shown


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Whose values are a schema, or a list of schemas.
_ONE_OR_MORE = _words(
    """additionalItems additionalProperties allOf anyOf contains contentSchema else if items not
    oneOf prefixItems propertyNames then unevaluatedItems unevaluatedProperties"""
)
#: Whose values map names to schemas (or, in `dependencies`, to lists of names).
NAMED = _words("$defs definitions dependencies dependentSchemas patternProperties properties")
#: The others that restrict a text, of drafts 4 to 2020-12.
_OTHERS = _words(
    """$dynamicRef $recursiveRef $ref const dependentRequired enum exclusiveMaximum exclusiveMinimum
    format maxContains maxItems maxLength maxProperties maximum minContains minItems minLength
    minProperties minimum multipleOf pattern required type uniqueItems"""
)
_KNOWN = _ONE_OR_MORE | NAMED | _OTHERS

#: As one writes names elsewhere: `min_length`, `MinLength`, `ref`.
_PLAIN = {re.sub(r"[^a-z]", "", name.lower()): name for name in sorted(_KNOWN)}

#: Least likeness, as difflib has it, and least length of a keyword that another is taken for. A
#: name that is longer by two is one of its own (`typeof`, `formatted`).
_NEAR, _LONG = 0.76, 4


def _misspelt_keyword(schema: object) -> str | None:
    """The first name in a schema that is nearly a keyword which restricts, and that keyword.

    >>> _misspelt_keyword({"properties": {"minLenght": {"minLenght": 3}}})
    "'minLenght' is no keyword: is it 'minLength'? An annotation may be called 'x-minLenght'."
    >>> _misspelt_keyword({"type": "string", "nullable": True, "note": "a", "examples": ["b"]})
    """
    left = [schema]
    while left:
        one = left.pop()
        if not isinstance(one, Mapping):
            continue
        for name in map(str, one):
            if meant := _meant(name):
                return (
                    f"{name!r} is no keyword: is it {meant!r}? An annotation may be called "
                    f"{'x-' + name!r}."
                )
        left.extend(_inner(one))
    return None


def _meant(name: str) -> str | None:
    """The keyword that a name is nearly, if it is none.

    >>> _meant("max_items"), _meant("tpye"), _meant("maxItems"), _meant("unit"), _meant("typeof")
    ('maxItems', 'type', None, None, None)
    """
    if name in _KNOWN or name.startswith("x-"):
        return None
    plain = re.sub(r"[^a-z]", "", name.lower())
    if plain in _PLAIN:
        return _PLAIN[plain]
    long = [one for one in _PLAIN if len(one) >= _LONG and len(plain) < len(one) + 2]
    swapped = [one for one in long if sorted(one) == sorted(plain)]
    near = swapped or get_close_matches(plain, long, 1, _NEAR)
    return _PLAIN[near[0]] if near else None


def _inner(schema: Mapping[Any, Any]) -> Iterator[object]:
    """The schemas in a schema."""
    for name, value in schema.items():
        if name in NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif name in _ONE_OR_MORE:
            yield from value if isinstance(value, list | tuple) else [value]


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
        raise ConstraintError(f"the schema cannot be read: {reason(str(error))}.") from None
    if not isinstance(exact, dict | bool):
        raise ConstraintError(f"a JSON schema is an object, not {shown(exact)}.")
    if wrong := _misspelt_keyword(exact):
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
        rounded = [value for value in values if _whole_only(_unwritable(value))]
        if rounded:
            others = [value for value in values if value not in rounded]
            left = {key: of for key, of in schema.items() if key != name} | {"enum": others}
            ways = [_literal(value) for value in rounded]
    if not ways or left["enum"]:
        ways.append(f"%json {json.dumps(_loosened(left), default=float)}")
    return f"start: {' | '.join(ways)}"


def _literal(value: object) -> str:
    """A value as JSON, in a string of Lark's."""
    text = json.dumps(value, default=float, separators=(",", ":"), ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


Number = int | Fraction

#: Integers up to here are doubles.
_EXACT = 2**53

#: Bounds that are farther away from zero are left out, or refused where they leave zero out.
_FARTHEST, _NEAREST = 2**63, 10**18

#: The automaton of a `multipleOf` has as many states: it takes seconds to make for a million.
_MULTIPLE = 10**6

#: Digits, and the least size, of decimals that a double has for sure.
_DIGITS, _SMALL = 15, Fraction(1, 10**5)

#: The way a bound may be moved: down where it is a lower one.
_BOUNDS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}

#: Keywords whose values are data.
_DATA = frozenset({"default", "example", "examples"})


def _loosened(schema: Any) -> Any:
    """A schema with bounds that llguidance matches exactly, so that it allows all that is valid.

    Args:
        schema: with exact numbers, as `validity.read` has them.

    Raises:
        ConstraintError: a number that cannot be matched exactly.

    >>> _loosened({"maximum": 2**53 + 1, "items": {"minimum": -(2**70)}})
    {'maximum': 9007199254740994, 'items': {}}
    """
    if isinstance(schema, list):
        return [_loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        if name in NAMED and isinstance(value, dict):
            out[name] = {key: _loosened(one) for key, one in value.items()}
        elif name in ("const", "enum"):
            for number in _unwritable(value):
                raise _refused(name, number, "Write it in quotes, as a string")
            out[name] = value
        elif name == "multipleOf" and _is_number(value):
            out[name] = _multiple(value)
        elif name in _BOUNDS and _is_number(value):
            bound = _bound(name, value)
            if bound is not None:
                out[name] = bound
        else:
            out[name] = value if name in _DATA else _loosened(value)
    return out


def _unwritable(value: Any) -> Iterator[Number]:
    """The numbers in a JSON value that llguidance writes as others.

    >>> list(_unwritable([1, {"id": 2**53 + 1}]))
    [9007199254740993]
    """
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _unwritable(one)
    elif _is_number(value) and _doubtful(value) and not _writes(value):
        yield value


def _whole_only(numbers: Iterator[Number]) -> bool:
    """Whether there are numbers, and all of them are integers.

    >>> _whole_only(iter([1])), _whole_only(iter([])), _whole_only(iter([Fraction(1, 3)]))
    (True, False, False)
    """
    found = list(numbers)
    return bool(found) and all(isinstance(number, int) for number in found)


def _is_number(value: object) -> TypeGuard[Number]:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _doubtful(number: Number) -> bool:
    """Whether a number may be none that llguidance writes."""
    if isinstance(number, int):
        return abs(number) >= _EXACT
    return abs(number) < _SMALL or len(str(number.numerator)) > _DIGITS


def _writes(number: Number) -> bool:
    """Whether llguidance writes a number exactly: it is asked."""
    try:
        source = json.dumps({"const": number}, default=float)
        texts = finite(grammar_of("the number", f"start: %json {source}"), 4, longest=400)
    except (ConstraintError, OverflowError):
        return False
    return any(read(text.decode())[0] == number for text in texts or ())


def _bound(name: str, bound: Number) -> Number | None:
    """A bound that llguidance has exactly, at or beyond another; None for none.

    Raises:
        ConstraintError: a bound that cannot be matched.
    """
    way = _BOUNDS[name]
    far = way * Fraction(bound)
    if -far >= _NEAREST:
        raise _refused(name, bound, "Give the values as strings with a pattern, or nearer bounds")
    if far >= _FARTHEST:
        return None
    near, large = float(bound), abs(far) > _EXACT
    if not large and Fraction(repr(near)) == bound:
        return bound
    # One more where the bound itself is left out: llguidance subtracts 1 from it.
    for _ in range(1 + (large and name.startswith("exclusive"))):
        near = math.nextafter(near, way * math.inf)
    if way * near >= _FARTHEST:
        return None
    bound = Fraction(repr(near))
    return int(bound) if bound.denominator == 1 else bound


def _multiple(of: Number) -> Number:
    """A divisor, if it is small enough.

    Raises:
        ConstraintError: one that is not.
    """
    digits = Fraction(of)
    while digits.denominator > 1:
        digits *= 10
    if digits > _MULTIPLE:
        raise _refused("multipleOf", of, "Give one of few digits, or list the values in enum")
    return of


def _refused(name: str, number: Number, instead: str) -> ConstraintError:
    given = str(number if isinstance(number, int) else float(number))
    return ConstraintError(
        f"the JSON schema is wrong: {name} {shorter(given)} cannot be matched exactly. {instead}."
    )
