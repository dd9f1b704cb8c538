"""Token healing as a model of bytes: the baseline of Vieira et al. 2025, Appendix F."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from charwise.char_lm import CharLM
from charwise.coverings.bundles import Bundle, bundle_before, next_byte_masses
from charwise.coverings.log_sums import log
from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.windows import plan
from charwise.errors import zero_probability
from charwise.evaluation.methods import Walk, walked
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
    found = np.zeros((len(text), 257)) if distributions else None
    contexts = calls = 0
    started = time.perf_counter()
    for stretch in plan(lm.engine, lm.index, opening, text):
        rows = EvaluatedRows(lm.engine.tree(stretch.prompt_ids), lm.index)
        for start in range(stretch.scored, stretch.stop, _TOGETHER):
            positions = range(start, min(start + _TOGETHER, stretch.stop))
            healed = heal(rows, [text[stretch.begin : at] for at in positions])
            for at, cover in zip(positions, healed, strict=True):
                masses, _ = next_byte_masses(rows, cover.bundles)
                if not masses[text[at]] > 0:
                    raise zero_probability(text[: at + 1])
                probs = masses / masses.sum()
                logprobs[at] = math.log(probs[text[at]])
                if found is not None:
                    found[at] = probs
            rows.keep(healed[-1].path)
        contexts += rows.tree.contexts
        calls += rows.tree.calls
    return walked(opening, logprobs, found, contexts, calls, started)


class Healed(NamedTuple):
    """The covering of eq. 43.

    >>> Healed([0], []).path
    [0]
    """

    path: list[int]  # the nodes of the empty string, δ₁, δ₁δ₂, …, δ₁…δ_{N−1}
    bundles: list[Bundle]  # after the last of them, and, if that is spelled, after κ(δ_N)


def heal(rows: EvaluatedRows, prefixes: Sequence[bytes]) -> list[Healed]:
    """The healed coverings of several texts; all new contexts are evaluated in one call.

    The weights of the bundles are given δ₁…δ_{N−1}, which may itself be impossible.

    Raises:
        TokenizationError: a text that cannot be spelled.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> rows = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> [healed] = heal(rows, [b"aa"])
    >>> len(healed.path), round(math.exp(healed.bundles[0].log_p), 9)  # what starts with a
    (2, 0.75)
    """
    index = rows.index
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
    found = iter(rows.follow(branches))
    healed = []
    for rest, twins in wanted:
        path = [0, *next(found)]
        in_order = rows.row(path[-1]).in_order
        bundles = [bundle_before(rows, path[-1], 0.0, rest)]
        for twin in twins:
            weight = log(float(in_order[index.rank[twin]]))
            bundles.append(bundle_before(rows, next(found)[-1], weight, b""))
        healed.append(Healed(path, bundles))
    return healed
