"""Token healing as a model of bytes: the baseline of Vieira et al. 2025, Appendix F."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from charwise.coverings.bundles import bundle_before, next_byte_masses
from charwise.coverings.log_sums import log
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import zero_probability
from charwise.evaluation.methods import Floats, Walk, walked
from charwise.known_text.windows import plan
from charwise.model import CharLM
from charwise.tokens.prompt_parts import Prompt
from charwise.tokens.prompts import split

#: Bytes of the text whose contexts are evaluated in one call.
_TOGETHER = 64


def walk_healed(lm: CharLM, prompt: Prompt, *, distributions: bool = False) -> Walk:
    """Token healing (Vieira et al. 2025, Appendix F).

    With δ₁…δ_N the canonical tokens of the text so far, p(byte) is proportional to the mass of
    the tokens that start with κ(δ_N)·byte after δ₁…δ_{N−1}, plus what δ_N itself (or a token of
    the same bytes) leaves to the next token: the paper's `next_character_probability` over the
    covering of eq. 43. Each byte's probability is normalised by itself; their product is not the
    prefix probability of any one model of tokens. The text being known, the contexts of many
    bytes are evaluated in one call.

    Raises:
        ZeroProbabilityError: where healing gives the next byte of the text probability zero.

    >>> import charwise
    >>> walk_healed(charwise.load(), "import os").logprobs.shape
    (9,)
    """
    opening, text = split(lm.vocabulary, prompt)
    logprobs = np.zeros(len(text))
    rows = np.zeros((len(text), 257)) if distributions else None
    contexts = calls = 0
    started = time.perf_counter()
    for stretch in plan(lm.engine, lm.index, opening, text):
        evaluated = EvaluatedRows(lm.engine.tree(stretch.prompt_ids), lm.index)
        for start in range(stretch.scored, stretch.stop, _TOGETHER):
            positions = range(start, min(start + _TOGETHER, stretch.stop))
            healed = _heal(evaluated, [text[stretch.begin : at] for at in positions])
            for at, cover in zip(positions, healed, strict=True):
                masses = cover.next_byte_masses(evaluated)
                if not masses[text[at]] > 0:
                    raise zero_probability(text[: at + 1])
                probs = masses / masses.sum()
                logprobs[at] = math.log(probs[text[at]])
                if rows is not None:
                    rows[at] = probs
            evaluated.keep(healed[-1].path)
        contexts += evaluated.tree.contexts
        calls += evaluated.tree.calls
    return walked(opening, logprobs, rows, contexts, calls, started)


@dataclass(frozen=True)
class _Healed:
    """The covering of eq. 43: one context, and the bytes that the next token must start with."""

    path: list[int]  # the nodes of δ₁, δ₁δ₂, …, δ₁…δ_{N−1}
    rest: bytes  # κ(δ_N)
    ended: list[tuple[int, int]]  # (token, node) of each context that a token equal to `rest` makes

    def next_byte_masses(self, evaluated: EvaluatedRows) -> Floats:
        """`[257]` masses of the next byte, at 256 of the end of text, up to a factor."""
        node, index = self.path[-1], evaluated.index
        logs = evaluated.row(node).in_order
        bundles = [bundle_before(evaluated, node, 0.0, self.rest)]
        for token, after in self.ended:
            weight = log(float(logs[index.rank[token]]))
            bundles.append(bundle_before(evaluated, after, weight, b""))
        return next_byte_masses(evaluated, bundles)[0]


def _heal(evaluated: EvaluatedRows, prefixes: list[bytes]) -> list[_Healed]:
    """The healed coverings of several prefixes; all new contexts in one call."""
    index = evaluated.index
    wanted, branches = list[tuple[bytes, list[int]]](), list[tuple[int, list[int]]]()
    for prefix in prefixes:
        tokens = index.vocabulary.encode_beginning(prefix)
        if tokens and sum(map(index.length, tokens)) == len(prefix):
            tokens.pop()  # what falls short of the end has the part of a token to heal already
        rest = prefix[sum(map(index.length, tokens)) :]
        lo, hi = index.twins(rest) if rest else (0, 0)
        twins = index.ids[lo:hi].tolist()
        wanted.append((rest, twins))
        branches += [(0, tokens), *((0, [*tokens, twin]) for twin in twins)]
    found = iter(evaluated.follow(branches))
    healed = []
    for rest, twins in wanted:
        path = [0, *next(found)]
        healed.append(_Healed(path, rest, [(twin, next(found)[-1]) for twin in twins]))
    return healed
