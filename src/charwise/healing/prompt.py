"""Prompts cut where healing should start, as every host does it; pure, on token ids."""

from __future__ import annotations

import re
from typing import NamedTuple

from charwise.errors import SettingError, VocabularyError, shown
from charwise.healing.fim import Request
from charwise.healing.fim_text import edit_format, edit_parts, template_in, with_sentinels
from charwise.healing.forced import Rule, cut, prompt_ids
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.vocabulary import Vocabulary


class HealedPrompt(NamedTuple):
    """A prompt cut in two, and what the bytes of its completion begin and end with.

    Attributes:
        kept: token ids of the prompt.
        forced: bytes that the completion must begin with.
        removed_tokens: how many tokens of the prompt were given back.
        ending: bytes that a middle must end with (`healing.fim`): the beginning of the suffix.
        before: the last bytes of the text that goes on, for a character that begins there.
    """

    kept: list[int]
    forced: bytes
    removed_tokens: int
    ending: bytes = b""
    before: bytes = b""

    @classmethod
    def of_middle(cls, asked: Request, vocabulary: Vocabulary) -> HealedPrompt:
        """The prompt of a request for a middle."""
        removed = len(vocabulary.encode(asked.forced))
        return cls(asked.ids, asked.forced, removed, asked.ending, asked.before)

    def regex(self) -> str:
        r"""The regular expression of all texts that begin with the forced bytes.

        Under it, an engine's guided decoding allows the tokens of `healing.allowed_next`.

        Raises:
            VocabularyError: the forced bytes are not whole characters, or have a NUL.
        """
        return re.sub(r"([\\^$.|?*+()\[\]{}/-])", r"\\\1", self._forced_text()) + "(.|\\n)*"

    def gbnf(self) -> str:
        r"""The same as a grammar of llama.cpp.

        Raises:
            VocabularyError: the forced bytes are not whole characters, or have a NUL.
        """
        literal = "".join(
            character
            if character.isascii() and (character.isalnum() or character in " _=.,:;()+-*/")
            else f"\\u{ord(character):04X}"
            if ord(character) < 0x10000
            else f"\\U{ord(character):08X}"
            for character in self._forced_text()
        )
        return f'root ::= "{literal}" .*'

    def lookalikes(self, vocabulary: Vocabulary) -> list[int]:
        """Ids of control tokens that a grammar may take for forced text, by their spelling.

        A `<|im_start|>` would do for a forced `<`.
        """
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
                f"{shown(self.forced)} is not whole characters: an expression over characters "
                "cannot force it. Give back one token more."
            ) from None
        if "\0" in text:
            raise VocabularyError("a NUL cannot be forced: no grammar lets it through.")
        return text


def heal_prompt(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `healing.cut` as a healed prompt; raises the same errors.

    A prompt that holds a whole template of fill-in-the-middle, as ids or written out in its text,
    is cut where the prefix inside it ends: see `charwise.healing.fim_text`. One for an edit is cut
    at its own end.
    """
    if not isinstance(index, SortedVocabulary):
        raise SettingError(
            f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
        )
    vocabulary, edit = index.vocabulary, None
    if isinstance(prompt, str):
        edit = edit_format(prompt)
        parts = edit and edit_parts(prompt, edit, vocabulary)
        prompt = parts or with_sentinels(prompt, vocabulary)
    ids = prompt_ids(prompt, vocabulary)
    start, end = (None if edit else template_in(ids, vocabulary)) or (0, len(ids))
    kept, forced = cut(ids[start:end], index, rule)
    removed = end - start - len(kept)
    before = (vocabulary.decode(kept[-3:]) + forced)[-3:]
    return HealedPrompt([*ids[:start], *kept, *ids[end:]], forced, removed, before=before)


def heal_characters(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `heal_prompt`, cut earlier where that would be inside a character.

    Expressions force characters, not bytes.
    """
    healed = heal_prompt(prompt, index, rule)
    while healed.forced and healed.forced[0] & 0xC0 == 0x80:
        earlier = heal_prompt(prompt, index, healed.removed_tokens + 1)
        if earlier.removed_tokens == healed.removed_tokens:
            break
        healed = earlier
    return healed
