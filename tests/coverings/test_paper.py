"""The oracle against the definitions: coverings, prefix probabilities, next bytes, the chain rule.

Vieira et al. 2025, eq. 6-14, on random tokenization models. Everything faster is then compared
with the oracle elsewhere. The beam is compared with its published pseudocode, too.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.coverings.beam import Beam
from charwise.coverings.reference import (
    Prune,
    TokenString,
    by_definition,
    by_enumeration,
    conditional,
    conditional_token_generation,
    prune_top_k_buckets,
)
from charwise.errors import ZeroProbabilityError
from models import CLOSE, Case, Model, by_hand, cases, examples, log_of, table

approx = pytest.approx

_ROUNDING = 1e-11


def few_strings(model: Model, text: bytes) -> bool:
    """Whether all token strings of up to |text| tokens may be gone through one by one."""
    return sum(len(model.vocabulary) ** size for size in range(len(text) + 1)) <= 3000


@given(cases())
@examples(600)
def test_the_covering_sums_to_the_definition(case: Case):
    model, text = case.model, case.text
    result = model.prefix(text)
    assert result == approx(by_definition(text, model.p, model.vocabulary), **CLOSE)
    assert 0 <= result <= 1 + 1e-9
    if few_strings(model, text):
        starts, equals = by_enumeration(text, model.p, model.vocabulary)
        assert result == approx(starts, **CLOSE)
        assert model.string(text) == approx(equals, **CLOSE)


@given(cases(), st.integers(1, 4))
@examples(300)
def test_members_are_those_of_equation_12_and_pruning_only_loses_some(case: Case, k: int):
    model, text = case.model, case.text
    members, p = model.cover(text), conditional(model.lm)
    weight_of = {member.tokens: member.p for member in members}
    assert len(weight_of) == len(members)
    for n, member in enumerate(members):
        assert member.raw == model.vocabulary.decode(member.tokens)
        weights = [model.p(member.tokens[:n])[id] for n, id in enumerate(member.tokens)]
        assert member.p == approx(math.prod(weights), **CLOSE)
        assert covers_minimally(model.vocabulary.decode, member.tokens, text)
        if n < 5:
            assert p(member.tokens) == approx(model.p(member.tokens), rel=1e-12)
    ids = model.index.ids.tolist()
    if few_strings(model, text):
        minimal = {
            tokens
            for size in range(len(text) + 1)
            for tokens in product(ids, repeat=size)
            if covers_minimally(model.vocabulary.decode, tokens, text)
        }
        assert weight_of.keys() == minimal
    pruned = model.cover(text, prune_top_k_buckets(k))
    assert all(member.p == weight_of[member.tokens] for member in pruned)
    buckets = {m.tokens[:-1] if len(m.raw) > len(text) else m.tokens for m in pruned}
    assert len(buckets) <= k
    unpruned = model.cover(text, prune_top_k_buckets(10_000))
    assert {m.tokens: m.p for m in unpruned} == weight_of


def covers_minimally(decode, tokens: tuple[int, ...], text: bytes) -> bool:
    """Eq. 12, word for word."""
    if not text:
        return not tokens
    if not tokens or not decode(tokens).startswith(text):
        return False
    shorter = decode(tokens[:-1])
    return text.startswith(shorter) and shorter != text


@given(cases(longest=6))
@examples(600)
def test_next_bytes_are_ratios_and_sum_to_one(case: Case):
    model, text = case.model, case.text
    total = model.prefix(text)
    if total == 0:
        with pytest.raises(ZeroProbabilityError, match="zero"):
            model.next(text)
        return
    result = model.next(text)
    assert result.sum() == approx(1, rel=1e-9)
    ended = model.string(text)
    assert result[256] == approx(ended / total, **CLOSE)
    letters = set(b"".join(model.index.sorted))
    for byte in letters:
        longer = model.prefix(text + bytes([byte]))
        assert result[byte] == approx(longer / total, **CLOSE)
    others = np.setdiff1d(np.arange(256), list(letters))
    assert not result[others].any()


def test_generation_is_conditional_on_the_text():
    """Proposition 2: p(δ | κ(δ) ⪰ σ) = p_Δ(δ) / →p(σ), by frequencies."""
    model = table([b"a", b"ab", b"b"], {(): [0.3, 0.2, 0.1, 0.4]})
    count, rng = 2000, np.random.default_rng(1)
    draws = Counter(
        conditional_token_generation(b"ab", model.p, model.vocabulary, rng) for _ in range(count)
    )
    total = model.prefix(b"ab")
    assert all(model.vocabulary.decode(tokens).startswith(b"ab") for tokens in draws)
    for tokens in ((1,), (0, 2), (1, 0), (1, 1)):
        p = math.prod(model.p(tokens[:n])[id] for n, id in enumerate(tokens)) * 0.4 / total
        assert abs(draws[tokens] / count - p) <= 5 * math.sqrt(p * (1 - p) / count)


# --- the published algorithm, nearly word for word ---------------------------------------------


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
    result = {}
    for bundle in beam.bundles:
        context = beam.tree.tokens(bundle.node)
        row = beam.tree.row(bundle.node).in_order
        for at in range(bundle.lo, bundle.hi):
            if row[at] > 0:
                weight = math.exp(bundle.log_weight) * float(row[at])
                result[(*context, int(model.index.ids[at]))] = weight
    return result


def sum_skipped(beam: Beam) -> float:
    """Mass of the tokens that end here in bundles too light to be extended."""
    floor = log_of(beam.theta) + beam.prefix_logprob
    return sum(
        math.exp(extension.log_weight)
        for bundle in beam.bundles
        if bundle.log_p < floor
        for extension in bundle.extend(beam.tree)
    )


def begin(model: Model, k: int, theta: float = 0.0) -> Beam:
    return Beam.start(model.evaluated(), 0, k, theta)


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
        result = {(beam.tree.tokens(b.node), b.depth): b.log_p for b in beam.bundles}
        bundles = {(b.context, len(b.start)): math.log(b.p) for b in expected}
        assert result.keys() == bundles.keys()
        assert all(result[key] == approx(bundles[key], abs=1e-9) for key in bundles)
        total = math.log(math.fsum(bundle.p for bundle in expected))
        assert beam.prefix_logprob == approx(total, abs=1e-9)
    # Every truth is within what was dropped, and the beam is a lower bound.
    truth = model.prefix(text)
    lower = math.exp(beam.prefix_logprob)
    assert lower <= truth * (1 + _ROUNDING)
    assert truth <= (lower + math.exp(beam.log_dropped)) * (1 + _ROUNDING)
    masses, scale = beam.next_byte_masses()
    after = model.next(text) * truth
    found_after = masses * math.exp(scale)
    assert (found_after <= after * (1 + _ROUNDING)).all()
    lost = after.sum() - found_after.sum()
    assert lost <= truth * (1 + _ROUNDING) - lower + sum_skipped(beam)  # rounded as the truth is


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


@given(cases(), st.sampled_from((1, 2, 3, 4, 6, 10_000, 10_000)))
@examples(800)
def test_the_beam_is_the_enumeration_pruned_by_contexts(case: Case, k: int):
    """A wide one is the oracle."""
    model, text, prune = case.model, case.text, prune_top_k_contexts(k)
    try:
        members = model.cover(text, prune)
    except Tie:
        return
    expected = {member.tokens: member.p for member in members if member.p > 0}
    if not expected:
        with pytest.raises(ZeroProbabilityError, match="zero" if k == 10_000 else None):
            begin(model, k).advance(text)
        return
    beam, total = begin(model, k).advance(text), math.fsum(expected.values())
    assert not text or unbundle(beam, model) == approx(expected, **CLOSE)
    masses, scale = beam.next_byte_masses()
    result = model.next(text, prune)
    assert masses / masses.sum() == approx(result, **CLOSE)
    assert math.log(masses.sum()) + scale == approx(math.log(total), abs=1e-9)
    if k == 10_000:
        assert beam.log_dropped == -math.inf
        # The next byte's mass is what a further step finds.
        for byte in np.flatnonzero(result[:256]).tolist():
            further = math.log(result[byte] * total)
            assert beam.step(byte).prefix_logprob == approx(further, abs=1e-9)


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
