"""Token healing in transformers: a logits processor for any `model.generate`."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import LogitsProcessor

from charwise.errors import SettingError, VocabularyError, quote
from charwise.healing.fim import hold_end_
from charwise.healing.mask import Mask
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary


class HealingLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """A processor with which `generate` first reproduces the forced text of each row.

    Args:
        index: of the model's vocabulary.
        forced: the forced bytes of each prompt of the batch, as `healing.cut` returns them;
            `b""` for a prompt that is not to be healed.
        prompt_length: length of the (padded) prompt ids, the same for all rows.
        endings: what the middle of each prompt must end with (`healing.fim`); by default nothing.

    The scores have one row for each prompt, or `num_beams` or `num_return_sequences` adjacent
    ones, as `generate` lays them out. Everything that is not allowed gets −inf, in a new tensor;
    once a row has reproduced its text, and for a draft that has left it, the scores stay as they
    are. No text of n bytes takes more than n tokens, so from then on a call is one comparison.

    Raises:
        SettingError: no forced texts, or another number of endings.
        VocabularyError: a forced text that the vocabulary cannot spell.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", b"a"])
    >>> process = HealingLogitsProcessor(SortedVocabulary(vocabulary), [b"sw"], prompt_length=1)
    >>> process(torch.tensor([[3]]), torch.zeros(1, 4))
    tensor([[0., -inf, 0., -inf]])
    >>> process(torch.tensor([[3, 0]]), torch.zeros(1, 4))
    tensor([[-inf, 0., -inf, -inf]])
    """

    supports_continuous_batching = False

    def __init__(
        self,
        index: SortedVocabulary,
        forced: Sequence[bytes],
        prompt_length: int,
        endings: Sequence[bytes] = (),
    ) -> None:
        self.mask = Mask(index)
        if not forced or len(endings) not in (0, len(forced)):
            raise SettingError(
                f"{len(forced)} forced texts and {len(endings)} endings: give one of each for each "
                "prompt, b'' for those not healed, or no endings."
            )
        for text in forced:
            self.mask.check(text)
        self.forced, self.endings = tuple(forced), tuple(endings)
        self.prompt_length = prompt_length
        self._longest = max(map(len, self.forced))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, width]` of the next token after `input_ids` `[rows, length]`."""
        generated = input_ids.shape[1] - self.prompt_length
        if generated >= self._longest and not any(self.endings):
            return scores
        rows = scores.shape[0]
        if generated < 0 or rows % len(self.forced):
            raise SettingError(
                f"{rows} rows of {input_ids.shape[1]} ids, for {len(self.forced)} forced texts and "
                f"a prompt_length of {self.prompt_length}: give one text for each prompt, b'' for "
                "those not healed, and the length of the padded prompt ids."
            )
        copies = rows // len(self.forced)
        new = input_ids[:, self.prompt_length :].tolist()
        rest = [self.mask.remaining(self.forced[row // copies], ids) for row, ids in enumerate(new)]
        if any(rest):  # else all are reproduced (b""), or drafts that left the text (None)
            scores = self._masked(scores, rest)
        if any(self.endings):
            scores = scores.clone()
            for row, ids in enumerate(new):
                forced, ending = self.forced[row // copies], self.endings[row // copies]
                hold_end_(scores[row], forced, ending, ids, self.mask.index)
        return scores

    def _masked(self, scores: torch.Tensor, rest: Sequence[bytes | None]) -> torch.Tensor:
        masked = self.mask.masked(scores, rest)
        for row, blocked in enumerate(masked.amax(dim=1).isneginf().tolist()):
            if blocked and rest[row]:
                raise VocabularyError(
                    f"row {row} must continue with {quote(rest[row])}, but every token that may do "
                    "so already had the score −inf: another processor forbids them all. Put the "
                    "healing processor before those that truncate (top-k, top-p), and look for "
                    "suppressed tokens or bad words."
                )
        return masked


_indices: WeakKeyDictionary[Any, dict[tuple[Any, ...], SortedVocabulary]] = WeakKeyDictionary()


def index_of(tokenizer: Any, model: Any = None) -> SortedVocabulary:
    """The index of a tokenizer for a model; kept as long as the tokenizer lives."""
    if isinstance(tokenizer, SortedVocabulary):
        return tokenizer
    if not hasattr(tokenizer, "backend_tokenizer"):
        return SortedVocabulary(Vocabulary.from_transformers(tokenizer))  # which says what it is
    generation = getattr(model, "generation_config", None)
    width = model.config.get_text_config().vocab_size if model is not None else None
    key = (len(tokenizer), width, tuple(as_list(getattr(generation, "eos_token_id", None))))
    indices = _indices.setdefault(tokenizer, {})
    if key not in indices:
        vocabulary = Vocabulary.from_transformers(tokenizer, width, generation_config=generation)
        indices[key] = SortedVocabulary(vocabulary)
    return indices[key]


def as_list(value: Any) -> list[int]:
    """The ids in None (none), one id, or a list or tensor of ids."""
    return [] if value is None else torch.as_tensor(value).flatten().tolist()
