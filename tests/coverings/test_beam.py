"""Beam summing against its published pseudocode, against the oracle, and lazy against eager."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.coverings.beam import Beam
from charwise.coverings.reference import Prune, TokenString, prune_top_k_buckets
from charwise.errors import ZeroProbabilityError
from models import CLOSE, Case, Model, by_hand, cases, close_logs, examples, log_of, table

approx = pytest.approx

_ROUNDING = 1e-11


# --- the published algorithm, word for word ----------------------------------------------------


class PaperBundle(NamedTuple):
    """`Bundle` of Vieira et al. 2025, Appendix D; the trie is a sum over all tokens."""

    p: float
    context: tuple[int, ...]
    start: bytes  # σ of the bundle: what the next token must start with

    def mass(self, model: Model, start: bytes) -> float:
        """Mass of what starts with `start`; the end of text is there too, before any byte."""
        row = model.p(self.context)
        if not start:
            return 1.0
        return math.fsum(
            float(row[id])
            for id, token in enumerate(model.vocabulary.tokens)
            if token is not None and token.startswith(start)
        )

    def filter(self, model: Model, byte: bytes) -> PaperBundle | None:
        longer = self.mass(model, self.start + byte)
        if longer == 0:
            return None
        conditional = longer / self.mass(model, self.start)
        return PaperBundle(self.p * conditional, self.context, self.start + byte)

    def extend(self, model: Model) -> list[PaperBundle]:
        row, whole = model.p(self.context), self.mass(model, self.start)
        return [
            PaperBundle(self.p * float(row[id]) / whole, (*self.context, id), b"")
            for id, token in enumerate(model.vocabulary.tokens)
            if token == self.start and row[id] > 0
        ]


class Tie(Exception):
    """Two bundles on either side of a cut weigh the same: which one stays is arbitrary."""


def paper_beam(model: Model, text: bytes, k: int, theta: float) -> list[PaperBundle]:
    """`beam` of Appendix D with the threshold of Appendix G."""
    beam = [PaperBundle(1.0, (), b"")]
    for at in range(len(text)):
        byte = text[at : at + 1]
        candidates = [b for b in (bundle.filter(model, byte) for bundle in beam) if b]
        floor = theta * sum(bundle.p for bundle in candidates)
        for bundle in beam:
            extended = bundle.extend(model)
            if extended and abs(bundle.p - floor) <= 1e-9 * floor:
                raise Tie
            if bundle.p >= floor:
                candidates += [b for b in (e.filter(model, byte) for e in extended) if b]
        candidates.sort(key=lambda bundle: -bundle.p)
        if len(candidates) > k and candidates[k].p >= candidates[k - 1].p * (1 - 1e-9):
            raise Tie
        beam = candidates[:k]
    return beam


def unbundle(beam: Beam, model: Model) -> dict[tuple[int, ...], float]:
    """The token strings that a beam stands for, with their probabilities."""
    found = {}
    for bundle in beam.bundles:
        context = beam.tree.tokens(bundle.node)
        row = beam.tree.row(bundle.node).in_order
        for at in range(bundle.lo, bundle.hi):
            if row[at] > 0:
                weight = math.exp(bundle.log_weight) * float(row[at])
                found[(*context, int(model.index.ids[at]))] = weight
    return found


def begin(model: Model, k: int, theta: float = 0.0) -> Beam:
    return Beam.start(model.evaluated(), 0, k, theta)


def shape(beam: Beam) -> dict[tuple[tuple[int, ...], int, int, int], float]:
    """The bundles by what does not depend on the order of evaluation."""
    tokens = beam.tree.tokens
    return {(tokens(b.node), b.depth, b.lo, b.hi): b.log_p for b in beam.bundles}


@given(cases(), st.integers(1, 6), st.sampled_from((0.0, 0.0, 1e-3, 0.05, 0.3, 1.0)))
@examples(800)
def test_the_beam_is_the_published_one(case: Case, k: int, theta: float):
    model, text = case.model, case.text
    try:
        expected = paper_beam(model, text, k, theta)
    except Tie:
        return
    beam = begin(model, k, theta)
    if not expected:
        with pytest.raises(ZeroProbabilityError) as caught:
            beam.advance(text)
        if not caught.value.dropped:
            assert model.prefix(text) == 0
        return
    beam = beam.advance(text)
    if text:
        found = {(tokens, bundle): log_p for (tokens, bundle, *_), log_p in shape(beam).items()}
        wanted = {(b.context, len(b.start)): math.log(b.p) for b in expected}
        assert found.keys() == wanted.keys()
        assert all(close_logs(found[key], wanted[key]) for key in wanted)
        total = math.log(math.fsum(bundle.p for bundle in expected))
        assert close_logs(beam.prefix_logprob, total)
    # Every truth is within what was dropped, and the beam is a lower bound.
    truth = model.prefix(text)
    kept = math.exp(beam.prefix_logprob)
    assert kept <= truth * (1 + _ROUNDING)
    assert truth <= (kept + math.exp(beam.log_dropped)) * (1 + _ROUNDING)
    masses, scale = beam.next_byte_masses()
    after = model.next(text) * truth
    found_after = masses * math.exp(scale)
    assert (found_after <= after * (1 + _ROUNDING)).all()
    lost = after.sum() - found_after.sum()
    assert lost <= truth - kept + kept * _ROUNDING + sum_skipped(beam)


# --- the beam and the enumeration --------------------------------------------------------------


def prune_top_k_contexts(k: int) -> Prune:
    """Keep the `k` heaviest groups of members that agree in all but the last token, partial or not.

    That is what a bundle is. `prune_top_k_buckets` differs for members that spell the text
    exactly: to it each is a bucket of its own already, while a beam lets it ride in the bundle of
    its context until the next byte comes.
    """

    def prune(text: bytes, out: list[TokenString]) -> list[TokenString]:
        groups: dict[tuple[int, ...], list[TokenString]] = defaultdict(list)
        for member in out:
            groups[member.tokens[:-1]].append(member)
        heaviest = sorted(groups.values(), key=lambda group: -sum(m.p for m in group))
        masses = [sum(m.p for m in group) for group in heaviest]
        if len(masses) > k and masses[k] > 0 and masses[k] >= masses[k - 1] * (1 - 1e-9):
            raise Tie
        return [member for group in heaviest[:k] for member in group]

    return prune


@given(cases(), st.integers(1, 6))
@examples(600)
def test_the_beam_is_the_enumeration_pruned_by_contexts(case: Case, k: int):
    model, text = case.model, case.text
    prune = prune_top_k_contexts(k)
    try:
        members = model.cover(text, prune)
    except Tie:
        return
    expected = {member.tokens: member.p for member in members if member.p > 0}
    if not expected:
        with pytest.raises(ZeroProbabilityError):
            begin(model, k).advance(text)
        return
    if not text:
        return
    beam = begin(model, k).advance(text)
    assert unbundle(beam, model) == approx(expected, **CLOSE)
    masses, scale = beam.next_byte_masses()
    found = model.next(text, prune)
    assert masses / masses.sum() == approx(found, **CLOSE)
    assert close_logs(math.log(masses.sum()) + scale, log_of(math.fsum(expected.values())))


def test_bundles_are_not_the_buckets_of_section_3_2():
    # One bundle after "a": {a, ab}, of the empty context. As buckets these are two, {ab} and {a}
    # itself, so with K = 1 the enumeration has lost one of them where the beam has both.
    model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
    beam = begin(model, 1).advance(b"a")
    assert unbundle(beam, model) == approx({(0,): 0.4, (2,): 0.3})
    members = model.cover(b"a", prune_top_k_buckets(1))
    assert {m.tokens: m.p for m in members} == approx({(0,): 0.4})
    # With room for all buckets nothing differs.
    beam = begin(model, 2).advance(b"ab")
    members = model.cover(b"ab", prune_top_k_buckets(2))
    assert unbundle(beam, model) == approx({m.tokens: m.p for m in members})


def test_by_hand():
    # docs/coverings.md goes through this example.
    model = by_hand()
    beam = begin(model, 2).advance(b"ab")
    assert [math.exp(bundle.log_p) for bundle in beam.bundles] == approx([0.35, 0.15])
    assert unbundle(beam, model) == approx({(3,): 0.3, (4,): 0.05, (0, 1): 0.15})
    beam = beam.step(ord("a"))
    assert [math.exp(bundle.log_p) for bundle in beam.bundles] == approx([0.24, 0.105])
    assert math.exp(beam.prefix_logprob) == approx(0.345)
    assert math.exp(beam.log_dropped) == approx(0.05)
    narrow = begin(model, 1).advance(b"ab")
    assert narrow.tree.contexts == 1  # [a] cannot reach the top, and is not evaluated
    assert math.exp(narrow.log_dropped) == approx(0.3)  # all of the context [a]


# --- a beam wide enough ------------------------------------------------------------------------


@given(cases())
@examples(500)
def test_a_wide_beam_is_the_oracle(case: Case):
    model, text = case.model, case.text
    truth = model.prefix(text)
    beam = begin(model, 10_000)
    if truth == 0:
        with pytest.raises(ZeroProbabilityError, match="has probability zero"):
            beam.advance(text)
        return
    beam = beam.advance(text)
    assert close_logs(beam.prefix_logprob, math.log(truth))
    assert beam.log_dropped == -math.inf
    masses, scale = beam.next_byte_masses()
    expected = model.next(text)
    assert masses * math.exp(scale) == approx(expected * truth, **CLOSE)
    if text:
        everything = model.cover(text)
        assert unbundle(beam, model) == approx(
            {m.tokens: m.p for m in everything if m.p > 0}, **CLOSE
        )
    # The next byte's mass is what a further step finds.
    for byte in set(b"".join(model.index.sorted)):
        if expected[byte] > 0:
            assert close_logs(beam.step(byte).prefix_logprob, math.log(expected[byte] * truth))


def sum_skipped(beam: Beam) -> float:
    """Mass of the tokens that end here in bundles too light to be extended."""
    floor = log_of(beam.theta) + beam.prefix_logprob
    return sum(
        math.exp(extension.log_weight)
        for bundle in beam.bundles
        if bundle.log_p < floor
        for extension in bundle.extend(beam.tree)
    )


# --- numbers -----------------------------------------------------------------------------------


def test_very_peaked_rows():
    # In float32 the second token would have probability 0 after the softmax.
    model = table([b"a", b"b"], {(): [1 - 1e-30, 1e-30, 1e-35]})
    for text in (b"ab", b"bbbb", b"ab" * 20):
        beam = begin(model, 2).advance(text)
        expected = text.count(b"b") * math.log(1e-30)
        assert beam.prefix_logprob == approx(expected, rel=1e-12)
        masses, scale = beam.next_byte_masses()
        assert math.log(masses.sum()) + scale == approx(expected, rel=1e-12)
        assert masses[ord("b")] / masses.sum() == approx(1e-30, rel=1e-9)
        assert masses[256] / masses.sum() == approx(1e-35, rel=1e-9)
