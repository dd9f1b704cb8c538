"""JSON schemas: llguidance says which bytes may follow, jsonschema which finished texts are valid.

llguidance allows too much: a repeated key, the 29th of February of any year. So a text may end only
where the `jsonschema` package agrees. Numbers are `Decimal` in the schema and in the text.

The standard has a validator pass over keywords that it does not know. A schema whose `minLength` is
misspelt then allows every string, in silence: such a name is refused. All other names are
annotations, and so is a `format` that llguidance does not know, unless jsonschema does.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, localcontext
from difflib import get_close_matches
from typing import Any, TypeGuard

from charwise.constraints.grammars import Grammar, grammar_of
from charwise.errors import ConstraintError, needs, reason, shorter, shown


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Keywords whose values are a schema, or a list of schemas.
_INNER = _words(
    """additionalItems additionalProperties allOf anyOf contains contentSchema else if items not
    oneOf prefixItems propertyNames then unevaluatedItems unevaluatedProperties"""
)
#: Keywords whose values map names to schemas (or, in `dependencies`, to lists of names).
_NAMED = _words("$defs definitions dependencies dependentSchemas patternProperties properties")
#: All keywords that restrict a text, of drafts 4 to 2020-12.
_KNOWN = (
    _words(
        """$dynamicRef $recursiveRef $ref const dependentRequired enum exclusiveMaximum
        exclusiveMinimum format maxContains maxItems maxLength maxProperties maximum minContains
        minItems minLength minProperties minimum multipleOf pattern required type uniqueItems"""
    )
    | _INNER
    | _NAMED
)
#: In small letters, the keywords that are no plain words.
_COMPOUND = {name.lower(): name for name in _KNOWN if not name.islower()}

#: The formats that llguidance has.
_FORMATS = _words("date-time time date duration email hostname ipv4 ipv6 uuid uri unknown")

#: Limits of numbers, and when a number is within one.
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda number, step: number % step == 0,
}

#: The bounds that llguidance can have, and where doubles are no longer all integers.
_NEAREST, _FARTHEST, _EXACT = 10**18, 2**63 - 2**12, 2**53

#: The automaton of a `multipleOf` has as many states: it takes seconds to make for a million. So
#: many multiples of a fraction are listed.
_MOST_STATES, _MOST_LISTED = 10**6, 256

_NO_NUMBER = {"type": ["null", "boolean", "string", "array", "object"]}

#: Options of llguidance, and how it says that a schema needs one.
_OPTIONS = {"lenient": "Unimplemented keys", "coerce_one_of": "coerce_one_of"}

#: The digits of numbers in a text; more cannot be checked.
_DIGITS = Context(prec=5000)


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
    text = schema
    if not isinstance(schema, str):
        if not isinstance(schema, Mapping | bool):
            raise ConstraintError(f"a JSON schema is an object, not {shown(schema)}.")
        try:
            text = json.dumps(schema if isinstance(schema, bool) else dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(f"the schema cannot be written as JSON: {error}.") from None
    assert isinstance(text, str)
    try:
        exact = read(text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        where = len(text[: getattr(error, "pos", 0)].encode("utf-8", "surrogatepass"))
        more = " Give what is in the file, not its name." if text.endswith(".json") else ""
        what = reason(str(error) or "it has a number of too many digits")
        raise ConstraintError(f"the schema is no JSON: {what}.{more}", where) from None
    if not isinstance(exact, dict | bool):
        raise ConstraintError(f"a JSON schema is an object, not {shown(exact)}.")
    if isinstance(exact, dict) and not isinstance(exact.get("$schema", ""), str):
        raise _wrong(f"$schema is {shown(exact['$schema'])}: it must be the address of a draft")
    loosened = json.dumps(_loosened(exact), default=float)
    # llguidance first, because it says better what is wrong.
    try:
        grammar = grammar_of("the JSON schema", f"start: %json {loosened}")
    except ConstraintError as error:
        for option, sign in _OPTIONS.items():
            if sign in str(error):
                way = f'with "x-guidance": {{"{option}": true}} in it, only valid texts are given'
                raise ConstraintError(f"{error}. But {way}.".replace("..", ".")) from None
        raise
    grammar.check = check_of(text)
    return grammar


def _loosened(schema: Any) -> Any:
    """A schema that llguidance has exactly, so that it allows all that is valid.

    Multiples of a fraction are the exception: llguidance has them with all digits of the step (2.50
    of 0.25), and those that are listed between two bounds with as few as possible (2.5).

    Raises:
        ConstraintError: a misspelt keyword, or a number that cannot be matched exactly.
    """
    if not isinstance(schema, dict):
        return schema
    loosened: dict[str, Any] = {}
    limits: dict[str, int | Decimal] = {}
    for name, value in schema.items():
        if keyword := _meant(name):
            raise _wrong(
                f"{name!r} is no keyword: is it {keyword!r}? An annotation may be called "
                f"{'x-' + name!r}"
            )
        loosened[name] = value
        if name in _NAMED and isinstance(value, dict):
            loosened[name] = {key: _loosened(one) for key, one in value.items()}
        elif name in _INNER:
            several = isinstance(value, list)
            loosened[name] = [_loosened(one) for one in value] if several else _loosened(value)
        elif name in ("const", "enum"):
            for number in _numbers(value):
                if _as_double(number) != number:
                    raise _inexact(name, number, "Write it in quotes, as a string")
        elif name in _LIMITS and _is_number(value):
            limits[name] = loosened.pop(name)
        elif name == "format" and isinstance(value, str):
            if version := re.fullmatch(r"uuid([1-8])", value):  # as pydantic writes it
                loosened = {"pattern": rf"^.{{14}}{version[1]}"} | loosened | {name: "uuid"}
            elif value not in _FORMATS:
                del loosened[name]
    with localcontext(_DIGITS):
        within = _within(limits)
    if isinstance(others := loosened.get("allOf", []), list) and "allOf" in within:
        within["allOf"] += others
    return loosened | within


def _meant(name: str) -> str | None:
    """The keyword that a name is misspelt for. A plain word, such as `types`, is an annotation."""
    if name in _KNOWN or name.startswith("x-"):
        return None
    swapped = {name[:n] + name[n + 1] + name[n] + name[n + 2 :] for n in range(len(name) - 1)}
    if len(name) > 3 and (keywords := swapped & _KNOWN):
        return min(keywords)
    plain = re.sub(r"[^a-z]", "", name.lower())
    # One letter wrong. `propertyName` and `multiple` may be names of their own.
    [near] = get_close_matches(plain, _COMPOUND, 1, 0.85) or [""]
    typo = abs(len(near) - len(plain)) < 2 and near not in (plain + "s", plain[:-1])
    return _COMPOUND.get(near) if typo else None


def _numbers(value: Any) -> Iterator[int | Decimal]:
    """The numbers in a JSON value."""
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)
    elif _is_number(value):
        yield value


def _is_number(value: object) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _as_double(number: int | Decimal) -> Decimal:
    """The number that llguidance writes for another: it has doubles, and their shortest digits."""
    try:
        return Decimal(repr(float(number)))
    except OverflowError:
        return Decimal("inf")


def _within(limits: dict[str, int | Decimal]) -> dict[str, Any]:
    """Limits of numbers as llguidance has them exactly, or looser.

    It leaves out two kinds of number, which are listed beside the limits: those that are a bound
    with fewer digits (0.4 under a maximum of 0.45), and multiples of a fraction between two bounds.

    Raises:
        ConstraintError: a number that cannot be matched exactly.
    """
    step = limits.get("multipleOf", 1)
    places = -min(0, int(Decimal(step).as_tuple().exponent))
    if Decimal(step).scaleb(places) > _MOST_STATES:
        raise _inexact("multipleOf", step, "Give one of few digits, or list the values in enum")
    bounds = {name: _bound(name, limit) for name, limit in limits.items() if name != "multipleOf"}
    loose = limits | bounds
    low, high = (
        [limit for name, limit in limits.items() if name.lower().endswith(end)]
        for end in ("minimum", "maximum")
    )
    listed = places and low and high and min(high) - max(low) <= step * _MOST_LISTED
    if listed:
        first = int(max(low) // step)
        numbers = {step * n for n in range(first - 1, first + _MOST_LISTED + 2)}
    else:
        digits = [str(bound).partition("e")[0].split(".") for bound in bounds.values()]
        numbers = {
            Decimal(f"{whole}.{fraction[:n]}")
            for whole, fraction in (parts for parts in digits if len(parts) == 2)
            for n in range(1, len(fraction))
        }
    inside = sorted(
        number
        for number in numbers
        if all(_LIMITS[name](number, limit) for name, limit in limits.items())
    )
    keywords = {name: limit for name, limit in loose.items() if limit is not None}
    if not inside:
        return keywords
    return {"allOf": [{"anyOf": [_NO_NUMBER if listed else keywords, {"enum": inside}]}]}


def _bound(name: str, bound: int | Decimal) -> int | Decimal | float | None:
    """A bound that llguidance has exactly, at or beyond another; None for none.

    Raises:
        ConstraintError: a bound that cannot be matched.
    """
    way = -1 if name.lower().endswith("minimum") else 1
    if way * bound <= -_NEAREST:
        raise _inexact(name, bound, "Give the values as strings with a pattern, or nearer bounds")
    if way * bound >= _FARTHEST:
        return None
    if abs(int(bound)) > _EXACT:  # beyond it by more than the 1 that llguidance subtracts
        return way * ((way * int(bound) + 2**12) // 2**11 * 2**11)
    return bound if _as_double(bound) == bound else math.nextafter(float(bound), way * math.inf)


def _inexact(name: str, number: int | Decimal, instead: str) -> ConstraintError:
    return _wrong(f"{name} {shorter(str(number))} cannot be matched exactly. {instead}")


def _wrong(what: str) -> ConstraintError:
    return ConstraintError(f"the JSON schema is wrong: {what}.")


class _Exact(Decimal):
    """A number with a fraction or an exponent; messages show its digits alone."""

    __repr__ = Decimal.__str__


def read(text: str) -> Any:
    """A JSON text as Python objects, whose numbers are `int` or `Decimal`.

    Raises:
        ValueError, ArithmeticError: no JSON, a repeated key, or a number too large.
    """
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


def check_of(schema: str) -> Callable[[bytes], str | None]:
    """Return the check of finished texts: why one is not valid JSON of a schema; None if it is.

    The draft is that which the schema names.

    Args:
        schema: as JSON text.

    Raises:
        ConstraintError: what no draft of JSON schema allows as a schema, and where.
        MissingExtraError: if jsonschema is not installed.

    >>> check = check_of('{"properties": {"day": {"format": "date"}}}')
    >>> check(b'{"day": "2024-02-29"}')
    >>> check(b'{"day": "2023-02-29"}'), check(b'{"a": 1, "a": 2}')
    ("'2023-02-29' is not a 'date'", "the key 'a' is repeated")
    """
    with needs("constraints", "JSON schemas need jsonschema"):
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY  # without it, references are downloaded
    parsed = read(schema)
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
                error = next(validator.iter_errors(read(text.decode())), None)
        except Exception as error:  # a pattern or a reference that Python cannot follow, a number
            # too large for it, a text too deep: nothing has said that the text is valid.
            return reason(str(error) or "it cannot be checked")
        return None if error is None else reason(error.message)

    return fault
