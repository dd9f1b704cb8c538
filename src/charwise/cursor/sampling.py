"""How tokens and bytes are drawn: temperature, top-k, top-p."""

from __future__ import annotations

import numpy as np
import torch

from charwise.cursor.distributions import NextBytes
from charwise.cursor.options import GenerationOptions


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

    >>> certain = NextBytes(np.eye(257)[100], missing=0.0)
    >>> draw_byte(certain, GenerationOptions(temperature=1.0), np.random.default_rng(0))
    100
    """
    if options.temperature == 0:
        return int(distribution.probs.argmax())
    scores = torch.from_numpy(distribution.logprobs)[None]
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return int(draw_tokens(scores, options, generator)[0])
