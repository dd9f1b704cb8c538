"""Logits processors of llama-cpp-python: the healing ones, and several as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, check_count
from charwise.healing.decision import Decisions
from charwise.healing.prompt import hold_end_of_
from charwise.tokens.index import SortedVocabulary

Ids = NDArray[np.int32]
Scores = NDArray[np.float32]
Processor = Callable[[Ids, Scores], Scores]


class HealingLogitsProcessor:
    """Lets llama.cpp first write the forced text only.

    Args:
        index: of the model's vocabulary; `index_of(llama)`.
        forced: the bytes that the prompt gave back, as `healing.cut` returns them.
        prompt_length: how many ids are kept of the prompt.

    Put it last in the list of `Processors`. It writes −inf into the scores that it is given and
    returns them; once the text is reproduced a call is one comparison. It keeps no state.

    Raises:
        VocabularyError: a forced text that the vocabulary cannot spell.
        SettingError: a `forced` that is not bytes, or a negative `prompt_length`.

    >>> from charwise import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", b"a"])
    >>> process = HealingLogitsProcessor(SortedVocabulary(vocabulary), b"sw", prompt_length=1)
    >>> process(np.array([3], np.int32), np.zeros(4, np.float32))
    array([  0., -inf,   0., -inf], dtype=float32)
    >>> process(np.array([3, 0], np.int32), np.zeros(4, np.float32))
    array([-inf,   0., -inf, -inf], dtype=float32)
    """

    def __init__(self, index: SortedVocabulary, forced: bytes, prompt_length: int) -> None:
        self.decisions = Decisions(index)
        self.decisions.check(forced)
        if prompt_length is not None:
            check_count("prompt_length", prompt_length, 0)
        self.forced = forced
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Mask the scores `[width]` of the next token after `input_ids` `[n]`, in place."""
        generated = len(input_ids) - self.prompt_length
        if generated < 0:
            raise SettingError(
                f"{len(input_ids)} ids, but a prompt_length of {self.prompt_length}: it must be "
                "the length of the prompt ids that llama.cpp was given."
            )
        if generated < len(self.forced):
            ids = input_ids[self.prompt_length :].tolist()
            self.decisions.mask_scores_(scores, self.forced, ids)
        return scores


class Processors(list[Processor]):
    """A `LogitsProcessorList` that keeps its processors when there is a `logit_bias`.

    `create_completion` calls `extend` then, and goes on with what that returns.

    >>> kept = Processors([max]).extend([min])
    >>> len(kept)
    2
    """

    def extend(self, more: Iterable[Processor]) -> Processors:  # type: ignore[override]
        """A new list with these at the end."""
        return Processors([*self, *more])


class EndingLogitsProcessor:
    """Lets llama.cpp end a middle only where it ends with the bytes that its suffix gave up.

    Args:
        index: of the model's vocabulary.
        forced: the bytes that the middle begins with.
        ending: those that it must end with.
        prompt_length: how many ids are kept of the prompt.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", None], end_ids=[2]))
    >>> process = EndingLogitsProcessor(index, b"", b"ex", prompt_length=1)
    >>> process(np.array([0, 0], np.int32), np.zeros(3, np.float32))
    array([0.        , 0.6931472,      -inf], dtype=float32)
    >>> process(np.array([0, 1], np.int32), np.zeros(3, np.float32))
    array([0., 0., 0.], dtype=float32)
    """

    def __init__(
        self, index: SortedVocabulary, forced: bytes, ending: bytes, prompt_length: int
    ) -> None:
        self.index, self.forced, self.ending = index, forced, ending
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Change the scores `[width]` of the next token after `input_ids` `[n]`, in place."""
        generated = input_ids[self.prompt_length :].tolist()
        hold_end_of_(scores, self.forced, self.ending, generated, self.index)
        return scores


class Guard:
    """Several processors as one, which keeps their errors: llama-cpp-python ignores these."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = processors
        self.error: Exception | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        try:
            for process in self.processors[:-1]:
                scores[:] = process(input_ids, scores)
            scores = self.processors[-1](input_ids, scores)
            if len(self.processors) > 1 and np.isneginf(scores).all():
                raise VocabularyError(
                    "every token that may come next has the score −inf: another logits processor "
                    "or a logit_bias forbids them all."
                )
        except Exception as error:
            self.error = error
            scores[:] = 0.0  # no sampler survives a row of nothing
        return scores


def bias(biases: Mapping[int, float], width: int) -> Processor:
    """A processor that adds to the scores of some tokens.

    Args:
        biases: what to add, by token id; ids may be strings, as in OpenAI's JSON.
        width: of the vocabulary.

    Raises:
        SettingError: an id beyond the vocabulary.

    >>> bias({"1": 2.0}, width=3)(np.array([0]), np.zeros(3, dtype=np.float32)).tolist()
    [0.0, 2.0, 0.0]
    """
    ids = np.array([int(id) for id in biases], dtype=np.int64)
    values = np.array([float(value) for value in biases.values()], dtype=np.float32)
    if not ((ids >= 0) & (ids < width)).all():
        raise SettingError(f"logit_bias has ids beyond the vocabulary, whose width is {width}.")

    def add(input_ids: Ids, scores: Scores) -> Scores:
        scores[ids] += values
        return scores

    return add
