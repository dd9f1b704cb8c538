"""Scores of texts: long ones window by window, many short ones in common batches.

Short texts after the same opening are branches of one token tree. Their rounds go side by side, so
each model call serves them all. What they have in common, as a minimal pair has its first words,
is evaluated once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.windows import Window
from charwise.engine import TokenLM, TokenTree
from charwise.errors import LimitError, each_or_error, impossible
from charwise.scoring.contexts import Floats
from charwise.scoring.effort import Effort
from charwise.scoring.rounds import MEMORY, Refinement, refine
from charwise.surprisal.score import Entropy, Score
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.known_text import KnownText
from charwise.tokens.prompts import PromptStart

#: Columns of a distribution of the next byte that end a word: the ASCII characters that `\s`
#: matches, and the end of text.
ENDS = [*range(9, 14), *range(28, 33), 256]


class Text(NamedTuple):
    """A text to score after an opening; its first `context_size` bytes are conditioned on only."""

    opening: PromptStart
    whole: bytes  # begins with the opening's implied prefix
    context_size: int = 0


@dataclass(frozen=True)
class Scorer:
    """The scoring of texts: the model, the effort, and the extra results."""

    engine: TokenLM
    index: SortedVocabulary
    effort: Effort
    end: bool = False  # also score the end of each text
    #: Also the entropies of next bytes. "char": their distributions too, for those of characters.
    entropy: Entropy | None = None

    def scores(
        self, texts: Sequence[Text], progress: Callable[[int, int], object] | None = None
    ) -> list[Score]:
        """Score texts; see `CharLM.scores`.

        The pack of a text changes its numbers by no more than the order in which a model sums its
        floats does, unless memory ends the work on a pack.
        """
        scores: dict[int, Score] = {}
        sizes = [len(text.whole) for text in texts]
        for pack in self.packs(texts):
            # What is too much for one tree may not be for one of its own.
            done = each_or_error(partial(self._score_pack, texts), [*pack.items()], (LimitError,))
            for number, score in zip(pack, done, strict=True):
                if not isinstance(score, Score):
                    raise score
                scores[number] = score
            if progress is not None:
                progress(sum(sizes[number] for number in scores), sum(sizes))
        return [scores[number] for number in range(len(texts))]

    def packs(self, texts: Sequence[Text]) -> list[dict[int, Window]]:
        """Which texts go together: the number of each, with its only window.

        A pack has as many canonical tokens as a portion of a long text, and as memory has room for.
        """
        # A token has some eight contexts.
        room = MEMORY // (8 * 4 * self.index.vocabulary.width)
        most = max(1, min(Refinement.portion_size(self.index), room))
        done: list[dict[int, Window]] = []
        filling: dict[PromptStart, dict[int, Window]] = {}
        for number, text in enumerate(texts):
            window = next(self._plan(text))
            size = len(window.canonical)
            if window.stop < len(text.whole) or size > most:
                done.append({number: window})
                continue
            pack = filling.setdefault(text.opening, {})
            if pack and sum(len(part.canonical) for part in pack.values()) + size > most:
                done.append(pack)
                pack = filling[text.opening] = {}
            pack[number] = window
        return [*done, *filling.values()]

    def windows(self, text: Text) -> Iterator[tuple[Window, Refinement]]:
        """Yield the finished windows of a text that reach beyond the given part, in order."""
        start = len(text.opening.implied_prefix) + text.context_size
        for window in self._plan(text):
            if window.stop <= start and window.stop < len(text.whole):
                continue
            part = KnownText.of(text.whole[window.begin : window.stop], self.index)
            to_end = self.end and window.stop == len(text.whole)
            # The canonical tokens of the first portion go with the root, in one call.
            path = Refinement.first_call(window.canonical, part, to_end)
            tree = self.engine.tree(window.prompt_ids, [(0, path)])
            work = self._refinement(tree, part, window, to_end)
            refine([work])
            yield window, work

    def _plan(self, text: Text) -> Iterator[Window]:
        return Window.plan(self.engine, self.index, text.opening, text.whole, through=self.end)

    def _refinement(
        self,
        tree: TokenTree,
        known: KnownText,
        window: Window,
        through: bool,
        shared: bool = False,
    ) -> Refinement:
        room = self.engine.window
        return Refinement(
            tree,
            known,
            window.canonical,
            self.effort,
            through=through,
            max_depth=None if room is None else room - len(window.prompt_ids),
            distributions=self.entropy is not None,
            shared=shared,
        )

    def _score_pack(self, texts: Sequence[Text], pack: Sequence[tuple[int, Window]]) -> list[Score]:
        """Score the texts of a pack over one tree; one text window by window."""
        number, window = pack[0]
        if len(pack) == 1:
            return [self._gather(texts[number], self.windows(texts[number]))]
        tree, works = self.engine.tree(texts[number].opening.ids), list[Refinement]()
        for number, window in pack:
            known = KnownText.of(texts[number].whole, self.index)
            works.append(self._refinement(tree, known, window, self.end, shared=True))
        refine(works)
        return [
            self._gather(texts[number], [(window, work)])
            for (number, window), work in zip(pack, works, strict=True)
        ]

    def _gather(self, text: Text, done: Iterable[tuple[Window, Refinement]]) -> Score:
        """The score of a text from its finished windows, which may be made one at a time."""
        whole, skip = text.whole, len(text.opening.implied_prefix) + text.context_size
        logprobs, error = np.zeros(len(whole)), np.zeros(len(whole))
        contexts, calls, ended = 0, 0, None
        rows, entropies, ranks = list[Floats](), list[Floats](), list[NDArray[np.int64]]()
        ends = list[Floats]()
        for window, result in done:
            lattice, ahead = result.lattice, window.scored - window.begin
            if not lattice.reached:
                reached = int(np.isfinite(lattice.log_prefix).sum())
                raise impossible(whole[: window.begin + reached], float(lattice.missing.sum()))
            part = slice(window.scored, window.stop)
            # A model sums its floats with an error, so that a sure byte may come to more than 1.
            logprobs[part] = np.minimum(np.diff(lattice.log_prefix[ahead:]), 0.0)
            error[part] = result.error[ahead + 1 :]
            if self.end and window.stop == len(whole):
                ended = lattice.end_logprob()
            if self.entropy is not None:
                first = max(skip, window.scored)
                along = lattice.distributions()[first - window.begin :]  # after the end too
                before, came = along[: window.stop - first], whole[first : window.stop]
                if self.end:
                    ends.append(_word_ends(along))
                entropies.append(_entropies(before))
                ranks.append(_ranks(before, came))
                if self.entropy != "byte":  # of a long text, they would be many
                    rows.append(along)
            contexts, calls = contexts + result.contexts, calls + result.calls
        return Score(
            whole[skip:],
            logprobs[skip:],
            error[skip:],
            contexts,
            calls,
            ended,
            token_ends=_canonical_ends(self.index, whole, skip),
            entropies=np.concatenate(entropies) if entropies else None,
            ranks=np.concatenate(ranks) if ranks else None,
            distributions=np.concatenate(rows) if rows else None,
            word_ends=np.concatenate(ends) if ends else None,
        )


def _canonical_ends(index: SortedVocabulary, whole: bytes, skip: int) -> NDArray[np.int64]:
    """Where the canonical tokens of a text end, counted from `skip`, and where the text does."""
    lengths = list(map(index.length, index.vocabulary.encode_beginning(whole)))
    ends = np.unique(np.append(np.cumsum(lengths, dtype=np.int64), len(whole))) - skip
    return np.asarray(ends[ends > 0])


def _entropies(rows: Floats) -> Floats:
    """`[n]` entropies of `[n, m]` distributions, bits."""
    logs = np.log2(rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(0.0, -(rows * logs).sum(axis=1)) + 0.0)


def _ranks(rows: Floats, came: bytes) -> NDArray[np.int64]:
    """`[n]` rank of the byte that came in each of `[n, 257]` distributions; 1 is the likeliest."""
    codes = np.frombuffer(came, dtype=np.uint8).astype(np.int64)
    likelihoods = rows[np.arange(len(codes)), codes]
    return np.asarray(1 + (rows > likelihoods[:, None]).sum(axis=1), dtype=np.int64)


def _word_ends(rows: Floats) -> Floats:
    """`[n]` log-probability of ASCII whitespace or the end of text in `[n, 257]` rows, nats."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(rows[:, ENDS].sum(axis=1)))
