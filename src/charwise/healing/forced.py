"""Token healing: where to cut a prompt, and which tokens may follow the cut.

    kept, forced = cut("-> Nod", index)               # ids of "->", and b" Nod"
    left = remaining(forced, generated, vocabulary)   # after every step, from all tokens so far
    ids = allowed_next(left, index)                   # start with `left`, or are a prefix of it

Masking renormalises at each step, which is not conditioning: a short prefix token is weighed by
its own probability, not by that of what may follow it. `charwise.cursor.generation` is exact.
"""

import re
import string
from collections.abc import Iterable
from typing import Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, quote
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, is_text, last_text, parts_of
from charwise.tokens.vocabulary import Vocabulary

#: "auto" | "word" | "off", or how many tokens to remove.
Rule = Literal["auto", "word", "off"] | int


class Cut(NamedTuple):
    """A prompt cut in two: the token ids to keep, and the bytes to reproduce after them."""

    kept: list[int]
    forced: bytes


class HealedPrompt(NamedTuple):
    """A prompt cut in two, and what the bytes of its completion begin and end with.

    Attributes:
        kept: token ids of the prompt.
        forced: bytes that the completion must begin with.
        removed_tokens: how many tokens of the prompt were removed.
        ending: bytes that a middle must end with (`healing.fim`): the beginning of the suffix.
        before: the last bytes of the text that goes on, for a character that begins there.
        opening: of a middle, how many of the ids come up to the last sentinel; those after it are
            prefix (SPM).
        prefix_cut, suffix_cut: of a middle, bytes left out to fit the window, at the start of the
            prefix and at the end of the suffix.
    """

    kept: list[int]
    forced: bytes
    removed_tokens: int
    ending: bytes = b""
    before: bytes = b""
    opening: int = 0
    prefix_cut: int = 0
    suffix_cut: int = 0

    def regex(self) -> str:
        r"""The regular expression of all texts that begin with the forced bytes.

        Under it, an engine's guided decoding allows the tokens of `healing.allowed_next`. Bytes
        that are not whole characters, or have a NUL, are a `VocabularyError`.
        """
        return re.sub(r"([\\^$.|?*+()\[\]{}/-])", r"\\\1", self._forced_text()) + "(.|\\n)*"

    def gbnf(self) -> str:
        r"""The same as a grammar of llama.cpp, with the same error."""
        plain = frozenset(string.ascii_letters + string.digits + " _=.,:;()+-*/")
        literal = "".join(
            one if one in plain else f"\\U{ord(one):08X}" for one in self._forced_text()
        )
        return f'root ::= "{literal}" .*'

    def lookalikes(self, vocabulary: Vocabulary) -> list[int]:
        """Ids of control tokens that a grammar may take for forced text: `<|im_start|>` for `<`."""
        text = self.forced.decode("utf-8", "replace")
        ends = [text[at:] for at in range(len(text))]
        return [
            id
            for id, name in vocabulary.special.items()
            if name and any(end.startswith(name) or name.startswith(end) for end in ends)
        ]

    def _forced_text(self) -> str:
        try:
            text = self.forced.decode()
        except UnicodeDecodeError:
            raise VocabularyError(
                f"{quote(self.forced)} is not whole characters: an expression over characters "
                "cannot force it. Give back one token more."
            ) from None
        if "\0" in text:
            raise VocabularyError("a NUL cannot be forced: no grammar lets it through.")
        return text


def cut(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> Cut:
    """Cut a prompt where healing should start.

    Args:
        prompt: text and bytes get the start token and the leading space that the tokenizer would
            give them; a list of token ids and texts is taken as it is.
        index: of the model's vocabulary.
        rule: "auto" finds the earliest position from which some token would
            run past the end of the prompt, and cuts at the token boundary at or before it (so
            nothing is cut if no token does). A number removes that many tokens. "word" removes
            the last word with the space before it. "off" cuts nothing.

    Special tokens, and ids without bytes, are never removed, nor anything before them, nor
    the very first token: a model needs one to start from.

    Raises:
        SettingError: for an unknown rule.
        VocabularyError: for what is no prompt, has no tokens, or is empty without a start token.

    >>> tokens = [b"->", b" ", b"No", b"d", b" Node", b"N", None]
    >>> index = SortedVocabulary(Vocabulary.from_bytes(tokens, bos_ids=[6]))
    >>> cut("-> Nod", index)
    Cut(kept=[6, 0], forced=b' Nod')
    >>> cut([0, 1, 2, 3], index, rule=1)
    Cut(kept=[0, 1, 2], forced=b'd')
    """
    vocabulary = index.vocabulary
    prompt = _started(prompt, vocabulary)
    before, text = last_text(parts_of(prompt))
    last = vocabulary.encode_beginning(text)
    ids = [*vocabulary.encode_prompt(before), *last] or _raise_empty(vocabulary)
    rest = text[len(vocabulary.decode(last)) :]  # which only begins a token
    tokens = vocabulary.tokens
    start = next((at for at in range(len(ids), 0, -1) if tokens[ids[at - 1]] is None), 0)
    tail = [tokens[id] or b"" for id in ids[start:]]  # after the last special token
    most = min(len(tail), len(ids) - 1)
    back = min(_tokens_back(tail, rest, index, rule), most)
    forced = b"".join(tail[len(tail) - back :]) + rest
    while rest and not index.spellable(forced):
        if back == most:
            vocabulary.encode_prompt(prompt)  # raises
        back += 1  # other tokens than the canonical ones lead on
        forced = tail[-back] + forced
    return Cut(ids[: len(ids) - back], forced)


def prompt_ids(prompt: Prompt, vocabulary: Vocabulary) -> list[int]:
    """The ids of a prompt before it is cut; text and bytes with start token and implied space.

    Raises:
        VocabularyError: for what is no prompt, has no tokens, or is empty without a start token.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], bos_ids=[2])
    >>> prompt_ids("ab", vocabulary), prompt_ids([0], vocabulary)
    ([2, 0, 1], [0])
    """
    ids = vocabulary.encode_prompt(_started(prompt, vocabulary))
    return ids or _raise_empty(vocabulary)


def _started(prompt: Prompt, vocabulary: Vocabulary) -> Prompt:
    """A prompt with the start token and the implied space, where it is a text."""
    if is_text(prompt):
        return [*vocabulary.bos_ids, vocabulary.implied_prefix + to_bytes(prompt)]
    return prompt


def _raise_empty(vocabulary: Vocabulary) -> NoReturn:
    why = "" if vocabulary.bos_ids else " and the tokenizer has no start token"
    raise VocabularyError(
        f"the prompt is empty{why}: there is nothing to continue. Give it at least one token."
    )


def remaining(forced: bytes, generated: Iterable[int], vocabulary: Vocabulary) -> bytes | None:
    """The bytes that are still forced after `generated`, a pure function of both.

    Speculation, preemption, beam reordering and retries cannot put it out of step.

    Returns:
        The rest of `forced`; empty once it is reproduced; None if the tokens left the forced
        text (a rejected draft may; a healed generation cannot).

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw"])
    >>> remaining(b"sw", [0], vocabulary), remaining(b"sw", [0, 1], vocabulary)
    (b'w', b'')
    """
    at = 0
    for id in generated:
        if at >= len(forced):
            break
        token = vocabulary.tokens[id] if 0 <= id < vocabulary.width else None
        if not token or not (forced.startswith(token, at) or token.startswith(forced[at:])):
            return None
        at += len(token)
    return forced[at:]


def allowed_next(left: bytes, index: SortedVocabulary) -> NDArray[np.int64]:
    """Return the ids of the tokens that may come next while `left` is forced.

    They start with `left`, or are a proper prefix of it after which the rest can still be
    spelled. End tokens are allowed only when nothing is left; ids without bytes never are.

    Raises:
        VocabularyError: if the vocabulary cannot spell `left`.

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", None], end_ids=[3])
    >>> allowed_next(b"sw", SortedVocabulary(vocabulary)).tolist()
    [0, 2]
    >>> allowed_next(b"", SortedVocabulary(vocabulary)).tolist()
    [0, 2, 1, 3]
    """
    if not left:
        ends = np.array(index.vocabulary.end_ids, dtype=np.int64)
        return np.concatenate((index.ids, ends))
    if index.vocabulary.byte_complete:
        return index.allowed(left)
    # Some byte has no token: a prefix token may lead where nothing can follow.
    lo, hi = index.range(left)
    tokens = index.vocabulary.tokens
    shorter = [id for id in index.prefixes(left) if index.spellable(left[len(tokens[id] or b"") :])]
    if lo == hi and not shorter:
        raise VocabularyError(
            f"no token string of this vocabulary spells {quote(left)}, so it cannot be forced. "
            "Shorten the prompt, or check that the vocabulary belongs to the model."
        )
    return np.concatenate((np.array(shorter, dtype=np.int64), index.ids[lo:hi]))


def _tokens_back(tail: list[bytes], rest: bytes, index: SortedVocabulary, rule: Rule) -> int:
    """How many tokens of `tail`, which `rest` follows, the rule removes; it may name more."""
    if rule == "off":
        return 0
    if isinstance(rule, int) and rule >= 0:
        return rule
    text = b"".join(tail) + rest
    if rule == "auto":
        start = _earliest_overrun(text, index)
    elif rule == "word":  # backwards: linear however long the word
        word = re.match(rb"\S*(?:\n\r|\s)?", text[::-1])
        start = len(text) - (word.end() if word else 0)
    else:
        raise SettingError(
            f"unknown healing rule {quote(rule)}: use 'auto', 'word', 'off' or a number of tokens."
        )
    back, end = 0, len(text) - len(rest)
    while end > start:
        back += 1
        end -= len(tail[-back])
    return back


def _earliest_overrun(text: bytes, index: SortedVocabulary) -> int:
    """The earliest position from which some token starts with all the rest and is longer.

    Only the last few bytes can be: the token must reach beyond the end.
    """
    for start in range(max(0, len(text) - index.vocabulary.max_token_bytes + 1), len(text)):
        rest = text[start:]
        lo, hi = index.range(rest)
        if lo < hi and len(index.sorted[hi - 1]) > len(rest):
            return start
    return len(text)
