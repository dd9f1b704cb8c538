"""The keywords of JSON schema, so that a misspelt one is not taken for an annotation.

The standard has a validator pass over what it does not know. A schema whose `minLength` is
misspelt then allows every string, in silence.
"""

from __future__ import annotations

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
_NAMED = _words("$defs definitions dependencies dependentSchemas patternProperties properties")
#: Of drafts 4 to 2020-12, and what OpenAPI and its generators add that restricts nothing.
_OTHERS = _words(
    """$anchor $comment $dynamicAnchor $dynamicRef $id $recursiveAnchor $recursiveRef $ref $schema
    $vocabulary const contentEncoding contentMediaType default dependentRequired deprecated
    description enum examples exclusiveMaximum exclusiveMinimum format id maxContains maxItems
    maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf
    pattern readOnly required title type uniqueItems writeOnly
    discriminator example externalDocs xml"""
)
_KNOWN = _ONE_OR_MORE | _NAMED | _OTHERS


def unknown_keyword(schema: object) -> str | None:
    """The first keyword that no draft of JSON schema has, with one it may be meant for.

    Keywords that begin with `x-` are annotations.

    >>> unknown_keyword({"properties": {"minLenght": {"minLenght": 3}}})
    "'minLenght' is no keyword: is it 'minLength'?"
    """
    left = [schema]
    while left:
        one = left.pop()
        if not isinstance(one, Mapping):
            continue
        for name in one:
            if name not in _KNOWN and not str(name).startswith("x-"):
                near = get_close_matches(str(name), _KNOWN, 1)
                return f"{name!r} is no keyword" + (f": is it {near[0]!r}?" if near else ".")
        left.extend(_inner(one))
    return None


def _inner(schema: Mapping[Any, Any]) -> Iterator[object]:
    """The schemas in a schema."""
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif name in _ONE_OR_MORE:
            yield from value if isinstance(value, list | tuple) else [value]
