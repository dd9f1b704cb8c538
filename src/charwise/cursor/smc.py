"""Texts from p(· | the constraint is satisfied): sums over small sets, samples of others.

Masking at each step (`conditioning="local"`) draws a beginning as often as the model says, though
nearly all that could come of it may be ruled out later. In sequential Monte Carlo each particle is
drawn so, and weighs the product of the masses that were allowed:

    w = Π_t Z_t,     Z_t = Σ { p(x | drawn so far) : x goes on, or the text is complete with it }

The mean weight is an unbiased estimate of p(C | prompt), and the weighted particles are a sample of
p(· | prompt, C). Where few particles hold most of the weight, they are drawn anew in proportion to
it (systematic resampling). Of small sets all members are added up instead.

A member of C after which nothing may follow is complete, whatever token runs past it. So is a text
of the longest length, but it is cut, and weighs nothing in the end. The heaviest tokens are looked
at, until little is left of which it is not known. That rest counts, and a particle that draws a
token from it which is refused dies.

A JSON schema also has a check of the finished text (`constraints/schemas.py`). Texts that fail it
are drawn anew (`draw_valid`).
"""

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint, Flags
from charwise.coverings.bundles import Bundle, log_sum
from charwise.cursor.choose import text_logprobs
from charwise.cursor.generation import (
    Completion,
    Generation,
    NextTokens,
    Partial,
    check_begins,
)
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.shared_tree import Cursor
from charwise.errors import ConstraintError, impossible, quote
from charwise.tokens.utf8 import decoder_after

Floats = NDArray[np.float64]

#: Next tokens that are looked at, at most, and the share that may be left.
LOOKED_AT, UNKNOWN = 512, 1e-2

#: What ends a text before it is known whether it satisfies its constraint.
UNFINISHED = ("length", "time", "cancelled", "window")


class Weighted(list[Completion]):
    """Completions that satisfy a constraint, the heaviest first, with their weights.

    Where a set is added up, the `logprob` of a completion is that of its text. Where it was
    sampled, it is that of the tokenizations that were drawn. There are no `token_ids`: weights are
    those of texts. A text that the length, the time, `cancel` or the window ended has weight 0, and
    comes last.

    Attributes:
        weights: `[n]` p(completion | prompt, C), or the estimate of it.
        logprob: log p(C | prompt), nats, or the log of the unbiased estimate of it.
        effective: effective sample size, (Σ w)² / Σ w²; infinite where nothing was sampled.
    """

    def __init__(
        self,
        completions: Iterable[Completion],
        weights: Floats,
        *,
        logprob: float,
        effective: float,
    ) -> None:
        super().__init__(completions)
        self.weights, self.logprob, self.effective = weights, logprob, effective


def sum_members(state: Cursor, options: GenerationOptions, limit: Limit) -> Weighted | None:
    """The n heaviest members of a small set, of `max_new_bytes` at most, that follow a text.

    None if there are too many, or the limit ends the sum.

    Raises:
        ConstraintError: if it has no members.
        ZeroProbabilityError: if all have probability zero.
    """
    constraint = options.constraint
    assert constraint is not None
    members = constraint.members(256, options.max_new_bytes)
    if members is None:
        return None
    if not members:
        raise ConstraintError("nothing satisfies the constraint: every way into it is a dead end.")
    check_begins(state.raw, constraint)
    finish = {m: "constraint" if constraint.after(m).is_closed else "end" for m in members}
    logs = dict[bytes, float]()
    for end in ("constraint", "end"):
        some = [member for member in members if finish[member] == end]
        sums = text_logprobs(state, some, end == "end", limit)
        if sums is None:
            return None
        logs |= zip(some, sums[0], strict=True)
    total = log_sum(list(logs.values()))
    if total == -math.inf:
        raise impossible(state.whole + members[0])
    order = sorted(members, key=lambda member: -logs[member])[: options.n]
    completions = []
    for raw in order:
        text, drawn = decoder_after(state.raw).decode(raw), len(raw) + (finish[raw] == "end")
        completions.append(
            Completion(text, raw, logs[raw], [], state.exact_from, finish[raw], drawn)
        )
    weights = np.exp([logs[member] - total for member in order])
    return Weighted(completions, weights, logprob=total, effective=math.inf)


def sample(state: Cursor, options: GenerationOptions, limit: Limit) -> Weighted:
    """The n heaviest of a weighted sample of p(· | prompt, C).

    Raises:
        ConstraintError: if no particle satisfies it; says how far the longest came.
    """
    particles = _Particles(state, options, limit)
    try:
        particles.resample()
        while particles.active():
            particles.advance()
            particles.resample()
            if options.progress is not None:
                done = sum(one.size for one in particles.partials if one.finish)
                options.progress(done, options.particles)
    finally:
        particles.close()
    return particles.heaviest()


@dataclass
class _Particle(Partial):
    """Particles that drew the same tokens: one text, and one weight."""

    size: int = 1  # particles
    weight: float = 0.0  # log of the weight of each


class _Particles(Generation):
    """The particles of one request."""

    partials: list[_Particle]  # type: ignore[assignment]

    def __init__(self, state: Cursor, options: GenerationOptions, limit: Limit) -> None:
        self._estimate, self._longest = 0.0, b""
        super().__init__(state, options, limit)

    def _begin(self, state: Cursor) -> list[_Particle]:  # type: ignore[override]
        """All particles after the prompt, or after its members where it ends inside of tokens.

        The mass of the members that may follow is the first factor of the weights.
        """
        constraint = self.options.constraint
        assert constraint is not None
        first = _Particle(state.bundles[0].node, constraint=constraint, size=self.options.particles)
        first.tokens = constraint.over(self.shared.index)
        self._check(first)
        if state.at_root or first.finish:
            return [first]
        members = NextTokens.covering(state)
        members.logs -= log_sum(members.logs.tolist())
        return self._longer(first, members, np.zeros(len(members.logs), dtype=np.bool_), 0.0)

    def draw(self, partials: Sequence[Partial], rows: NDArray[np.floating]) -> None:
        """One more token for each, without those in a dead end."""
        index, particles = self.shared.index, list[_Particle]()
        for particle, row in zip(partials, rows, strict=True):
            assert isinstance(particle, _Particle)
            assert particle.constraint is not None
            assert particle.tokens is not None
            whole = Bundle(particle.node, 0.0, 0, 0, len(index.sorted), 0.0)
            logs = row.astype(np.float64)
            tokens = NextTokens(index, [whole], [logs[index.ids]])
            may_end = particle.constraint.allowed()[END]
            end = float(np.exp(logs[list(index.vocabulary.end_ids)]).sum()) if may_end else 0.0
            particles += self._longer(particle, tokens, particle.tokens.mask()[index.ids], end)
        self.partials = [one for one in self.partials if one.finish] + particles

    def _longer(
        self, before: _Particle, tokens: NextTokens, fits: Flags, end: float
    ) -> list[_Particle]:
        """Particles drawn after some of equal tokens, from the next tokens and the end's mass.

        `fits` are the `[n]` tokens that are known to go on.
        """
        masses = np.exp(self._without_refused(before, tokens, fits, end))
        total = float(masses.sum()) + end
        if not total > 0:
            return []
        weight, particles = before.weight + math.log(total), list[_Particle]()
        counts = _systematic(np.append(masses, end) / total, before.size, self.rng)
        for at in np.flatnonzero(counts).tolist():
            new = replace(before, size=int(counts[at]), weight=weight)
            if at == len(masses):
                new.logprob, new.finish = before.logprob + math.log(end), "end"
                particles.append(new)
                continue
            bundle, token, data = tokens.at(at)
            new.logprob = before.logprob + float(tokens.logs[at])
            size, finish = self.outcome(before, data)
            if finish in ("constraint", "length"):
                new.raw, new.finish = before.raw + data[:size], finish
            elif not finish:
                new.node, new.token = bundle.node, token
                self._take(new, data)
                self._check(new)
            if finish != "refused" and new.finish != "dead end":
                particles.append(new)
        return particles

    def _without_refused(
        self, before: _Particle, tokens: NextTokens, fits: Flags, end: float
    ) -> Floats:
        """`[n]` log-probabilities of the next tokens, −inf for those that are refused.

        The heaviest are looked at, until little is left of which it is not known.
        """
        assert before.constraint is not None
        logs, known = tokens.logs.copy(), float(np.exp(tokens.logs[fits]).sum()) + end
        tokens.rule_out(b"", before.constraint, logs)
        unknown = np.flatnonzero(~fits & (logs > -np.inf))
        unknown = unknown[np.argsort(-logs[unknown], kind="stable")]
        rest = np.cumsum(np.exp(logs[unknown])[::-1])[::-1]
        for at, place in enumerate(unknown[:LOOKED_AT].tolist()):
            if rest[at] <= UNKNOWN * known:
                break
            if logs[place] > -np.inf:
                data = tokens.at(place)[2]
                size, finish = self.outcome(before, data)
                if finish == "refused":
                    tokens.rule_out(data[:size], before.constraint, logs)
                else:
                    known += math.exp(logs[place])
        return logs

    def outcome(self, before: Partial, data: bytes) -> tuple[int, str]:
        """How many bytes of a token may follow, and what becomes of the text.

        "" goes on after all of them, "constraint" and "length" are complete there whatever
        follows, and other texts are "refused".
        """
        assert before.constraint is not None
        try:
            before.constraint.after(data)
            size = len(data)
        except ConstraintError as error:
            size = error.position
        size = min(size, self.most - len(before.raw))
        if size == len(data):
            return size, ""
        finish = self._finish(before.constraint.after(data[:size]), len(before.raw) + size)
        return size, finish if finish in ("constraint", "length") else "refused"

    def resample(self) -> None:
        """Draw particles anew where the effective sample is less than half of them."""
        count = self.options.particles
        if not self.partials:
            raise ConstraintError(
                f"none of {count} particles satisfies the constraint: the longest came to "
                f"{self._longest!r}, and nothing that may follow has any probability.",
                len(self._longest),
            )
        self._longest = max([self._longest, *(one.raw for one in self.partials)], key=len)
        total, shares, effective = _shares(self.partials)
        if effective >= count / 2:
            return
        self._estimate += total - math.log(count)
        counts = _systematic(shares, count, self.rng)
        for particle, size in zip(self.partials, counts.tolist(), strict=True):
            particle.size, particle.weight = size, 0.0
        self.partials = [particle for particle in self.partials if particle.size]
        needed = {particle.node for particle in self.active()}
        self.shared.drop([node for node in self._nodes if node not in needed])
        self._nodes = [node for node in self._nodes if node in needed]

    def heaviest(self) -> Weighted:
        """The n heaviest texts, equal ones as one."""
        for particle in self.partials:
            if particle.finish in UNFINISHED:
                particle.weight = -math.inf
        total, shares, effective = _shares(self.partials)
        texts = dict[tuple[bytes, str], list[int]]()
        for at, particle in enumerate(self.partials):
            texts.setdefault((self.text_of(particle), particle.finish), []).append(at)
        weights = {text: float(shares[places].sum()) for text, places in texts.items()}
        heaviest = sorted(texts, key=lambda text: -weights[text])[: self.options.n]
        completions = []
        for text in heaviest:
            same = [self.partials[at] for at in texts[text]]
            logprob = log_sum([one.logprob for one in same])
            completions.append(replace(self.completion(same[0]), logprob=logprob))
        return Weighted(
            completions,
            np.array([weights[text] for text in heaviest]),
            logprob=self._estimate + total - math.log(self.options.particles),
            effective=effective,
        )


def _shares(particles: Sequence[_Particle]) -> tuple[float, Floats, float]:
    """Log of the sum of all weights, `[n]` shares in it, and the effective sample size."""
    sizes = np.array([particle.size for particle in particles])
    logs = np.array([particle.weight for particle in particles]) + np.log(sizes)
    total = log_sum(logs.tolist())
    if total == -math.inf:
        return total, np.zeros(len(logs)), 0.0
    shares = np.exp(logs - total)
    return total, shares / shares.sum(), 1.0 / float((shares**2 / sizes).sum())


def _systematic(shares: Floats, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each is drawn: its share of the count, up or down to a whole, by one number."""
    points = (np.arange(count) + rng.random()) / count
    ends = np.cumsum(shares)
    places = np.searchsorted(ends, points * ends[-1], side="right")
    last = int(np.flatnonzero(shares)[-1])
    return np.bincount(np.minimum(places, last), minlength=len(shares))


class _Sample(Protocol):
    """A text that was drawn: a completion, or the server's candidate."""

    @property
    def text(self) -> str: ...
    @property
    def raw(self) -> bytes: ...
    @property
    def finish(self) -> str: ...


Text = TypeVar("Text", bound=_Sample)

#: Yields how texts are to be drawn, is sent those, and returns the valid ones.
Draws = Generator[GenerationOptions, list[Text], list[Text]]


def draw_valid(options: GenerationOptions) -> Draws[Text]:
    """Texts, none of which fails the check of its constraint.

    Returns the texts of a sample, each in its place; of a search all that are valid, equal ones
    too. Progress is reported of the first draws only.

    Raises:
        ConstraintError: if too many texts fail, or all until time is over.
    """
    texts, constraint = (yield options), options.constraint
    failed = [place for place, one in enumerate(texts) if _fault(constraint, one)]
    if not failed:
        return texts
    # A search for the likeliest text gives the same one each time.
    rng = np.random.default_rng(options.seed if options.temperature else options.seed or 0)
    last, count, failures = texts[failed[-1]], len(failed), len(failed)
    valid = [one for place, one in enumerate(texts) if place not in failed]
    # It looks at many, and a sample takes the first that are valid.
    missing = len(failed) if options.temperature else max(16, len(failed))
    again = replace(options, temperature=options.temperature or 1.0, progress=None)
    extra = list[Text]()
    # Failures count in a row of a sample, in all of a search.
    while len(extra) < missing and failures < 1000:
        for one in (yield replace(again, n=count, seed=int(rng.integers(2**62)))):
            if _fault(constraint, one):
                last, failures = one, failures + 1
            elif one.finish == "cancelled" or (one.finish == "time" and (valid or extra)):
                return [*valid, *extra, one]
            elif one.finish == "time":  # and all before failed
                failures = 1000
            else:
                extra.append(one)
                failures = failures if not options.temperature else 0
        count = min(2 * count, max(len(failed), 64))
    if len(extra) < missing and not (extra and not options.temperature):
        fault = _fault(constraint, last)
        raise ConstraintError(
            f"no text that was drawn is valid JSON of the schema. The last was {quote(last.text)}: "
            f"{fault or 'it is not complete'}. Loosen the schema, or show the model an example in "
            "the prompt."
        )
    if not options.temperature:
        return [*valid, *([one for one in extra if one.finish != "length"] or extra)]
    for place, one in zip(failed, extra, strict=False):
        texts[place] = one
    return texts


def _fault(constraint: Constraint | None, one: _Sample) -> str | None:
    """Why a text that is over fails the check of its constraint; None if it does not.

    A text that its length or the time cut is not over.
    """
    if constraint is None or constraint.check is None:
        return None
    if one.finish not in ("stop", "dead end"):
        return None
    return constraint.after(one.raw).fault
