"""What may follow, as outlines-core has it: another matcher, made from the same expressions.

Where a text may end, outlines-core 0.2 leaves out the bytes with which an optional part of
several bytes begins (`a(bc)?` after `a`), so there it may list fewer.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from charwise import constraints
from charwise.constraints.constraint import END, Constraint
from charwise.errors import ConstraintError

pytest.importorskip("llguidance")
outlines_core = pytest.importorskip("outlines_core")

EXPRESSIONS = [
    r"(yes|no)\.",
    r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8})?",
    r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,4})?",
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]",
    r"(naï|é){2,5}ve",
    r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]){0,12}"',
    r"(foo|foobar|bar)+;",
    r"#[0-9a-fA-F]{6}",
]

SCHEMAS = [
    {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": [1, 22, None]}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"n": {"type": "null"}},
        "required": ["n"],
        "additionalProperties": False,
    },
]


def walk(constraint: Constraint, expression: str, prefixes: int, seed: int) -> int:
    """Compare at the prefixes of random members, and one byte off them; how many were compared."""
    vocabulary = outlines_core.Vocabulary(END, {bytes([byte]): [byte] for byte in range(END)})
    index = outlines_core.Index(expression, vocabulary)
    rng, seen = random.Random(seed), 0
    while seen < prefixes:
        here, state = constraint, index.get_initial_state()
        for _ in range(60):
            allowed = here.allowed()
            others = set(index.get_allowed_tokens(state)) - {END}
            ours = set(np.flatnonzero(allowed[:END]).tolist())
            final = index.is_final_state(state)
            assert bool(allowed[END]) == final
            assert others <= ours if final else others == ours
            seen += 1
            wrong = rng.choice([byte for byte in range(END) if byte not in ours])
            with pytest.raises(ConstraintError):
                here.after(bytes([wrong]))
            if not others:
                break
            byte = rng.choice(sorted(others))
            here, state = here.after(bytes([byte])), index.get_next_state(state, byte)
    return seen


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression: str) -> None:
    assert walk(constraints.regex(expression), expression, 500, seed=1) >= 500


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas(schema: dict[str, object]) -> None:
    """White space apart, of which its expression and our grammar allow different amounts."""
    expression = outlines_core.json_schema.build_regex_from_schema(json.dumps(schema))
    vocabulary = outlines_core.Vocabulary(END, {bytes([byte]): [byte] for byte in range(END)})
    index = outlines_core.Index(expression, vocabulary)
    constraint = constraints.json_schema(schema)
    rng = random.Random(1)
    for _ in range(100):
        here, state = constraint, index.get_initial_state()
        while True:
            allowed = set(np.flatnonzero(here.allowed()[:END]).tolist()) - set(b" \n\t\r")
            others = set(index.get_allowed_tokens(state)) - {END} - set(b" ")
            assert allowed == others
            if not allowed:
                assert here.allowed()[END]
                assert index.is_final_state(state)
                break
            byte = rng.choice(sorted(allowed))
            here, state = here.after(bytes([byte])), index.get_next_state(state, byte)
