"""`heal_infill`: transformers' `generate` between two texts, both boundaries healed.

The prompt is the model's own template. The end of the prefix and the start of the suffix are cut
by the rule of healing: the answer begins with the one and ends with the other, and what lies
between is the middle. Not handled: models that are not causal language models.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from charwise.errors import SettingError, VocabularyError, check_count
from charwise.healing import Rule
from charwise.healing.fim import Order, Request, Template, request
from charwise.healing.prompt import hold_end_of_, new_bytes
from charwise.healing.transformers.generate import index_of, window_of, written_after
from charwise.healing.transformers.logits_processor import HealingLogitsProcessor
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.utf8 import decoder_after


def heal_infill(
    model: Any,
    tokenizer: Any,
    prefix: str | bytes | Sequence[str | bytes],
    suffix: str | bytes | Sequence[str | bytes] = "",
    *,
    order: Order | None = None,
    template: Template | None = None,
    left: Rule = "auto",
    right: Rule = "auto",
    max_new_tokens: int = 64,
    **generate_kwargs: Any,
) -> list[str]:
    """Return the model's text between two texts, either of which may break off inside a token.

    Args:
        model: a causal language model of transformers that was trained to fill in.
        tokenizer: its fast tokenizer, or a `SortedVocabulary`.
        prefix, suffix: two texts, or two lists of as many. What does not fit the window is cut at
            the far ends, and a warning says how much that was. A sentinel's name in them is text.
        order: "psm" or "spm"; by default PSM where the model knows it.
        template: its sentinels, where the special tokens do not show them.
        left, right: where to cut, as for `healing.cut`; "off" does not heal that side.
        max_new_tokens: of the middle; as many more may be written as both sides gave up bytes.
        **generate_kwargs: for `model.generate`.

    Returns:
        `num_return_sequences` middles for each pair, without what is written of prefix and suffix
        again. One that `max_new_tokens` ended is cut where it most probably ends, among the places
        where it may; if there is none, it is returned as far as it came.

    Raises:
        SettingError: a model without sentinels: how to give them.
        SettingError: lists of different lengths.
        VocabularyError: as `heal_generate`.

    >>> from charwise.models import EMBEDDED
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> model = AutoModelForCausalLM.from_pretrained(EMBEDDED)
    >>> tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    >>> before = "def flatten(items):\\n    result = []\\n    for item in items:\\n        "
    >>> after = "d(item)\\n    return result\\n"
    >>> heal_infill(model, tokenizer, before + "result.app", after, max_new_tokens=8)
    ['en']
    """
    index = index_of(tokenizer, model)
    template = Template.of(index.vocabulary) if template is None else template
    check_count("max_new_tokens", max_new_tokens, 1)
    window = window_of(model)
    most = None if window is None else window - min(max_new_tokens + 16, window // 2)
    asked = [
        request(before, after, template, index, order=order, left=left, right=right, most=most)
        for before, after in _pairs(prefix, suffix)
    ]
    if not asked:
        return []
    _warn_of_cuts(asked)
    end = list(index.vocabulary.stop_ids)
    filler = end[0] if end else 0
    length = max(len(one.ids) for one in asked)
    masks = [
        HealingLogitsProcessor(index, [one.forced for one in asked], length),
        EndingLogitsProcessor(index, asked, length),
    ]
    given = list(generate_kwargs.pop("logits_processor", None) or ())
    room = max_new_tokens + max(len(one.forced) + len(one.ending) for one in asked)
    settings = {
        "eos_token_id": end or None,
        "pad_token_id": filler,
        "max_new_tokens": room if window is None else min(room, window - length),
        "logits_processor": LogitsProcessorList([*given, *masks]),
        **generate_kwargs,
    }
    rows = written_after([one.ids for one in asked], model, filler, settings)
    copies = len(rows) // len(asked)
    return [_text(model, asked[row // copies], new, index) for row, new in enumerate(rows)]


class EndingLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Lets each row of a `generate` end only where its text ends as its request says.

    Args:
        index: of the model's vocabulary.
        asked: the requests of the batch.
        prompt_length: length of the (padded) prompt ids, the same for all rows.

    To be put after `HealingLogitsProcessor`. It has no state, as that has none.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", None], end_ids=[2]))
    >>> process = EndingLogitsProcessor(index, [Request([0], b"", b"ex", 1)], prompt_length=1)
    >>> process(torch.tensor([[0, 0]]), torch.zeros(1, 3))
    tensor([[0.0000, 0.6931,   -inf]])
    >>> process(torch.tensor([[0, 1]]), torch.zeros(1, 3))
    tensor([[0., 0., 0.]])
    """

    supports_continuous_batching = False

    def __init__(self, index: SortedVocabulary, asked: Sequence[Request], prompt_length: int):
        self.index, self.asked, self.prompt_length = index, tuple(asked), prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, width]` of the next token after `input_ids` `[rows, length]`."""
        if not any(one.ending for one in self.asked):
            return scores
        copies = scores.shape[0] // len(self.asked)
        held = scores.clone()
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            one = self.asked[row // copies]
            hold_end_of_(held[row], one.forced, one.ending, ids, self.index)
        return held


def _pairs(prefix: Any, suffix: Any) -> list[tuple[str | bytes, str | bytes]]:
    one = isinstance(prefix, str | bytes)
    if one != isinstance(suffix, str | bytes):
        raise SettingError("give two texts, or two lists of texts, as prefix and suffix.")
    if one:
        return [(prefix, suffix)]
    if len(prefix) != len(suffix):
        raise SettingError(f"{len(prefix)} prefixes for {len(suffix)} suffixes.")
    return list(zip(prefix, suffix, strict=True))


def _warn_of_cuts(asked: Sequence[Request]) -> None:
    """Warn of text that the model has not read: the answer, text alone, does not show it."""
    before, after = sum(one.prefix_cut for one in asked), sum(one.suffix_cut for one in asked)
    if before or after:
        warnings.warn(
            f"the window is too small: {before} bytes at the start of the prefix and {after} at "
            "the end of the suffix were left out. Give shorter texts, or a smaller max_new_tokens.",
            stacklevel=3,
        )


def _text(model: Any, asked: Request, generated: list[int], index: SortedVocabulary) -> str:
    """The middle, as text, that a row of generated ids holds."""
    ends = index.vocabulary.stop_ids
    at = next((n for n, id in enumerate(generated) if id in ends), len(generated))
    ids, ended = generated[:at], at < len(generated)
    new = new_bytes(ids, asked.forced, index)
    if new is None:
        raise VocabularyError(
            f"a returned sequence does not start with {asked.forced!r}: it was not masked, or "
            "there are fewer ways to go on than beams to return. Lower num_return_sequences."
        )
    middle = new.removesuffix(asked.ending) if ended and new.endswith(asked.ending) else None
    if middle is None:
        middle = _likeliest(model, asked, ids, new, index)
    return decoder_after(asked.before).decode(middle)


def _likeliest(
    model: Any, asked: Request, ids: list[int], new: bytes, index: SortedVocabulary
) -> bytes:
    """The middle of tokens that did not end: up to where the end was most probable."""
    if not asked.ending:
        return new
    places, size = [], -len(asked.forced)
    for n, id in enumerate(ids):
        size += index.length(id)
        if size >= len(asked.ending) and new[:size].endswith(asked.ending):
            places.append((n, size))
    if not places:
        return new
    with torch.no_grad():
        logits = model(torch.tensor([[*asked.ids, *ids]], device=model.device)).logits[0].float()
    rows = logits[[len(asked.ids) + n for n, _ in places]].log_softmax(dim=-1)
    best = int(rows[:, list(index.vocabulary.stop_ids)].logsumexp(dim=-1).argmax())
    return new[: places[best][1] - len(asked.ending)]
