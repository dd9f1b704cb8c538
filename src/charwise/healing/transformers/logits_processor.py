"""Token healing in transformers: a logits processor for any `model.generate`.

    kept, forced = healing.cut("raise ValueErr", index)
    processor = HealingLogitsProcessor(index, [forced], prompt_length=len(kept))
    model.generate(torch.tensor([kept]), logits_processor=LogitsProcessorList([processor]))

The processor has no state: what remains to be forced is read off the token ids at every call, so
beams may change places and drafts be rejected. `charwise.heal_generate` does all of this, and the
decoding, in one call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from charwise.errors import SettingError, VocabularyError, check_count, items, shown
from charwise.healing.decision import Decisions
from charwise.tokens.index import SortedVocabulary


class HealingLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """A processor with which `generate` first reproduces the forced text of each row.

    Args:
        index: of the model's vocabulary.
        forced: the bytes that each prompt of the batch gave back, as `healing.cut` returns them;
            `b""` for a prompt that is not to be healed.
        prompt_length: length of the (padded) prompt ids, the same for all rows.

    The scores have one row for each prompt, or `num_beams` or `num_return_sequences` adjacent
    ones, as `generate` lays them out. Everything that is not allowed gets −inf, in a new tensor;
    once a row has reproduced its text, and for a draft that has left it, the scores stay as they
    are. No text of n bytes takes more than n tokens, so from then on a call is one comparison.

    Raises:
        VocabularyError: a forced text that the vocabulary cannot spell.
        SettingError: a `forced` that is not bytes, or a `prompt_length` that is no length.

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
        self, index: SortedVocabulary, forced: bytes | Sequence[bytes], prompt_length: int
    ) -> None:
        self.decisions = Decisions(index)
        if prompt_length is not None:
            check_count("prompt_length", prompt_length, 0)
        if isinstance(forced, bytes):
            forced = (forced,)
        rows = items(forced)
        if rows is None:
            raise SettingError(
                f"forced is {shown(forced)}: give a list of bytes, one for each row."
            )
        self.forced = tuple(rows)
        self.prompt_length = prompt_length
        if not self.forced:
            raise SettingError(
                "there are 0 forced texts: give one for each row, b'' for those not healed."
            )
        for text in self.forced:
            self.decisions.check(text)
        self._longest = max(map(len, self.forced))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, width]` of the next token after `input_ids` `[rows, length]`."""
        if input_ids.shape[1] - self.prompt_length >= self._longest:
            return scores
        copies = self._copies(input_ids, scores)
        generated = input_ids[:, self.prompt_length :].tolist()
        left = [
            self.decisions.left(self.forced[row // copies], ids)
            for row, ids in enumerate(generated)
        ]
        if not any(left):  # all reproduced (b""), or drafts that left the text (None)
            return scores
        masked = torch.empty_like(scores)
        for row, rest in enumerate(left):
            if not rest:
                masked[row] = scores[row]
                continue
            self.decisions.mask_(scores[row], rest, (), out=masked[row])
            if bool(torch.isneginf(masked[row].amax())):
                raise self._blocked(rest, row)
        return masked

    def _copies(self, input_ids: torch.Tensor, scores: torch.Tensor) -> int:
        """How many adjacent rows each prompt has; checks the shapes."""
        rows, width = scores.shape
        if input_ids.shape[1] < self.prompt_length:
            raise SettingError(
                f"the rows are {self.prompt_length - input_ids.shape[1]} tokens shorter than "
                f"prompt_length, which is {self.prompt_length}: it must be the length of the "
                "padded prompt ids."
            )
        if rows % len(self.forced):
            raise SettingError(
                f"{rows} rows of scores for {len(self.forced)} forced texts: give one forced text "
                "for each prompt of the batch, b'' for those that are not healed."
            )
        self.decisions.check_columns(width)
        return rows // len(self.forced)

    def _blocked(self, left: bytes, row: int) -> VocabularyError:
        return VocabularyError(
            f"row {row} must continue with {shown(left)}, but every token that may do so already "
            "had the score −inf: another processor forbids them all. Put the healing processor "
            "before those that truncate (top-k, top-p), and look for suppressed tokens or bad "
            "words."
        )
