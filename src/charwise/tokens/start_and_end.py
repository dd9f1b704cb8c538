"""Which token begins a text, and which tokens end one.

A model of chats may name a marker of turns as its start token (`<|im_start|>`) and as its end token
(`<|im_end|>`). Plain text follows neither in its training data: documents are separated by an
end-of-document token there (`<|endoftext|>`). So a text begins after the start token that the
tokenizer itself adds, else after the one that it names, unless that is a marker of turns, else
after the end-of-document token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from charwise.tokens.sentinels import ENDS, TURNS

#: Tokens that separate documents, as model families spell them.
DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")

#: Markers of turns, which plain text does not have.
TURN_MARKERS = TURNS | {
    *("<|im_start|>", "<start_of_turn>", "<|start_of_role|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|user|>", "<|assistant|>", "<|system|>"),
}

_MARKUP = re.compile(r"[<\[{(].*[>\])}]|[<▁\[]*(?:EOS|EOT|eos)[>\]]*", re.DOTALL)


class StartAndEnd(NamedTuple):
    """The start and the end of a text, each with a sentence that says where it comes from."""

    bos_ids: tuple[int, ...]
    bos_rule: str
    end_ids: tuple[int, ...]
    end_rule: str


def start_and_end(
    special: Mapping[int, str],
    tokens: Sequence[bytes | None],
    *,
    added: Sequence[int] = (),
    start: int | None = None,
    end: int | None = None,
    configured: Iterable[int] = (),
) -> StartAndEnd:
    """The start and the end of a text, of what a tokenizer and a configuration name.

    Args:
        special: id → spelling, of the special tokens.
        tokens: the bytes of each id, for those that are words.
        added: ids that the tokenizer itself puts before a text.
        start, end: the tokenizer's start and end token.
        configured: the end tokens of the model's configuration. Words among them are ignored.
    """
    configured = list(configured)
    words = [id for id in configured if id != end and id not in special and _is_word(id, tokens)]
    ends = [] if end is None else [end]
    ends += [id for id in configured if id not in words and id not in ends]
    rule = "as the tokenizer and the model's configuration say"
    plain = [id for id in ends if special.get(id) not in TURN_MARKERS]
    ids = {name: id for id, name in special.items()}
    known = next((ids[name] for name in DOCUMENT_ENDS if name in ids), None)
    if not plain and known is not None:
        plain = [known]
        rule = f"{special[known]}, which ends a document; others {rule}" if ends else special[known]
    if words:
        listed = ", ".join(
            f"{id} ({(tokens[id] or b'').decode('utf-8', 'replace')!r})" for id in words
        )
        rule += f"; the configuration's end token {listed} is a word, and is ignored"
    separator = next(iter([*plain, *ends]), None)
    control = [id for id, name in special.items() if name in ENDS]
    all_ends = tuple(sorted({*ends, *plain, *control}))
    if not all_ends and not words:
        rule = "no end-of-text token exists"
    first, why = _start(special, added, start, separator)
    return StartAndEnd(first, why, all_ends, f"{rule}.")


def _is_word(id: int, tokens: Sequence[bytes | None]) -> bool:
    """Whether an id is a token of text that does not look like markup, such as `</s>`."""
    token = tokens[id] if 0 <= id < len(tokens) else None
    return token is not None and not _MARKUP.fullmatch(token.decode("utf-8", "replace"))


def _start(
    special: Mapping[int, str], added: Sequence[int], start: int | None, separator: int | None
) -> tuple[tuple[int, ...], str]:
    """The ids before any text, and the sentence that says why these."""
    if added:
        return tuple(added), "the start token that the tokenizer itself adds."
    if start is not None and special.get(start) not in TURN_MARKERS:
        return (start,), "the tokenizer's start token, which it does not add."
    if separator is None and start is not None:
        return (start,), "the tokenizer's start token, though it is a marker of turns."
    if separator is None:
        return (), "neither a start token nor an end-of-text token exists."
    if start is None:
        return (separator,), "no start token exists: conditioned on the end-of-text token instead."
    return (separator,), (
        f"{special.get(separator)}, which ends a document: the tokenizer's start token "
        f"{special[start]} is a marker of turns, which it does not add."
    )
