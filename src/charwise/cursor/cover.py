"""The bundles that cover a text at the cursor: made in rounds, and kept up byte by byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import Bundle, Extension, log, log_sum, next_byte_masses
from charwise.cursor.shared_tree import SharedTree
from charwise.engine import TokenTree
from charwise.errors import LimitError, impossible
from charwise.scoring.effort import PRESETS, Effort
from charwise.scoring.lattice import WIDTH, Lattice
from charwise.scoring.rounds import Refinement, refine, repeats
from charwise.tokens.known_text import KnownText

#: Bundles lighter than this share of the text's probability are dropped, unless the effort is
#: exact.
_LIGHT = 1e-12

#: A typed byte keeps this part of the error before it, and adds this part of the share that is
#: recombined at it.
_FADING, _RECOMBINED = 0.85, 0.4


class Cover(NamedTuple):
    """The bundles kept of a text's covering."""

    bundles: tuple[Bundle, ...]
    logprob: float  # log →p(text | what is before the root), nats
    error: float = 0.0  # of the next byte's distribution, total variation: an estimate
    change: float = 0.0  # of that, what the rounds changed

    @classmethod
    def of(
        cls,
        shared: SharedTree,
        whole: bytes,
        canonical: Sequence[int],
        effort: Effort,
        also: Sequence[Sequence[int]] = (),
    ) -> Cover:
        """The cover of a text from the tree's root on, where `canonical` are its tokens.

        A tolerance of the effort is here a total variation. `also` are other evaluated paths, as of
        `SharedTree.prefill`. After a long prompt they may be enough: a round takes a model call,
        and where these paths change little, little is left to find.

        Raises:
            ZeroProbabilityError: if nothing spells the text, or what may spell it was left out.
            LimitError: if the exact sum was asked for and the text has too many token strings.
        """
        known = KnownText.of(whole[shared.start :], shared.index)
        if effort.exact or effort.tolerance is not None:
            also = ()
        repeated = bool(repeats(known)[-1:].any())
        quick = bool(shared.canonical_ids and also) and effort.rounds <= PRESETS["default"].rounds
        quick = quick and not repeated
        budget = Effort(effort.levels, effort.typed_threshold) if quick else effort
        with shared.lock:
            size = shared.tree.size
            stated = _NextByteError(shared.tree, known, len(also) or known.deepest, quick)
            work = Refinement(
                shared.tree,
                known,
                canonical,
                budget,
                # Here each round is waited for. Those at the last θ are for what repeats.
                most_rounds=effort.rounds if repeated else effort.levels,
                through=True,
                max_depth=shared.room,
                shared=True,
                also=also,
                stated_error=stated.update,
            )
            try:
                refine([work])
            except LimitError:
                shared.drop(range(size, shared.tree.size))
                raise
        lattice = work.lattice
        if not lattice.reached:
            raise impossible(whole, float(lattice.missing.sum()))
        # An implied leading space is conditioned on: it is not part of the text.
        implied = len(shared.opening.implied_prefix) - shared.start
        condition = float(lattice.log_prefix[implied]) if implied > 0 else 0.0
        error = 0.0 if effort.exact else stated.error
        if quick:  # what was not looked for may be as much
            error = max(error, effort.typed_threshold)
        change = 0.0 if effort.exact else stated.change
        bundles = tuple(_bundles_of(lattice, known, condition))
        logprob = float(lattice.log_prefix[-1]) - condition
        return cls(bundles, logprob, error, change)._without_light(effort)

    def after(self, tree: TokenTree, byte: int, effort: Effort) -> Cover | None:
        """The cover after one more byte: every bundle narrowed, the contexts that end here opened.

        None where rounds do better: the byte is less likely than the change, or no bundle goes on
        with it; or the error has come to more than the tolerance.
        """
        narrowed = [b for b in (bundle.narrow(tree, byte) for bundle in self.bundles) if b]
        logprob = log_sum([bundle.log_p for bundle in narrowed])
        # Of a byte that is less likely than what the rounds changed, too little is known.
        if logprob == -math.inf or math.exp(logprob - self.logprob) < self.change:
            return None
        longer = self._replace(bundles=tuple(narrowed), logprob=logprob)._without_light(effort)
        ended = sorted((e for b in longer.bundles for e in b.extend(tree)), reverse=True)
        shares = [math.exp(extension.log_weight - logprob) for extension in ended]
        count = sum(share >= effort.typed_threshold for share in shares)
        count = count if effort.exact else min(count, WIDTH)
        opened = Bundle.open(tree, ended[:count])
        left_out = math.fsum(shares[count:]) * (_RECOMBINED if opened else 1.0)
        error = 0.0 if effort.exact else min(1.0, longer.error * _FADING + left_out)
        if effort.tolerance is not None and error > effort.tolerance:
            return None
        change = min(1.0, self.change * _FADING + left_out)
        return Cover((*longer.bundles, *_recombined(opened, ended)), logprob, error, change)

    def _without_light(self, effort: Effort) -> Cover:
        """The cover with the bundles that weigh something."""
        floor = -math.inf if effort.exact else self.logprob + math.log(_LIGHT)
        return self._replace(bundles=tuple(b for b in self.bundles if b.log_p >= floor))


class _NextByteError:
    """The change of the next byte's distribution while θ fell, and what is missing at the end."""

    def __init__(self, tree: TokenTree, known: KnownText, end: int, quick: bool) -> None:
        self._tree, self._known = tree, known
        self._end = end  # bytes
        self._quick = quick  # a change decides whether to go on, not what is recombined
        self._probs: list[NDArray[np.float64]] = []
        self._logprobs: list[float] = []
        self.error = self.change = 0.0

    def update(self, lattice: Lattice, since: int) -> float:
        """The error after one more round, a total variation: the change is since that update."""
        masses = next_byte_masses(self._tree, _bundles_of(lattice, self._known))[0]
        self._probs.append(masses / max(float(masses.sum()), 1e-300))
        change = float(np.abs(self._probs[-1] - self._probs[since]).sum()) / 2
        # Before the end, candidates that no context was recombined with lack their share too.
        last = slice(max(0, lattice.n - self._end), None)
        change = min(1.0, change + float(lattice.missing[last].sum()))
        self.change = change
        # What the candidates may change: each counts as the context that it is recombined with.
        lattice.sum_backward()
        edge, value = lattice.candidates(math.inf)
        fading = _FADING ** (lattice.n - lattice.contexts.end[edge])
        self.error = max(change, min(1.0, _RECOMBINED * float(value @ fading)))
        # That the text itself became likelier shows alternatives too.
        self._logprobs.append(float(lattice.log_prefix[-1]))
        likelier = self._logprobs[-1] - self._logprobs[since]
        change = max(change, likelier) if lattice.reached else change
        return change if self._quick else max(change, self.error)


def _bundles_of(lattice: Lattice, known: KnownText, condition: float = 0.0) -> list[Bundle]:
    """The evaluated contexts that cover a text, as bundles, given a beginning of this log p."""
    c, n = lattice.contexts, lattice.n
    ends, part = np.flatnonzero(c.position == n), np.flatnonzero(c.at == n)
    covering = [(context, 1.0) for context in ends.tolist()]
    covering += zip(c.held[part].tolist(), c.starting[part].tolist(), strict=True)
    bundles = []
    for context, mass in covering:
        weight, start = float(lattice.weight[context]), int(c.position[context])
        if weight > 0 and mass > 0:
            lo, hi = 0, len(known.index.sorted)
            if start < n:
                lo, hi = int(known.lo[start, n - start - 1]), int(known.hi[start, n - start - 1])
            log_weight = log(weight) + float(lattice.unit[start]) - condition
            bundle = Bundle(int(c.node[context]), log_weight, n - start, lo, hi, 0.0)
            bundles.append(bundle._replace(log_p=log_weight + log(mass)))
    return bundles


def _recombined(opened: Sequence[Bundle], ended: Sequence[Extension]) -> list[Bundle]:
    """The bundles opened at the end of a text, with the weights of the other contexts.

    Each is recombined with the heaviest with the same last token, or else with the heaviest.
    """
    if not opened:
        return []
    heavy, others = ended[: len(opened)], ended[len(opened) :]
    to = {extension.token: n for n, extension in reversed(list(enumerate(heavy)))}
    logs = [[bundle.log_weight] for bundle in opened]
    for extension in others:
        logs[to.get(extension.token, 0)].append(extension.log_weight)
    weights = [log_sum(some) for some in logs]
    return [
        bundle._replace(log_weight=weight, log_p=bundle.log_p + weight - bundle.log_weight)
        for bundle, weight in zip(opened, weights, strict=True)
    ]
