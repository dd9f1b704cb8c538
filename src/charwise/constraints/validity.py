"""Whether a finished JSON text is valid, by the `jsonschema` package: the last word on a schema.

llguidance decides what may follow, and allows too much: a repeated key, a key that is spelled with
an escape, the 29th of February of any year. So a text may end only where this module agrees.

Numbers are read twice: as Python's `json` reads them, and exactly. A text is valid if it is valid
both ways, so that readers of either kind agree.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from charwise.constraints.constraint import Constraint
from charwise.errors import ConstraintError, needs, reason, shorter

#: Larger powers of ten are not written out.
_MOST_DIGITS = 4000

#: Where a value is wrong because of another one, which may come later.
_CONDITIONAL = {
    "then",
    "else",
    "dependencies",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
}

_STRING = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}

Path = tuple[str | int, ...]


class Fault(NamedTuple):
    """Why a text is not valid.

    Attributes:
        why: the reason, in one line.
        dead: every text that begins with so many bytes of this one is invalid as well.
    """

    why: str
    dead: int


class Validity:
    """The check of finished texts against one JSON schema.

    Args:
        schema: the schema as JSON text.

    Raises:
        ConstraintError: what no draft of JSON schema allows as a schema, and where.
        MissingExtraError: if jsonschema is not installed.

    >>> check = Validity('{"properties": {"day": {"format": "date"}}}')
    >>> check.fault(b'{"day": "2024-02-29"}')
    >>> check.fault(b'{"day": "2023-02-29", "x": 1}')
    Fault(why="'2023-02-29' is not a 'date'", dead=20)
    >>> check.fault(b'{"a": 1, "a": 2}')
    Fault(why="the key 'a' is repeated", dead=12)
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        with needs("constraints", "JSON schemas need jsonschema"):
            from jsonschema.exceptions import SchemaError
        try:
            self._kind.check_schema(json.loads(schema))
        except SchemaError as error:
            where = "".join(f"[{step!r}]" for step in error.absolute_path)
            raise ConstraintError(
                f"the JSON schema is wrong{where and ' at '}{where}: {reason(error.message)}."
            ) from None

    @cached_property
    def _kind(self) -> Any:
        """The draft that the schema names, or the newest."""
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for

        return validator_for(json.loads(self.schema), default=Draft202012Validator)

    @cached_property
    def _validators(self) -> tuple[Any, Any]:
        """The schema with the numbers of Python's `json`, and with exact ones."""
        from jsonschema_specifications import REGISTRY  # without it, references are downloaded

        made = (json.loads(self.schema), read(self.schema)[0])
        checker = self._kind.FORMAT_CHECKER
        plain, exact = (
            self._kind(schema, registry=REGISTRY, format_checker=checker) for schema in made
        )
        return plain, exact

    def fault(self, text: bytes) -> Fault | None:
        """Why a text is not valid JSON of the schema; None if it is.

        >>> Validity('{"const": 9007199254740993}').fault(b"9007199254740992").why
        '9007199254740993 was expected'
        """
        try:
            characters = text.decode()
            plain = json.loads(characters, parse_constant=_no_number)
            exact, ends = read(characters)
            errors = [
                error
                for validator, value in zip(self._validators, (plain, exact), strict=True)
                for error in validator.iter_errors(value)
            ]
        except _Repeated as error:
            return Fault(str(error), len(characters[: error.end].encode()))
        except Exception as error:  # a pattern or a reference that Python cannot follow, a number
            # too large for it, a text too deep: nothing has said that the text is valid.
            return Fault(reason(f"it cannot be checked: {error}"), len(text) + 1)
        if not errors:
            return None
        end, open_ended, why = min(_blamed(error, ends) for error in errors)
        return Fault(reason(why), len(characters[:end].encode()) + open_ended)

    def __reduce__(self) -> tuple[Any, ...]:
        return Validity, (self.schema,)


def _blamed(error: Any, ends: dict[Path, int]) -> tuple[int, bool, str]:
    """Where the value ends that an error is in, whether a longer one might do, and the reason."""
    if not _CONDITIONAL.isdisjoint(error.absolute_schema_path):
        return ends[()], True, error.message
    # A number is over only with the byte after it.
    open_ended = not isinstance(error.instance, str | dict | list)
    return ends[tuple(error.absolute_path)], open_ended, error.message


def read(text: str) -> tuple[Any, dict[Path, int]]:
    """A JSON text with exact numbers, and where each of its values ends.

    Args:
        text: what `json.loads` can read.

    Returns:
        The value, whose numbers are `int` or `Fraction`; the offset behind each value, by its path.

    Raises:
        ValueError: a repeated key, or a number of thousands of digits.

    >>> read('[1.0, 0.5]')
    ([1, Fraction(1, 2)], {(0,): 4, (1,): 9, (): 10})
    """
    ends: dict[Path, int] = {}
    return _value(text, _space(text, 0), (), ends)[0], ends


class _Repeated(ValueError):
    """A key that is there twice."""

    def __init__(self, key: str, end: int) -> None:
        super().__init__(f"the key {key!r} is repeated")
        self.end = end


def _value(text: str, at: int, path: Path, ends: dict[Path, int]) -> tuple[Any, int]:
    """The value at a place, and where it ends."""
    value: Any
    first = text[at]
    if first == '"':
        value, end = _STRING.raw_decode(text, at)
    elif first in "{[":
        value, end = _members(text, at, path, ends)
    elif first in _WORDS:
        word, value = _WORDS[first]
        end = at + len(word)
    else:
        found = _NUMBER.match(text, at)
        assert found is not None
        value, end = _number(found), found.end()
    ends[path] = end
    return value, end


def _members(text: str, at: int, path: Path, ends: dict[Path, int]) -> tuple[Any, int]:
    """The object or the array at a place, and where it ends."""
    close = "}" if text[at] == "{" else "]"
    found: dict[Any, Any] = {}
    at = _space(text, at + 1)
    while text[at] != close:
        key: Any = len(found)
        if close == "}":
            key, at = _STRING.raw_decode(text, at)
            if key in found:
                raise _Repeated(key, at)
            at = _space(text, _space(text, at) + 1)  # the colon
        found[key], at = _value(text, at, (*path, key), ends)
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    return found if close == "}" else list(found.values()), at + 1


def _space(text: str, at: int) -> int:
    """Where whitespace ends."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _number(found: re.Match[str]) -> int | Fraction:
    """A number, exactly."""
    fraction, power = found[1], found[2]
    if not fraction and not power:
        return int(found[0])
    if power and abs(int(power[1:])) > _MOST_DIGITS:
        raise ValueError(f"{shorter(found[0])} has too many digits")
    exact = Fraction(found[0])
    return int(exact) if exact.denominator == 1 else exact


def _no_number(name: str) -> None:
    """Refuse a number that JSON does not have.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no JSON")


def has_check(constraint: Constraint | None) -> bool:
    """Whether finished texts under a constraint are checked as a whole.

    >>> from charwise.constraints import choices, json_schema
    >>> has_check(json_schema({"type": "null"})), has_check(choices(["a"])), has_check(None)
    (True, False, False)
    """
    return getattr(constraint, "check", None) is not None


def fault_of(constraint: Constraint) -> Fault | None:
    """Why the text that brought a constraint here is not valid; None if it is, or is not checked.

    >>> from charwise.constraints import json_schema
    >>> fault_of(json_schema({"multipleOf": 0.1}).after(b"0.3")).why
    '0.3 is not a multiple of 0.1'
    """
    found: Fault | None = getattr(constraint, "fault", None)
    return found
