"""`heal_generate`: transformers' `generate`, from texts to their completions.

Cuts every prompt by the healing rule, pads to the left, lets `HealingLogitsProcessor` reproduce
what was cut off, and returns only the bytes beyond the prompt. Not handled: encoder-decoder models,
whose prompt is not continued, and prompts given as embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, cast
from weakref import WeakKeyDictionary

from charwise.errors import LimitError, items
from charwise.healing import Cut, Rule
from charwise.healing.prompt import heal_prompt
from charwise.healing.transformers.arguments import (
    Arguments,
    Limits,
    as_list,
    check_arguments,
    left_padded,
)
from charwise.healing.transformers.logits_processor import HealingLogitsProcessor
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt, is_text, parts_of
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after
from charwise.tokens.vocabulary import Vocabulary


def heal_generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompt | Sequence[Prompt],
    *,
    rule: Rule = "auto",
    max_new_bytes: int | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """Return the model's text after each prompt, with the prompts' ends healed.

    Args:
        model: any causal language model of transformers.
        tokenizer: its fast tokenizer, whose index is made once, or a `SortedVocabulary`.
        prompts: one prompt, or a list of them: "a", b"a" and [id, "a"] are one, ["a", "b"] is
            two. Text and bytes get the start token and the leading space that the tokenizer would
            give them; a list of texts and token ids is taken as it is. One that holds the
            model's whole template of fill-in-the-middle is healed where its prefix ends.
        rule: where to cut, as for `healing.cut`; "off" does not heal.
        max_new_bytes: stop after so many bytes beyond the prompt.
        **generate_kwargs: for `model.generate`. `max_new_tokens` counts tokens from where the
            prompt is reproduced: one that goes beyond the prompt's end is the first. A text ends
            before a match of `stop_strings` that begins beyond the prompt. Your
            `logits_processor`s run before the mask, so that it has the last word; except
            `…Warper`s, which truncate: like those that `generate` makes of top_k, top_p and so
            on they run after it, and choose among the tokens that are allowed.

    A batch ends where its longest row fills the model's window (`max_position_embeddings`).

    Returns:
        `num_return_sequences` texts for each prompt. Nothing of a prompt is repeated or lost;
        special tokens are left out, bytes that are not UTF-8 become U+FFFD, and a last character
        that is not complete is dropped. If a prompt of bytes ends inside a character, the
        completion starts with that character.

    Raises:
        VocabularyError: nothing can reproduce a prompt's end, since other processors forbid it.
        VocabularyError: what is no prompt, or has no tokens.
        SettingError: an argument that makes no sense here.
        VocabularyError: a tokenizer that charwise cannot read.
        LimitError: a prompt that fills the model's window.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> heal_generate(model, tokenizer, "for i in rang", max_new_bytes=1, do_sample=False)
    ['e']
    """
    check_arguments(model, generate_kwargs, max_new_bytes)
    index = index_of(tokenizer, model)
    batch = _as_batch(prompts)
    if not batch:
        return []
    window = window_of(model)
    cuts = [_cut(prompt, index, rule, window) for prompt in batch]
    arguments = Arguments(model, generate_kwargs)
    length = max(len(kept) for kept, _ in cuts)
    limits = Limits(
        index.vocabulary,
        [forced for _, forced in cuts],
        length,
        arguments.new_tokens(max_new_bytes),
        max_new_bytes,
        Stops(generate_kwargs.pop("stop_strings", None)),
        window,
    )
    mask = HealingLogitsProcessor(index, limits.forced, length)
    settings, ends, filler = arguments.settings(limits, mask)
    written = written_after([kept for kept, _ in cuts], model, filler, settings)
    copies = len(written) // len(cuts)
    return [
        _text(cuts[row // copies], limits.new_bytes(_until(ids, ends), row // copies), index)
        for row, ids in enumerate(written)
    ]


_indices: WeakKeyDictionary[Any, dict[tuple[Any, ...], SortedVocabulary]] = WeakKeyDictionary()


def index_of(tokenizer: Any, model: Any = None) -> SortedVocabulary:
    """The index of a tokenizer for a model; kept as long as the tokenizer lives.

    Raises:
        VocabularyError: a tokenizer that charwise cannot read.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoTokenizer
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> index_of(tokenizer) is index_of(tokenizer)
    True
    """
    if isinstance(tokenizer, SortedVocabulary):
        return tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        return SortedVocabulary(Vocabulary.from_transformers(tokenizer))  # which says what it is
    generation = getattr(model, "generation_config", None)
    width = model.config.get_text_config().vocab_size if model is not None else None
    key = (len(tokenizer), width, tuple(as_list(getattr(generation, "eos_token_id", None))))
    known = _indices.setdefault(tokenizer, {})
    if key not in known:
        vocabulary = Vocabulary.from_transformers(tokenizer, width, generation_config=generation)
        known[key] = SortedVocabulary(vocabulary)
    return known[key]


def window_of(model: Any) -> int | None:
    """How many tokens the model's positions reach; None if it does not say."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if window is None or window < 1 else int(window)


def _cut(prompt: Prompt, index: SortedVocabulary, rule: Rule, window: int | None) -> Cut:
    """The cut of a prompt that leaves room in the window."""
    healed = heal_prompt(prompt, index, rule)
    length = len(healed.kept) + healed.given_back
    if window is not None and length >= window:
        raise LimitError(
            f"a prompt has {length} tokens, and the model's window is {window}: there is no "
            "room for another. Shorten the prompt from its start."
        )
    return Cut(healed.kept, healed.forced)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt or many → a list of prompts. A list with a token id in it is one prompt."""
    if is_text(prompts):
        return [prompts]
    parts = None if isinstance(prompts, Set) else items(prompts)
    if parts is None:
        return parts_of(cast(Prompt, prompts))  # which says that it is none
    if any(hasattr(part, "__index__") and not getattr(part, "ndim", 0) for part in parts):
        return [parts]
    return parts


def written_after(
    rows: Sequence[list[int]], model: Any, filler: int, settings: dict[str, Any]
) -> list[list[int]]:
    """Return the ids that `generate` writes after each row, or after each copy of it."""
    ids, seen = left_padded(rows, filler)
    output = model.generate(
        input_ids=ids.to(model.device), attention_mask=seen.to(model.device), **settings
    )
    found: list[list[int]] = getattr(output, "sequences", output)[:, ids.shape[1] :].tolist()
    return found


def _until(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first end token, and with it."""
    at = next((n for n, id in enumerate(ids) if id in ends), len(ids))
    return ids[: at + 1]


def _text(prompt: Cut, new: bytes, index: SortedVocabulary) -> str:
    """New bytes as text, from the character that the prompt left incomplete, if it did."""
    return decoder_after(index.vocabulary.decode(prompt.kept[-3:]) + prompt.forced).decode(new)
