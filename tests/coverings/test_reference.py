"""The oracle against the definitions: coverings, prefix probabilities, next bytes, the chain rule.

Vieira et al. 2025, eq. 6-14, on random tokenization models. Everything faster is then compared
with the oracle elsewhere.
"""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.coverings.reference import (
    by_definition,
    by_enumeration,
    conditional,
    conditional_token_generation,
    enum_cover,
    prune_top_k_buckets,
)
from charwise.errors import ZeroProbabilityError
from models import CLOSE, Case, cases, examples, table

approx = pytest.approx

#: Token strings that a test may go through one by one.
_FEW = 3000


def strings_up_to(tokens: int, longest: int) -> int:
    return sum(tokens**size for size in range(longest + 1))


@given(cases())
@examples(600)
def test_the_covering_sums_to_the_definition(case: Case):
    model, text = case.model, case.text
    found = model.prefix(text)
    assert found == approx(by_definition(text, model.p, model.vocabulary), **CLOSE)
    assert 0 <= found <= 1 + 1e-9
    if strings_up_to(len(model.vocabulary), len(text)) <= _FEW:
        starts, equals = by_enumeration(text, model.p, model.vocabulary)
        assert found == approx(starts, **CLOSE)
        ended = model.string(text)
        assert ended == approx(equals, **CLOSE)


@given(cases())
@examples(300)
def test_members_are_those_of_equation_12(case: Case):
    model, text = case.model, case.text
    members = model.cover(text)
    assert len({member.tokens for member in members}) == len(members)
    for member in members:
        assert member.raw == model.vocabulary.decode(member.tokens)
        assert member.raw.startswith(text)
        weights = [model.p(member.tokens[:n])[id] for n, id in enumerate(member.tokens)]
        assert member.p == approx(math.prod(weights), **CLOSE)
        if text:
            shorter = model.vocabulary.decode(member.tokens[:-1])
            assert text.startswith(shorter)
            assert len(shorter) < len(text)
    ids = model.index.ids.tolist()
    if strings_up_to(len(ids), len(text)) <= _FEW:
        minimal = {
            tokens
            for size in range(len(text) + 1)
            for tokens in product(ids, repeat=size)
            if covers_minimally(model.vocabulary.decode, tokens, text)
        }
        assert {member.tokens for member in members} == minimal


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
    found = model.next(text)
    assert found.sum() == approx(1, rel=1e-9)
    ended = model.string(text)
    assert found[256] == approx(ended / total, **CLOSE)
    letters = set(b"".join(model.index.sorted))
    for byte in letters:
        longer = model.prefix(text + bytes([byte]))
        assert found[byte] == approx(longer / total, **CLOSE)
    others = np.setdiff1d(np.arange(256), list(letters))
    assert not found[others].any()


@given(cases(largest=100), st.integers(1, 4))
@examples(200)
def test_pruning_only_loses(case: Case, k: int):
    model, text = case.model, case.text
    everything = {m.tokens: m.p for m in model.cover(text)}
    pruned = model.cover(text, prune_top_k_buckets(k))
    for member in pruned:
        assert member.p == everything[member.tokens]
    buckets = {m.tokens[:-1] if len(m.raw) > len(text) else m.tokens for m in pruned}
    assert len(buckets) <= k
    unpruned = model.cover(text, prune_top_k_buckets(10_000))
    assert {m.tokens: m.p for m in unpruned} == everything


@given(cases())
@examples(100)
def test_probabilities_come_from_the_engine(case: Case):
    p = conditional(case.model.lm)
    for member in enum_cover(case.text, p, case.model.vocabulary)[:5]:
        assert p(member.tokens) == approx(case.model.p(member.tokens), rel=1e-12)


def test_generation_is_conditional_on_the_text():
    """Proposition 2: p(δ | κ(δ) ⪰ σ) = p_Δ(δ) / →p(σ), by frequencies."""
    model, count, rng = (
        table([b"a", b"ab", b"b"], {(): [0.3, 0.2, 0.1, 0.4]}),
        2000,
        np.random.default_rng(1),
    )
    drawn = Counter(
        conditional_token_generation(b"ab", model.p, model.vocabulary, rng) for _ in range(count)
    )
    total = model.prefix(b"ab")
    assert all(model.vocabulary.decode(tokens).startswith(b"ab") for tokens in drawn)
    for tokens in ((1,), (0, 2), (1, 0), (1, 1)):
        p = math.prod(model.p(tokens[:n])[id] for n, id in enumerate(tokens)) * 0.4 / total
        assert abs(drawn[tokens] / count - p) <= 5 * math.sqrt(p * (1 - p) / count)


def test_empty_text_and_a_byte_that_nothing_spells():
    model = table([b"a", b"b", b"\x00"], {(): [0.4, 0.2, 0.3, 0.1]})
    assert model.prefix(b"") == 1
    assert model.string(b"") == approx(0.1)
    assert model.prefix(b"\x00a") == approx(0.12)
    assert model.cover(b"az") == []
    assert by_enumeration(b"az", model.p, model.vocabulary) == (0, 0)
    with pytest.raises(ZeroProbabilityError, match="'az'"):
        model.next(b"az")
