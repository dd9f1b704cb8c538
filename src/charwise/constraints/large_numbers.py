"""Numbers of a JSON schema that llguidance would round: it keeps them as doubles.

Bounds are moved outwards to a number that it matches exactly. It then allows a little more than
the schema, and the check of finished texts (`validity.py`) has the last word. What cannot be
matched so is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, TypeGuard

from charwise.constraints.constraint import finite
from charwise.constraints.grammars import grammar_of
from charwise.constraints.keywords import NAMED
from charwise.constraints.validity import read
from charwise.errors import ConstraintError, shorter

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


def loosened(schema: Any) -> Any:
    """A schema with bounds that llguidance matches exactly, so that it allows all that is valid.

    Args:
        schema: with exact numbers, as `validity.read` has them.

    Raises:
        ConstraintError: a number that cannot be matched exactly.

    >>> loosened({"maximum": 2**53 + 1, "items": {"minimum": -(2**70)}})
    {'maximum': 9007199254740994, 'items': {}}
    """
    if isinstance(schema, list):
        return [loosened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for name, value in schema.items():
        if name in NAMED and isinstance(value, dict):
            out[name] = {key: loosened(one) for key, one in value.items()}
        elif name in ("const", "enum"):
            for number in unwritable(value):
                raise _refused(name, number, "Write it in quotes, as a string")
            out[name] = value
        elif name == "multipleOf" and _is_number(value):
            out[name] = _multiple(value)
        elif name in _BOUNDS and _is_number(value):
            bound = _bound(name, value)
            if bound is not None:
                out[name] = bound
        else:
            out[name] = value if name in _DATA else loosened(value)
    return out


def unwritable(value: Any) -> Iterator[Number]:
    """The numbers in a JSON value that llguidance writes as others.

    >>> list(unwritable([1, {"id": 2**53 + 1}]))
    [9007199254740993]
    """
    if isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from unwritable(one)
    elif _is_number(value) and _doubtful(value) and not _writes(value):
        yield value


def whole_only(numbers: Iterator[Number]) -> bool:
    """Whether there are numbers, and all of them are integers.

    >>> whole_only(iter([1])), whole_only(iter([])), whole_only(iter([Fraction(1, 3)]))
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
