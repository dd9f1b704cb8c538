"""The forms of a prompt: text or bytes are one, and so is a list with a token id in it."""

import operator
from collections.abc import Sequence, Set
from typing import NamedTuple, TypeGuard

from charwise.errors import SettingError, VocabularyError, items, quote
from charwise.tokens.canonical import to_bytes

#: Text, bytes, or a list of those and of token ids.
Prompt = str | bytes | bytearray | memoryview | Sequence["str | bytes | int"]


class PromptStart(NamedTuple):
    """The start of a text: token ids, and the bytes that the tokenizer implies after them."""

    ids: tuple[int, ...]
    implied_prefix: bytes


def is_text(prompt: object) -> TypeGuard[str | bytes | bytearray | memoryview]:
    """Whether a prompt is one text, and no list."""
    return isinstance(prompt, str | bytes | bytearray | memoryview)


def parts_of(prompt: Prompt) -> list[str | bytes | int]:
    """Return a prompt as a list of texts and token ids.

    Several texts without a token id could as well be several prompts, so they are refused.
    """
    if is_text(prompt):
        return [_part(prompt)]
    listed = None if isinstance(prompt, Set) else items(prompt)
    if listed is None:
        raise VocabularyError(
            f"a prompt is text, bytes, or a list of texts and token ids, not {quote(prompt)}."
        )
    parts = [_part(part) for part in listed]
    if len(parts) > 1 and not any(isinstance(part, int) for part in parts):
        raise VocabularyError(
            f"a list of {len(parts)} texts is not one prompt: join them, or give them one by one. "
            "A list is one prompt if it has a token id in it."
        )
    return parts


def prompts_of(name: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return several prompts, the argument of this name, as a list; refuse one alone."""
    listed = None if isinstance(prompts, Set) else items(prompts)
    if listed is None:
        raise SettingError(
            f"{name} are a list of texts, not {quote(prompts)}: put one text into a list."
        )
    return listed


def last_text(parts: list[str | bytes | int]) -> tuple[list[str | bytes | int], bytes]:
    """Return the parts up to the last token id, and the text after it."""
    last = max((n for n, p in enumerate(parts) if not isinstance(p, str | bytes)), default=-1)
    text = b"".join(to_bytes(part) for part in parts[last + 1 :])  # type: ignore[arg-type]
    return parts[: last + 1], text


def _part(part: object) -> str | bytes | int:
    """A text, bytes or a token id, as such."""
    if type(part) is int or isinstance(part, str | bytes):  # ids first: prompts have thousands
        return part
    if isinstance(part, bytearray | memoryview):
        return bytes(part)
    try:
        if isinstance(part, bool):
            raise TypeError
        return operator.index(part)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise VocabularyError(
            f"a part of a prompt is text, bytes or a token id, not {quote(part)}."
        ) from None
