"""Random JSON schemas of several kinds, all of whose members are of bounded length."""

from __future__ import annotations

import random
from typing import Any

KINDS = ("object", "array", "enum", "pattern", "integer", "number", "string", "choice")

PATTERNS = (
    "[a-z]{1,8}",
    "[0-9]{4}-[01][0-9]-[0-3][0-9]",
    "(GET|PUT|POST) /[a-z]{1,6}",
    "#[0-9a-f]{6}",
)


def schemas(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """So many schemas, each kind at the top in turn."""
    rng = random.Random(seed)
    return [_schema(rng, KINDS[n % len(KINDS)], depth=2) for n in range(count)]


def _schema(rng: random.Random, kind: str, depth: int) -> dict[str, Any]:
    def inner() -> dict[str, Any]:
        leaves = KINDS[2:] if depth == 0 else KINDS
        return _schema(rng, rng.choice(leaves), max(0, depth - 1))

    if kind == "object":
        names = rng.sample(["name", "kind", "x", "größe", "tags", "a b"], rng.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: inner() for name in names},
            "required": rng.sample(names, rng.randint(1, len(names))),
            "additionalProperties": False,
        }
    if kind == "array":
        least = rng.randint(0, 2)
        return {
            "type": "array",
            "items": inner(),
            "minItems": least,
            "maxItems": least + rng.randint(1, 2),
        }
    if kind == "enum":
        values = [True, None, 3, "red", "naïve", {"a": [1]}, 2.5]
        return {"enum": rng.sample(values, rng.randint(1, 4))}
    if kind == "pattern":
        return {"type": "string", "pattern": f"^{rng.choice(PATTERNS)}$"}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if kind == "number":
        return {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": rng.randint(1, 9),
            "multipleOf": 0.25,
        }
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 12)}
    return {"anyOf": [_schema(rng, "integer", 0), _schema(rng, "enum", 0)]}
