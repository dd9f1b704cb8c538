"""The reading of a prompt: its text, and the part that is conditioned on."""

from __future__ import annotations

from typing import NamedTuple

from charwise.errors import SettingError
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompt_parts import Prompt, parts_of
from charwise.tokens.vocabulary import Vocabulary


class PromptStart(NamedTuple):
    """The opening of a text: token ids, and the bytes that the tokenizer implies after them.

    >>> PromptStart(ids=(0,), implied_prefix=b" ").implied_prefix
    b' '
    """

    ids: tuple[int, ...]
    implied_prefix: bytes


def split(vocabulary: Vocabulary, prompt: Prompt) -> tuple[PromptStart, bytes]:
    """Return the opening of a prompt, and its text, which the implied prefix begins.

    Everything up to the last token id is the opening; one that does not begin with a special
    token follows the start token.

    Raises:
        VocabularyError: for what is no prompt, or what no token spells before the last id.
        SettingError: for a model with neither a start nor an end token, and no id given.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    >>> split(vocabulary, "ab"), split(vocabulary, [2, "a", 0, "b"])[0].ids
    ((PromptStart(ids=(2,), implied_prefix=b''), b'ab'), (2, 0, 0))
    """
    return split_parts(vocabulary, parts_of(prompt))


def split_parts(
    vocabulary: Vocabulary, parts: list[str | bytes | int]
) -> tuple[PromptStart, bytes]:
    """`split` of a prompt's parts, such as those of a context and of the text after it.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    >>> split_parts(vocabulary, ["a", b"b"])
    (PromptStart(ids=(2,), implied_prefix=b''), b'ab')
    """
    before, text = last_text(parts)
    ids = vocabulary.encode_prompt(before)
    if not ids or vocabulary.tokens[ids[0]] is not None:
        ids = [*vocabulary.bos_ids, *ids]
    if not ids:
        raise SettingError(
            "this model has no start token and no end token, so nothing to condition an "
            "empty context on. Begin the prompt with a token id: [id, 'text']."
        )
    # The tokenizer implies its leading space at the start of a text only.
    lead = vocabulary.implied_prefix if tuple(ids) == vocabulary.bos_ids else b""
    return PromptStart(tuple(ids), lead), lead + text


def last_text(parts: list[str | bytes | int]) -> tuple[list[str | bytes | int], bytes]:
    """Return the parts up to the last token id, and the text after it.

    >>> last_text(["a", 0, "b", b"c"])
    (['a', 0], b'bc')
    """
    last = max((n for n, p in enumerate(parts) if not isinstance(p, str | bytes)), default=-1)
    text = b"".join(to_bytes(part) for part in parts[last + 1 :])  # type: ignore[arg-type]
    return parts[: last + 1], text
