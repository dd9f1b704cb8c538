"""How tokens are drawn: temperature, top-k, top-p, seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from charwise.errors import SettingError, check_count, check_number

#: Completions that are drawn at once, and particles.
MOST_DRAWN = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens: temperature 0 takes the most probable; top_k 0 means all.

    >>> Sampling(temperature=0.8, top_p=0.95).top_k
    0
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0.0, math.inf)
        if math.isinf(self.temperature):
            raise SettingError("temperature is infinite: it must be a number.")
        check_number("top_p", self.top_p, -math.inf, math.inf)
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top_p is {self.top_p}: it must lie in (0, 1].")
        check_count("top_k", self.top_k, 0)
        if self.seed is not None:
            check_count("seed", self.seed, 0)
        for name in ("temperature", "top_p"):  # which may be any kind of number
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def truncates(self) -> bool:
        """Whether tokens of low rank are left out."""
        return self.top_p < 1 or self.top_k > 0


def draw_tokens(
    logprobs: torch.Tensor, sampling: Sampling, generator: torch.Generator
) -> torch.Tensor:
    """`[n]` token ids from `[n, width]` log-probabilities.

    >>> logs = torch.tensor([[0.2, 0.8], [0.9, 0.1]]).log()
    >>> draw_tokens(logs, Sampling(), torch.Generator())
    tensor([1, 0])
    """
    if sampling.temperature == 0:
        if logprobs.is_cpu:  # NumPy looks through a row of 128k in a tenth of the time
            return torch.from_numpy(np.asarray(logprobs.numpy().argmax(axis=-1)))
        return logprobs.argmax(dim=-1)
    # Less their maximum first, so that the smallest temperatures do not overflow.
    scores = logprobs.double()
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / sampling.temperature
    if sampling.top_k:
        kth = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    probs = torch.softmax(scores, dim=-1)
    if sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= sampling.top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
    return torch.multinomial(probs, 1, generator=generator)[:, 0]
