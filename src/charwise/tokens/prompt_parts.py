"""The forms of a prompt, and its parts.

One meaning everywhere: text or bytes are a prompt, and so is a list with a token id in it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeGuard

from charwise.errors import SettingError, VocabularyError, items, shown

#: Text, bytes, or a list of those and of token ids.
Prompt = str | bytes | bytearray | memoryview | Sequence["str | bytes | int"]


def is_text(prompt: object) -> TypeGuard[str | bytes | bytearray | memoryview]:
    """Whether a prompt is one text, and no list.

    >>> is_text(b"ab"), is_text(bytearray(b"ab")), is_text(["ab"])
    (True, True, False)
    """
    return isinstance(prompt, str | bytes | bytearray | memoryview)


def parts_of(prompt: Prompt) -> list[str | bytes | int]:
    """A prompt as a list of texts and token ids.

    A list is one prompt if it holds a token id, or a single text. Several texts alone could as
    well be several prompts, so they are refused.

    Raises:
        VocabularyError: for what is no prompt.

    >>> parts_of("ab"), parts_of([0, b"ab"])
    (['ab'], [0, b'ab'])
    """
    if is_text(prompt):
        return [_part(prompt)]
    if isinstance(prompt, Mapping | Set) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    try:
        parts = [_part(part) for part in prompt]
    except TypeError:  # an array without a dimension
        raise _no_prompt(prompt) from None
    if len(parts) > 1 and not any(isinstance(part, int) for part in parts):
        raise VocabularyError(
            f"a list of {len(parts)} texts is not one prompt: join them, or give them one by one. "
            "A list is one prompt if it has a token id in it."
        )
    return parts


def prompts_of(name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Several prompts, as a list.

    Args:
        name: of the argument that they are.
        prompts: the prompts.

    Raises:
        SettingError: one alone, or what has no order.

    >>> prompts_of("prompts", ("a", "b"))
    ['a', 'b']
    """
    listed = None if isinstance(prompts, Set) else items(prompts)
    if listed is None:
        raise SettingError(
            f"{name} are a list of texts, not {shown(prompts)}: put one text into a list."
        )
    return listed


def _part(part: object) -> str | bytes | int:
    """A text, bytes or a token id, as such."""
    if isinstance(part, str | bytes):
        return part
    if isinstance(part, bytearray | memoryview):
        return bytes(part)
    try:
        if isinstance(part, bool):
            raise TypeError
        return operator.index(part)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise VocabularyError(
            f"a part of a prompt is text, bytes or a token id, not {shown(part)}."
        ) from None


def _no_prompt(prompt: object) -> VocabularyError:
    return VocabularyError(
        f"a prompt is text, bytes, or a list of texts and token ids, not {shown(prompt)}."
    )
