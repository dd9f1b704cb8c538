"""Ways to walk a known text, with what each says and what it costs.

Every method returns a `Walk`: the log-probability of each byte, and, if asked, the distribution
of each next byte. All slide over long texts with the same windows, so they differ only in the
contexts they visit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charwise.char_lm import CharLM
from charwise.coverings import beam as beams
from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.windows import plan
from charwise.scoring.effort import Effort
from charwise.scoring.score import Text, windows
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.prompts import Opening, split

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Walk:
    """What a method says about a text of n bytes.

    Attributes:
        logprobs: `[n]` log p(byte | all before), nats.
        distributions: `[n, 257]` p(byte | all before), end of text last; None if not asked for.
        contexts: contexts evaluated.
        calls: model calls, one after the other.
        seconds: wall-clock.

    >>> walk = Walk(np.log([0.5, 0.125]), None, contexts=3, calls=2, seconds=0.5)
    >>> walk.bits_per_byte, walk.bytes_per_second
    (2.0, 4.0)
    """

    logprobs: Floats
    distributions: Floats | None
    contexts: int
    calls: int
    seconds: float

    @property
    def bits_per_byte(self) -> float:
        """Mean surprisal of a byte."""
        return -float(self.logprobs.mean()) / math.log(2)

    @property
    def bytes_per_second(self) -> float:
        """Speed."""
        return len(self.logprobs) / self.seconds


def walked(
    opening: Opening,
    logprobs: Floats,
    rows: Floats | None,
    contexts: int,
    calls: int,
    started: float,
) -> Walk:
    """The `Walk` that began at `started` and ends now, without the lead that the tokenizer implies.

    >>> import time
    >>> walk = walked(Opening((0,), b" "), np.zeros(3), None, 1, 1, time.perf_counter())
    >>> len(walk.logprobs)
    2
    """
    lead = len(opening.lead)
    seconds = time.perf_counter() - started
    distributions = None if rows is None else rows[lead:]
    return Walk(logprobs[lead:], distributions, contexts, calls, seconds)


def walk_rounds(lm: CharLM, prompt: Prompt, effort: Effort, *, distributions: bool = False) -> Walk:
    """Refinement in rounds (`CharLM.score`).

    >>> import charwise
    >>> walk = walk_rounds(charwise.load(), "import os", Effort(8), distributions=True)
    >>> walk.logprobs.shape, walk.distributions.shape
    ((9,), (9, 257))
    """
    opening, text = split(lm.vocabulary, prompt)
    logprobs = np.zeros(len(text))
    rows = np.zeros((len(text), 257)) if distributions else None
    contexts = calls = 0
    started = time.perf_counter()
    done = windows(lm.engine, lm.index, Text(opening, text), effort, distributions=distributions)
    for window, found in done:
        part = slice(window.scored, window.stop)
        ahead = window.scored - window.begin
        logprobs[part] = np.diff(found.lattice.log_prefix[ahead:])
        if rows is not None:
            rows[part] = found.lattice.distributions()[ahead:]
        contexts += found.rows.tree.contexts
        calls += found.rows.tree.calls
    return walked(opening, logprobs, rows, contexts, calls, started)


def walk_beam(
    lm: CharLM,
    prompt: Prompt,
    k: int,
    theta: float = 0.0,
    *,
    distributions: bool = False,
) -> Walk:
    """Bundled beam summing, byte by byte (Vieira et al. 2025, Appendices D and G).

    >>> import charwise
    >>> walk_beam(charwise.load(), "import os", k=4).logprobs.shape
    (9,)
    """
    opening, text = split(lm.vocabulary, prompt)
    logprobs = np.zeros(len(text))
    rows = np.zeros((len(text), 257)) if distributions else None
    contexts = calls = 0
    started = time.perf_counter()
    for window in plan(lm.engine, lm.index, opening, text):
        evaluated = EvaluatedRows(lm.engine.tree(window.prompt_ids), lm.index)
        beam, kept = beams.start(evaluated, 0, k, theta, fallback=True), 0
        for at in range(window.begin, window.stop):
            if rows is not None and at >= window.scored:
                masses, _ = beam.next_byte_masses()
                rows[at] = masses / masses.sum()
            before, beam = beam.prefix_logprob, beam.step(text[at])
            if at >= window.scored:
                logprobs[at] = beam.prefix_logprob - before
            if evaluated.tree.size - kept > 4 * k + 256:
                evaluated.keep(beam.nodes())
                kept = evaluated.tree.size
        contexts += evaluated.tree.contexts
        calls += evaluated.tree.calls
    return walked(opening, logprobs, rows, contexts, calls, started)


def walk_canonical(lm: CharLM, prompt: Prompt) -> Walk:
    """One teacher-forced pass over the canonical tokens: plain perplexity.

    A token's log-probability is booked on its first byte, and the other bytes get 0: only sums
    over whole tokens mean anything.

    >>> import charwise
    >>> walk_canonical(charwise.load(), "import os").contexts     # the start, and all but the last
    2
    """
    opening, text = split(lm.vocabulary, prompt)
    logprobs = np.zeros(len(text))
    contexts = calls = 0
    started = time.perf_counter()
    for window in plan(lm.engine, lm.index, opening, text):
        tree = lm.engine.tree(window.prompt_ids)
        size, tokens = tree.size, window.canonical
        nodes = [0, *tree.extend([(size + n - 1, token) for n, token in enumerate(tokens[:-1])])]
        chosen = tree.logprobs(nodes)[np.arange(len(tokens)), tokens].double().tolist()
        at = window.begin
        for token, logprob in zip(tokens, chosen, strict=True):
            if at >= window.scored:
                logprobs[at] = logprob
            at += lm.index.length(token)
        contexts += tree.contexts
        calls += tree.calls
    return walked(opening, logprobs, None, contexts, calls, started)
