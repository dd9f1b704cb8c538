"""Ways to walk a known text, with the numbers and the cost of each.

Every method returns a `Walk`: the log-probability of each byte, and, if asked, the distribution
of each next byte. All slide over long texts with the same windows, so they differ only in the
contexts they visit.

Token healing is read as a model of bytes: the baseline of Vieira et al. 2025, Appendix F.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.char_lm import CharLM
from charwise.coverings.beam import Beam
from charwise.coverings.bundles import Bundle, log, next_byte_masses
from charwise.coverings.windows import plan
from charwise.engine import TokenTree
from charwise.errors import impossible
from charwise.scoring.effort import Effort
from charwise.scoring.score import Scorer, Text
from charwise.tokens.prompts import Prompt

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Walk:
    """The results of a method for a text of n bytes.

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


class _Record:
    """The results of a walk over a prompt's text, and its cost so far.

    >>> import charwise
    >>> _Record(charwise.load(), "import os").walk().logprobs.shape
    (9,)
    """

    def __init__(self, lm: CharLM, prompt: Prompt, distributions: bool = False) -> None:
        self.opening, self.text = lm.vocabulary.split_prompt(prompt)
        self.logprobs = np.zeros(len(self.text))
        self.rows = np.zeros((len(self.text), 257)) if distributions else None
        self._contexts = self._calls = 0
        self._started = time.perf_counter()

    def count(self, tree: TokenTree) -> None:
        """Add the cost of a tree, once it is done."""
        self._contexts += tree.contexts
        self._calls += tree.calls

    def walk(self) -> Walk:
        """Return the walk, which ends now, without the lead that the tokenizer implies."""
        seconds, lead = time.perf_counter() - self._started, len(self.opening.implied_prefix)
        rows = None if self.rows is None else self.rows[lead:]
        return Walk(self.logprobs[lead:], rows, self._contexts, self._calls, seconds)


def walk_rounds(lm: CharLM, prompt: Prompt, effort: Effort, *, distributions: bool = False) -> Walk:
    """Refinement in rounds (`CharLM.score`).

    >>> import charwise
    >>> walk = walk_rounds(charwise.load(), "import os", Effort(4), distributions=True)
    >>> walk.logprobs.shape, walk.distributions.shape
    ((9,), (9, 257))
    """
    record = _Record(lm, prompt, distributions)
    opening, text, rows = record.opening, record.text, record.rows
    scorer = Scorer(lm.engine, lm.index, effort, entropy="byte" if distributions else None)
    for window, found in scorer.windows(Text(opening, text)):
        part = slice(window.scored, window.stop)
        ahead = window.scored - window.begin
        record.logprobs[part] = np.diff(found.lattice.log_prefix[ahead:])
        if rows is not None:
            rows[part] = found.lattice.distributions()[ahead:]
        record.count(found.tree)
    return record.walk()


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
    record = _Record(lm, prompt, distributions)
    opening, text, rows = record.opening, record.text, record.rows
    for window in plan(lm.engine, lm.index, opening, text):
        tree = lm.engine.tree(window.prompt_ids)
        beam, kept = Beam.start(tree, 0, k, theta, fallback=True), 0
        for at in range(window.begin, window.stop):
            if rows is not None and at >= window.scored:
                masses, _ = beam.next_byte_masses()
                rows[at] = masses / masses.sum()
            before, beam = beam.prefix_logprob, beam.step(text[at])
            if at >= window.scored:
                record.logprobs[at] = beam.prefix_logprob - before
            if tree.size - kept > 4 * k + 256:
                tree.keep(beam.nodes())
                kept = tree.size
        record.count(tree)
    return record.walk()


def walk_canonical(lm: CharLM, prompt: Prompt) -> Walk:
    """One teacher-forced pass over the canonical tokens: plain perplexity.

    A token's log-probability is booked on its first byte, and the other bytes get 0: only sums
    over whole tokens mean anything.

    >>> import charwise
    >>> walk_canonical(charwise.load(), "import os").contexts     # the start, and all but the last
    2
    """
    record = _Record(lm, prompt)
    for window in plan(lm.engine, lm.index, record.opening, record.text):
        tree = lm.engine.tree(window.prompt_ids)
        tokens = window.canonical
        nodes = [0, *tree.extend([(0, tokens[:-1])])[0]]
        chosen = tree.logprobs(nodes)[np.arange(len(tokens)), tokens].double().tolist()
        at = window.begin
        for token, logprob in zip(tokens, chosen, strict=True):
            if at >= window.scored:
                record.logprobs[at] = logprob
            at += lm.index.length(token)
        record.count(tree)
    return record.walk()


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
    record = _Record(lm, prompt, distributions)
    text, found = record.text, record.rows
    for stretch in plan(lm.engine, lm.index, record.opening, text):
        tree = lm.engine.tree(stretch.prompt_ids)
        for start in range(stretch.scored, stretch.stop, _TOGETHER):
            positions = range(start, min(start + _TOGETHER, stretch.stop))
            healed = _heal(tree, [text[stretch.begin : at] for at in positions])
            for at, cover in zip(positions, healed, strict=True):
                masses, _ = next_byte_masses(tree, cover.bundles)
                if not masses[text[at]] > 0:
                    raise impossible(text[: at + 1])
                probs = masses / masses.sum()
                record.logprobs[at] = math.log(probs[text[at]])
                if found is not None:
                    found[at] = probs
            tree.keep(healed[-1].path)
        record.count(tree)
    return record.walk()


class _Healed(NamedTuple):
    """The covering of eq. 43.

    >>> _Healed([0], []).path
    [0]
    """

    path: list[int]  # the nodes of the empty string, δ₁, δ₁δ₂, …, δ₁…δ_{N−1}
    bundles: list[Bundle]  # after the last of them, and, if that is spelled, after κ(δ_N)


def _heal(tree: TokenTree, prefixes: Sequence[bytes]) -> list[_Healed]:
    """The healed coverings of several texts; all new contexts are evaluated in one call.

    The weights of the bundles are given δ₁…δ_{N−1}, which may itself be impossible.

    Raises:
        VocabularyError: a text that cannot be spelled.

    >>> from charwise.engines.ngram import example_lm
    >>> tree = example_lm().tree([2])
    >>> [healed] = _heal(tree, [b"aa"])
    >>> len(healed.path), round(math.exp(healed.bundles[0].log_p), 9)  # what starts with a
    (2, 0.75)
    """
    index = tree.index
    wanted, branches = list[tuple[bytes, list[int]]](), list[tuple[int, list[int]]]()
    for prefix in prefixes:
        tokens = index.vocabulary.encode_beginning(prefix)
        if tokens and sum(map(index.length, tokens)) == len(prefix):
            tokens.pop()  # what falls short of the end has the part of a token to heal already
        rest = prefix[sum(map(index.length, tokens)) :]
        lo, hi = index.same_bytes(rest) if rest else (0, 0)
        twins = index.ids[lo:hi].tolist()
        wanted.append((rest, twins))
        branches += [(0, tokens), *((0, [*tokens, twin]) for twin in twins)]
    found = iter(tree.extend(branches))
    healed = []
    for rest, twins in wanted:
        path = [0, *next(found)]
        in_order = tree.row(path[-1]).in_order
        bundles = [Bundle.before(tree, path[-1], 0.0, rest)]
        for twin in twins:
            weight = log(float(in_order[index.rank[twin]]))
            bundles.append(Bundle.before(tree, next(found)[-1], weight, b""))
        healed.append(_Healed(path, bundles))
    return healed
