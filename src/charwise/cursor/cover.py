"""The bundles that cover a text at the cursor: made in rounds, and kept up byte by byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import (
    Bundle,
    Extension,
    extend,
    narrow,
    next_byte_masses,
    open_bundles,
)
from charwise.coverings.log_sums import log, log_sum
from charwise.coverings.rows import EvaluatedRows
from charwise.cursor.shared_tree import EXACT_TOKENS, SharedTree
from charwise.errors import SearchLimitError, impossible
from charwise.known_text.effort import PRESETS, Effort
from charwise.known_text.estimate import faded
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds

#: Bundles lighter than this share of the text's probability are dropped, and counted, unless
#: the effort is to drop nothing (θ = 0).
_LIGHT = 1e-12

#: θ falls by this factor when nothing that was kept spells the text, until so many contexts were
#: evaluated in vain.
_FINER, _MOST = 1e-2, 4096

#: By what θ is less where a text is summed as a whole: it is short, and there is no prefill.
_WHOLE = 5.0

#: Bytes before the cursor of which what was lent still counts.
_RECENT = 32

#: By how much an error fades with a byte that is typed, and how much of what is lent it gains.
_FADING, _STEPPED = 0.85, 0.4


#: A context that is typed into earns an evaluation at this part of θ, however it agrees with
#: others: who is let go is not looked for again, as rounds do.
_WORTH = 0.25


class Cover(NamedTuple):
    """The bundles kept of a text's covering.

    >>> Cover((), -1.5, left_out=((3, 0.25), (7, 0.125))).missing
    0.375
    """

    bundles: tuple[Bundle, ...]
    logprob: float  # log →p(text | what is before the root), nats
    left_out: tuple[tuple[int, float], ...] = ()  # where in the text, and what share there
    error: float = 0.0  # of the next byte's distribution, total variation: an estimate
    limited: bool = False  # whether a limit ended the work, not the tolerance
    settled: float = 0.0  # the error as of the last rounds

    @property
    def missing(self) -> float:
        """Share of the probability that was left out."""
        return min(1.0, math.fsum(share for _, share in self.left_out))


def covers_in_rounds(
    shared: SharedTree, whole: bytes, canonical: Sequence[int], effort: Effort
) -> Iterator[Cover]:
    """Covers of a text from the tree's root on, in rounds: as asked, then with ever more effort.

    The first is what was asked for. The others are for when too much was left out of it: nearly
    always none of them is needed.

    Args:
        shared: the tree; its root is after `shared.start` bytes of the text.
        whole: the text, lead included.
        canonical: the tokens of `whole[shared.start:]`.
        effort: how much to spend.

    Raises:
        ZeroProbabilityError: if nothing spells the text.
        EmptyBeamError: if nothing was found that does, after `_MOST` contexts.
        SearchLimitError: if θ = 0 was asked for and the text has too many token strings.

    >>> import charwise
    >>> from charwise.cursor.shared_tree import prefill
    >>> from charwise.tokens.prompts import split
    >>> lm = charwise.load()
    >>> opening, text = split(lm.vocabulary, "import nump")
    >>> shared, rest = prefill(lm.engine, lm.index, opening, text)
    >>> next(covers_in_rounds(shared, text, rest, lm.effort)).logprob < -5
    True
    """
    known = KnownText.of(whole[shared.start :], shared.index)
    before = shared.evaluated.tree.size
    if effort.tolerance is not None and not (shared.given or shared.summed):
        effort = effort._replace(theta=effort.theta / _WHOLE, first=effort.first / _WHOLE)
    finer = False
    while True:
        with shared.lock:
            if shared.summed and finer:  # what the sum before needed is dropped
                shared.restart()
            size = shared.evaluated.tree.size
            steps = Steps(shared.evaluated, known)
            rounds = Rounds(
                shared.evaluated,
                0,
                known,
                canonical,
                effort,
                through=True,
                deepest=shared.room,
                watch=steps.error,
                at_cursor=bool(shared.given) and not shared.summed,
                lets_go=shared.summed,
            )
            try:
                lattice = rounds.run()
            except SearchLimitError as refused:
                shared.drop(range(size, shared.evaluated.tree.size))
                # Nobody asked for all of them where a coarser sum came first, and found nothing.
                raise (impossible(whole, 1.0) if finer else refused) from None
            finer = True
            found = bool(np.isfinite(lattice.log_prefix[-1]))
            cover = _cover_of(lattice, known, shared, effort) if found else None
            if cover is not None and shared.summed:
                shared.settle([bundle.node for bundle in cover.bundles])
        if cover is not None:
            error = min(1.0, steps.last + (_far(lattice) if shared.summed else 0.0))
            yield cover._replace(error=error, limited=rounds.limited, settled=error)
        most = shared.evaluated.tree.size - before > _MOST
        if effort == PRESETS["exact"] or most:
            raise impossible(whole, float(most))
        theta = effort.theta * _FINER
        effort = Effort(theta, 1.0, lookahead=0) if theta > _LIGHT else PRESETS["exact"]


def _far(lattice: Lattice) -> float:
    """What the errors of the last bytes make of the next one's distribution, a total variation.

    Half of their mean, as a total variation is half of a sum of differences.
    """
    return float(lattice.error[-_RECENT:].mean()) / 2


class Steps:
    """By how much each step of the rounds changes the distribution of the next byte.

    Args:
        rows: the evaluated contexts.
        known: the text before the cursor.

    Attributes:
        last: the error as of the last step, a total variation.

    >>> import charwise
    >>> lm = charwise.load()
    >>> rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    >>> Steps(rows, KnownText.of(b"import os", lm.index)).last
    0.0
    """

    def __init__(self, rows: EvaluatedRows, known: KnownText) -> None:
        self._rows, self._known = rows, known
        self._probs: NDArray[np.float64] | None = None
        self.last = 0.0

    def error(self, lattice: Lattice) -> float:
        """What the last step changed, and what is still lent or left out."""
        size = len(self._known.text)
        recent = slice(max(0, size - _RECENT), size + 1)
        shares = faded(lattice.lent[recent] + lattice.missing[recent])
        error = float(shares[-1])
        if lattice.effort.lends:
            probs = self._next(bundles_at(lattice, self._known, size))
            if self._probs is not None:
                error += float(np.abs(probs - self._probs).sum()) / 2
            self._probs = probs
        self.last = min(1.0, error)
        return self.last

    def _next(self, bundles: Sequence[Bundle]) -> NDArray[np.float64]:
        masses = next_byte_masses(self._rows, bundles)[0]
        return np.asarray(masses / max(float(masses.sum()), 1e-300))


def _cover_of(lattice: Lattice, known: KnownText, shared: SharedTree, effort: Effort) -> Cover:
    """The cover of a whole known text, from its finished lattice."""
    size = len(known.text)
    left_out = tuple(
        (shared.start + at, float(lattice.missing[at]))
        for at in np.flatnonzero(lattice.missing).tolist()
    )
    whole = Cover(
        tuple(bundles_at(lattice, known, size)), float(lattice.log_prefix[size]), left_out
    )
    cover = _without_light(whole, shared.start + size, effort)
    if shared.summed:
        since = _horizon(shared.evaluated, cover.bundles, shared.start + size)
        left_out = tuple((at, share) for at, share in cover.left_out if at > since)
        cover = cover._replace(left_out=left_out)
    # An implied leading space is conditioned on: it is not part of the text.
    lead = len(shared.opening.lead) - shared.start
    return _given(cover, float(lattice.log_prefix[lead])) if lead > 0 else cover


def bundles_at(lattice: Lattice, known: KnownText, position: int) -> list[Bundle]:
    """The evaluated contexts of a lattice that cover `known.text[:position]`, as bundles.

    >>> import charwise
    >>> from charwise.known_text.windows import stretches
    >>> from charwise.tokens.prompts import split
    >>> lm, text = charwise.load(), b"import os"
    >>> opening, _ = split(lm.vocabulary, "")
    >>> [(_, rounds)] = stretches(lm.engine, lm.index, opening, text, lm.effort)
    >>> {bundle.depth for bundle in bundles_at(rounds.lattice, rounds.known, 2)} <= {0, 1, 2}
    True
    """
    found = []
    for start in range(max(0, position - known.deepest), position + 1):
        depth = position - start
        for vertex in lattice.at[start]:
            weight = lattice.log_weight(vertex)
            if depth == 0:
                lo, hi, log_p = 0, len(known.index.sorted), weight
            elif depth <= len(vertex.starting):
                lo, hi = int(known.lo[start, depth - 1]), int(known.hi[start, depth - 1])
                log_p = weight + log(vertex.starting[depth - 1])
            else:
                continue
            if log_p > -math.inf:
                found.append(Bundle(vertex.node, weight, depth, lo, hi, log_p))
    return found


def cover_after(
    rows: EvaluatedRows, cover: Cover, size: int, byte: int, effort: Effort
) -> Cover | None:
    """A cover after one more byte: every bundle narrowed, the contexts that end here opened.

    None if it takes rounds to do better: what is left of the probability may be the lesser part,
    less than what was left out, as where no bundle goes on with the byte; or the error of what was
    typed since the last rounds has come to more than the tolerance.

    Args:
        rows: the evaluated contexts.
        cover: of a text.
        size: bytes of the text with the new one.
        byte: the new one.
        effort: which contexts are worth an evaluation.
    """
    tolerance, effort = effort.tolerance, effort.stepping
    kept = [b for b in (narrow(rows, bundle, byte) for bundle in cover.bundles) if b]
    logprob = log_sum([bundle.log_p for bundle in kept])
    if logprob == -math.inf or math.exp(logprob - cover.logprob) < cover.missing:
        return None
    longer = _without_light(cover._replace(bundles=tuple(kept), logprob=logprob), size, effort)
    ended = [extension for bundle in longer.bundles for extension in extend(rows, bundle)]
    heavy, others = _worth_opening(ended, logprob, effort)
    share, lent = math.fsum(share for _, share in others), 0.0
    opened = open_bundles(rows, heavy)
    if effort.lends and opened:
        opened, share, lent = _lend(opened, heavy, others), 0.0, share
    left_out = (*longer.left_out, (size, share)) if share > 0 else longer.left_out
    if left_out:
        since = _horizon(rows, longer.bundles, size)
        left_out = tuple((at, share) for at, share in left_out if at > since)
    error = min(1.0, cover.error * _FADING + _STEPPED * lent + share)
    if tolerance is not None and error > max(tolerance, 4 * cover.settled):
        return None
    return longer._replace(bundles=(*longer.bundles, *opened), left_out=left_out, error=error)


def _worth_opening(
    ended: list[Extension], logprob: float, effort: Effort
) -> tuple[list[Extension], list[tuple[Extension, float]]]:
    """The contexts that weigh enough to be evaluated, and the others with their shares."""
    ended = sorted(ended, reverse=True)
    shares = [math.exp(extension.log_weight - logprob) for extension in ended]
    count = 0
    for share in shares:
        # No context was evaluated here before the first; and whatever θ is, the better part is
        # never left out.
        least = _WORTH * effort.theta if count else min(effort.first, _WORTH * effort.theta)
        if share < least and math.fsum(shares[count:]) <= 0.5:
            break
        count += 1
    return ended[:count], list(zip(ended[count:], shares[count:], strict=True))


def _lend(
    opened: Sequence[Bundle],
    heavy: Sequence[Extension],
    others: Sequence[tuple[Extension, float]],
) -> list[Bundle]:
    """The bundles opened at the end of a text, with the weights of the others lent to them.

    To the heaviest with the same last token, or else to the heaviest.
    """
    to = {extension.token: n for n, extension in reversed(list(enumerate(heavy)))}
    logs = [[bundle.log_weight] for bundle in opened]
    for extension, _ in others:
        logs[to.get(extension.token, 0)].append(extension.log_weight)
    weights = [log_sum(some) for some in logs]
    return [
        bundle._replace(log_weight=weight, log_p=bundle.log_p + weight - bundle.log_weight)
        for bundle, weight in zip(opened, weights, strict=True)
    ]


def _horizon(rows: EvaluatedRows, bundles: Sequence[Bundle], size: int) -> int:
    """Where in a text the last tokens begin that a new state would sum over.

    What is left out before them goes on like the rest, as all that a new state conditions on in
    its canonical tokenization is taken to do: it no longer tells how far off the next byte is.
    """
    heaviest = max(bundles, key=lambda bundle: bundle.log_p)
    last = rows.tree.tokens(heaviest.node)[-EXACT_TOKENS:]
    return size - heaviest.depth - sum(map(rows.index.length, last))


def _without_light(cover: Cover, size: int, effort: Effort) -> Cover:
    """The cover with the bundles that weigh something; the others count as left out."""
    floor = cover.logprob + log(min(_LIGHT, effort.theta))
    light = [math.exp(b.log_p - cover.logprob) for b in cover.bundles if b.log_p < floor]
    if not light:
        return cover
    kept = tuple(bundle for bundle in cover.bundles if bundle.log_p >= floor)
    left_out = (*cover.left_out, (size, math.fsum(light)))
    return cover._replace(bundles=kept, left_out=left_out)


def _given(cover: Cover, condition: float) -> Cover:
    """A cover conditioned on a beginning of its text, of this log-probability."""
    bundles = tuple(
        bundle._replace(log_weight=bundle.log_weight - condition, log_p=bundle.log_p - condition)
        for bundle in cover.bundles
    )
    return cover._replace(bundles=bundles, logprob=cover.logprob - condition)
