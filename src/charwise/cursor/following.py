"""How tokens and bytes are drawn, and a constraint beside a text that is drawn token by token.

A token is drawn as if there were no constraint. If it may follow, it was drawn as often as it would
be from what may; if not, another is drawn from that alone:

    p(t) + (1 − Z) p(t) / Z = p(t) / Z,        Z = Σ { p(t) : t may follow }

So no mask is made where the model does by itself what the constraint says. At temperature 0 the few
likeliest tokens are tried in turn before one is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint, Flags, TokenConstraint
from charwise.cursor.distributions import NextBytes
from charwise.cursor.options import GenerationOptions
from charwise.errors import ConstraintError
from charwise.tokens.index import SortedVocabulary


def draw_tokens(
    logprobs: torch.Tensor, options: GenerationOptions, generator: torch.Generator
) -> torch.Tensor:
    """`[n]` token ids from `[n, width]` log-probabilities.

    >>> logs = torch.tensor([[0.2, 0.8], [0.9, 0.1]]).log()
    >>> draw_tokens(logs, GenerationOptions(), torch.Generator())
    tensor([1, 0])
    """
    if options.temperature == 0:
        if logprobs.is_cpu:  # NumPy looks through a row of 128k in a tenth of the time
            return torch.from_numpy(np.asarray(logprobs.numpy().argmax(axis=-1)))
        return logprobs.argmax(dim=-1)
    # Less their maximum first, so that the smallest temperatures do not overflow.
    scores = logprobs.double()
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / options.temperature
    if options.top_k:
        kth = scores.topk(min(options.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    probs = torch.softmax(scores, dim=-1)
    if options.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= options.top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


def draw_byte(distribution: NextBytes, options: GenerationOptions, rng: np.random.Generator) -> int:
    """A byte, or `EOS`, as the options say.

    >>> certain = NextBytes(np.eye(257)[100])
    >>> draw_byte(certain, GenerationOptions(temperature=1.0), np.random.default_rng(0))
    100
    """
    if options.temperature == 0:
        return int(distribution.probs.argmax())
    scores = torch.from_numpy(distribution.logprobs)[None]
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return int(draw_tokens(scores, options, generator)[0])


#: Where fewer than one token in so many may follow, the others are not looked at.
_SPARSE = 8


class Following:
    """The continuations of a text that is being drawn: over bytes, quick to ask, and over tokens.

    Attributes:
        allowed: `[257]` the bytes that may follow; at 256 whether the text may end here.

    >>> from charwise.constraints import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"n", b"no", b"not", None], end_ids=[3]))
    >>> following = Following.of(choices(["no", "n't"]), index)
    >>> row = torch.tensor([[0.1, 0.3, 0.5, 0.1]]).log()[0]
    >>> token, following = following.draw(2, row, GenerationOptions(), torch.Generator())
    >>> token, following.closed
    (1, True)
    """

    def __init__(
        self,
        constraint: Constraint,
        tokens: TokenConstraint,
        index: SortedVocabulary,
        since: bytes = b"",
    ) -> None:
        self._constraint, self._tokens, self._index = constraint, tokens, index
        self._since = since  # what came after `tokens`, which no mask was asked of since
        self.allowed: Flags = constraint.allowed()

    @classmethod
    def of(cls, constraint: Constraint, index: SortedVocabulary) -> Self:
        """A constraint, where the text begins."""
        return cls(constraint, constraint.over(index), index)

    @property
    def closed(self) -> bool:
        """Whether no byte may follow."""
        return not self.allowed[:END].any()

    def after(self, data: bytes) -> Self:
        """The same after more bytes.

        Raises:
            ConstraintError: if they may not follow.
        """
        further = self._constraint.after(data)
        return type(self)(further, self._tokens, self._index, self._since + data)

    def draw(
        self, token: int, row: torch.Tensor, options: GenerationOptions, generator: torch.Generator
    ) -> tuple[int, Self]:
        """A token drawn without the constraint, if it may follow, or another; the state after it.

        Args:
            token: drawn from the row.
            row: `[width]` log-probabilities.
            options, generator: how it was drawn.

        Returns:
            −1 for the token if none may follow, or all that may have probability zero.

        Raises:
            ConstraintError: where the constraint is too complex to be followed.
        """
        greedy = options.temperature == 0
        first = iter(() if options.truncates else (token,))
        candidates = _likeliest_first(row, token) if greedy else first
        for candidate in islice(candidates, 3):
            if self._may_come(candidate):
                try:
                    return candidate, self._past(candidate)
                except ConstraintError:
                    pass
        if self._since:
            self._tokens, self._since = self._tokens.after(self._since), b""
        mask = self._tokens.mask()
        if greedy:
            token = _likeliest(row.cpu().numpy(), mask, candidates)
        else:
            token = _drawn(row, mask, options, generator)
        return token, self if token < 0 else self._past(token)

    def _may_come(self, token: int) -> bool:
        """Whether a token may follow, as far as its first byte says."""
        vocabulary = self._index.vocabulary
        if token in vocabulary.end_ids:
            return bool(self.allowed[END])
        data = vocabulary.tokens[token]
        return bool(data and self.allowed[data[0]])

    def _past(self, token: int) -> Self:
        """The state after a token."""
        data = self._index.vocabulary.tokens[token]
        return self.after(data) if data else self


def _likeliest_first(row: torch.Tensor, token: int) -> Iterator[int]:
    """Tokens, the most probable first: `token`, and those that come next.

    None of probability zero, which `token` is where all are.

    >>> list(_likeliest_first(torch.tensor([0.2, 0.7, 0.1]).log(), 1))
    [1, 0, 2]
    >>> list(_likeliest_first(torch.tensor([0.0, 1.0]).log(), 1))
    [1]
    """
    if float(row[token]) == -math.inf:
        return
    yield token
    scores = row.cpu().numpy()
    runs: list[tuple[float, int, int, int]] = []  # less its best score, which token, from, to

    def add(start: int, stop: int) -> None:
        if start < stop:
            best = start + int(scores[start:stop].argmax())
            heappush(runs, (-float(scores[best]), best, start, stop))

    add(0, token)
    add(token + 1, len(scores))
    while runs:
        negative, best, start, stop = heappop(runs)
        if negative == math.inf:
            break
        yield best
        add(start, best)
        add(best + 1, stop)


def _likeliest(row: NDArray[np.floating], mask: Flags, candidates: Iterator[int]) -> int:
    """The most probable token that may follow; −1 if none may, or all have probability zero.

    The candidates are the likeliest of those that are left, in their order: where many may follow,
    one of the first does.

    NumPy's `argmax` takes 5 µs for 128k numbers in single precision, PyTorch's 70, and a choice by
    the mask 500 where it is irregular: so what may not follow is made small by arithmetic.

    >>> row = np.array([-1.0, -2.0, -np.inf], dtype=np.float32)
    >>> _likeliest(row, np.array([False, True, True]), iter(()))
    1
    """
    if _SPARSE * np.count_nonzero(mask) < len(mask):
        ids = np.flatnonzero(mask)
        token = int(ids[row[ids].argmax()]) if len(ids) else -1
    else:
        for candidate in islice(candidates, 8):
            if mask[candidate]:
                return candidate
        scores = np.subtract(mask, 1, dtype=row.dtype)
        scores *= 1e30  # beyond any logarithm of a probability but that of zero
        scores += row
        token = int(scores.argmax())
    return token if token >= 0 and mask[token] and row[token] > -math.inf else -1


def _drawn(
    row: torch.Tensor, mask: Flags, options: GenerationOptions, generator: torch.Generator
) -> int:
    """One of the tokens that may follow; −1 if none may, or all have probability zero."""
    if _SPARSE * np.count_nonzero(mask) < len(mask):
        ids = torch.from_numpy(np.flatnonzero(mask)).to(row.device)
        some = row[ids]
    else:
        ids = None
        some = row.masked_fill(torch.from_numpy(~mask).to(row.device), -torch.inf)
    if not len(some) or float(some.max()) == -math.inf:
        return -1
    drawn = int(draw_tokens(some[None], options, generator)[0])
    return drawn if ids is None else int(ids[drawn])
