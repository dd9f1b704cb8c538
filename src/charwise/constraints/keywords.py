"""The keywords of JSON schema, so that a misspelt one is not taken for an annotation.

The standard has a validator pass over what it does not know. A schema whose `minLength` is
misspelt then allows every string, in silence: what looks like a keyword that restricts is refused.
All else that is unknown is an annotation, as the standard has it (`nullable`, `x-order`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any


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


def misspelt_keyword(schema: object) -> str | None:
    """The first name in a schema that is nearly a keyword which restricts, and that keyword.

    >>> misspelt_keyword({"properties": {"minLenght": {"minLenght": 3}}})
    "'minLenght' is no keyword: is it 'minLength'? An annotation may be called 'x-minLenght'."
    >>> misspelt_keyword({"type": "string", "nullable": True, "note": "a", "examples": ["b"]})
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
