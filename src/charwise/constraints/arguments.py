"""The arguments that name a constraint: one keyword of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from charwise.constraints.choices import choices
from charwise.constraints.constraint import Constraint, checked
from charwise.constraints.grammars import lark, regex
from charwise.constraints.schemas import json_schema
from charwise.errors import ConstraintError, check_known, shown


class ConstraintKeywords(TypedDict, total=False):
    """The constraints on a completion: at most one of these.

    Attributes:
        regex: a regular expression that all of it matches.
        json_schema: a schema, as Python objects or as JSON text.
        grammar: a grammar in Lark's notation.
        choices: one of these strings.
        constraint: any `Constraint`, for example `both(regex("…"), choices([…]))`.
    """

    regex: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    grammar: str | None
    choices: Iterable[str | bytes] | None
    constraint: Constraint | None


_MAKERS: dict[str, Callable[[Any], Constraint]] = {
    "constraint": checked,
    "regex": regex,
    "json_schema": json_schema,
    "grammar": lark,
    "choices": choices,
}


def constraint_of(may_follow: ConstraintKeywords) -> Constraint | None:
    """The constraint that was asked for; None if none was.

    Raises:
        ConstraintError: two of them, or one that is wrong.
        TypeError: another keyword.

    >>> constraint_of({"choices": ["yes", "no"]}), constraint_of({})
    (Choices(2 left, from b'no, yes' on), None)
    """
    if not isinstance(may_follow, Mapping):
        raise ConstraintError(f"{shown(may_follow)} is no constraint: give a dict of keywords.")
    given = {name: value for name, value in may_follow.items() if value is not None}
    check_known(given, ConstraintKeywords.__optional_keys__)
    if not given:
        return None
    if len(given) > 1:
        raise ConstraintError(
            f"{' and '.join(sorted(given))} are given: give one, or constraint=both(…, …)."
        )
    [(name, value)] = given.items()
    return _MAKERS[name](value)
