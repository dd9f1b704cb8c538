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

from __future__ import annotations

from charwise.constraints.arguments import ConstraintKeywords, both, constraint_of
from charwise.constraints.constraint import Constraint, choices
from charwise.constraints.grammars import grammar, regex
from charwise.constraints.schemas import json_schema

__all__ = [
    "Constraint",
    "ConstraintKeywords",
    "both",
    "choices",
    "constraint_of",
    "grammar",
    "json_schema",
    "regex",
]
