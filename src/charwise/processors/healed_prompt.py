"""Prompts cut where healing should start, as every host does it; pure, on token ids."""

from __future__ import annotations

from typing import NamedTuple

from charwise.errors import SettingError
from charwise.healing import Rule, cut, prompt_ids
from charwise.infill import request
from charwise.template import Template, cut_written, with_sentinels
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt


class HealedPrompt(NamedTuple):
    """A prompt cut in two, and how many of its tokens were given back.

    Attributes:
        kept: token ids of the prompt.
        forced: bytes that the completion must begin with.
        given_back: tokens of the prompt that were taken off.
        ending: bytes that a middle must end with (`charwise.infill`): the beginning of the suffix.
        until: a longer beginning of the suffix; a middle that writes it has ended before it.

    >>> HealedPrompt(kept=[0], forced=b" Nod", given_back=2).most_again
    4
    """

    kept: list[int]
    forced: bytes
    given_back: int
    ending: bytes = b""
    until: bytes = b""

    @property
    def most_again(self) -> int:
        """Most tokens that write the forced text again: one for each byte.

        An engine that counts tokens itself is asked for so many more than the caller wants.
        `Continuation` cuts off the surplus.
        """
        return len(self.forced)


def heal_prompt(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `healing.cut`, and the number of tokens given back; raises the same errors.

    A prompt that holds a whole template of fill-in-the-middle, as ids or written out in its text,
    is cut where the prefix inside it ends: see `charwise.template`.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"->", b" ", b"No", b"d", b" Node"]))
    >>> heal_prompt("-> Nod", index)
    HealedPrompt(kept=[0], forced=b' Nod', given_back=3, ending=b'', until=b'')
    """
    if not isinstance(index, SortedVocabulary):
        raise SettingError(
            f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
        )
    if isinstance(prompt, str):
        prompt = with_sentinels(prompt, index.vocabulary)
    ids = prompt_ids(prompt, index.vocabulary)
    kept, forced = cut_written(ids, index, rule) or cut(ids, index, rule)
    return HealedPrompt(kept, forced, len(ids) - len(kept))


def heal_middle(
    prefix: str | bytes,
    suffix: str | bytes,
    index: SortedVocabulary,
    rule: Rule = "auto",
    *,
    right: Rule = "auto",
    most: int | None = None,
    template: Template | None = None,
) -> HealedPrompt:
    """The model's own template around two texts, both of which are cut where healing should start.

    Args:
        prefix, suffix: texts, or bytes.
        index: of the model's vocabulary.
        rule: where to cut the prefix, as for `healing.cut`.
        right: where to cut the suffix, by the same rule, mirrored; "off" where nothing can see to
            it that the middle ends with what is cut off.
        most: tokens that fit; what is too long is cut at the far ends.
        template: its sentinels, where the special tokens do not show them.

    Raises:
        TemplateError: a model that is not known to fill in the middle.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> names = {3: "<fim_prefix>", 4: "<fim_suffix>", 5: "<fim_middle>"}
    >>> tokens = [b"a", b"ab", b"c", None, None, None]
    >>> heal_middle("ca", "c", SortedVocabulary(Vocabulary.from_bytes(tokens, special=names)))
    HealedPrompt(kept=[3, 2, 4, 2, 5], forced=b'a', given_back=1, ending=b'', until=b'c')
    """
    template = Template.of(index.vocabulary) if template is None else template
    asked = request(prefix, suffix, template, index, left=rule, right=right, most=most)
    given_back = len(index.vocabulary.encode(asked.forced))
    until = _beginning(to_bytes(suffix))
    return HealedPrompt(asked.ids, asked.forced, given_back, asked.ending, until)


def _beginning(suffix: bytes) -> bytes:
    """Return the lines of a suffix that show that a middle goes on into it.

    They end with the first line by which there are eight bytes besides spaces; where the suffix
    has fewer, they are all of it, and none where it has only spaces.

    >>> _beginning(b")\\n    return total\\n\\nprint()"), _beginning(b"\\n")
    (b')\\n    return total\\n', b'')
    """
    end = 0
    for line in suffix.splitlines(keepends=True):
        end += len(line)
        if len(b"".join(suffix[:end].split())) >= 8:
            break
    return suffix[:end] if suffix[:end].strip() else b""
