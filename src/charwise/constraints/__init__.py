"""Constraints over bytes: regular expressions, JSON schemas, grammars, lists of choices.

A constraint is an immutable value that says which bytes may come next, whether the text may end,
and what it becomes after a byte. It knows no model; `CharLM.complete(…, regex=…)` and
`State.next(constraint)` put the two together. docs/constraints.md shows how.

>>> from charwise import constraints
>>> constraint = constraints.choices(["yes", "no"])
>>> bytes(constraint.allowed().nonzero()[0].tolist())
b'ny'
>>> constraint.after(b"n").after(b"o").allowed().nonzero()[0].tolist()  # 256: it may end here
[256]
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from charwise.constraints.constraint import Constraint, checked, choices
from charwise.constraints.grammars import grammar, regex
from charwise.constraints.schemas import json_schema
from charwise.errors import ConstraintError

__all__ = [
    "Constraint",
    "ConstraintKeywords",
    "choices",
    "constraint_of",
    "grammar",
    "json_schema",
    "regex",
]


class ConstraintKeywords(TypedDict, total=False):
    """The constraints on a completion: at most one of these.

    Attributes:
        regex: a regular expression that all of it matches.
        json_schema: a schema, as Python objects or as JSON text.
        grammar: a grammar in Lark's notation, or in llama.cpp's GBNF.
        choices: one of these strings.
        constraint: any `Constraint`, for example `regex("…").after("…")`.
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
    "grammar": grammar,
    "choices": choices,
}


def constraint_of(may_follow: ConstraintKeywords) -> Constraint | None:
    """The constraint that was asked for; None if none was."""
    keywords = {name: value for name, value in may_follow.items() if value is not None}
    if len(keywords) > 1:
        raise ConstraintError(f"{' and '.join(sorted(keywords))} are given: give one of them.")
    return next((_MAKERS[name](value) for name, value in keywords.items()), None)
