"""Prompts cut where healing should start, as every host does it; pure, on token ids."""

from __future__ import annotations

from charwise.healing.fim_text import edit_format, edit_parts, template_in, with_sentinels
from charwise.healing.forced import HealedPrompt, Rule, cut, prompt_ids
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt


def heal_prompt(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `healing.cut` as a healed prompt; raises the same errors.

    A prompt that holds a whole template of fill-in-the-middle, as ids or written out in its text,
    is cut where the prefix inside it ends: see `charwise.healing.fim_text`. One for an edit is cut
    at its own end.
    """
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
