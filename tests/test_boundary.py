"""Members of a covering, found by asking, against the sum over all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.boundary import Members, boundary_covering
from charwise.coverings.reference import enum_cover
from charwise.errors import VocabularyError
from models import CLOSE, Case, cases, examples


def members_of(case: Case, **settings: Any) -> Members:
    """The members of a case's text, when the model answers every query."""
    covering = boundary_covering(case.model.index, case.text, **settings)
    while queries := covering.queries():
        for context, ids in queries:
            with np.errstate(divide="ignore"):
                covering.answer(context, np.log(case.model.p(context)[ids]))
    return Members(covering)


def by_oracle(case: Case) -> dict[tuple[int, ...], float]:
    """The probability of every member of the covering, one by one."""
    cover = enum_cover(case.text, case.model.p, case.model.vocabulary)
    return {member.tokens: member.p for member in cover if member.p > 0}


@given(cases())
@examples(300)
def test_without_tolerance_the_members_are_the_covering(case):
    expected = by_oracle(case)
    assume(case.text and expected)
    members = members_of(case, tolerance=0.0)
    found = {members.token_ids(at): p for at, p in enumerate(np.exp(members.logprobs)) if p > 0}
    assert found.keys() == expected.keys()
    for tokens, p in found.items():
        assert p == pytest.approx(expected[tokens], **CLOSE)
    assert members.missing == 0.0
    total = sum(expected.values())
    for at, weight in enumerate(members.weights()):
        assert weight == pytest.approx(expected.get(members.token_ids(at), 0) / total, **CLOSE)


@given(cases(), st.sampled_from((0.3, 0.05, 1e-3)))
@examples(200)
def test_no_more_is_missing_than_it_says_and_may_be(case, tolerance):
    expected = by_oracle(case)
    assume(case.text and expected)
    members = members_of(case, tolerance=tolerance)
    total = sum(expected.values())
    missing = 1 - float(np.exp(members.logprobs).sum()) / total
    assert missing <= members.missing + 1e-12
    assert members.missing <= tolerance
    truth = [expected.get(members.token_ids(at), 0.0) / total for at in range(len(members))]
    off = np.abs(members.weights() - truth).sum() / 2 + missing / 2
    assert off <= tolerance + 1e-12  # total variation


@given(cases(longest=6))
@examples(20)
def test_drawn_frequencies(case):
    expected = by_oracle(case)
    assume(case.text and len(expected) > 1)
    members = members_of(case, tolerance=0.0)
    count = 4000
    drawn = members.draw(members.weights(), np.random.default_rng(1).random(count).tolist())
    total = sum(expected.values())
    for tokens, p in expected.items():
        share = p / total
        spread = math.sqrt(share * (1 - share) / count)
        assert abs(drawn.count(tokens) / count - share) <= 5 * spread + 1 / count
    assert set(drawn) <= expected.keys()


@given(cases())
@examples(100)
def test_greedy_is_the_best_member(case):
    expected = by_oracle(case)
    assume(case.text and expected)
    members = members_of(case, tolerance=1e-3)
    [best] = members.draw(members.weights(0), [0.7])
    found = max(expected.values())
    # It may be among the missing only if it weighs no more than they do.
    assert expected[best] >= min(found, found - members.missing * sum(expected.values())) * 0.999999


@given(cases(), st.integers(0, 2))
@examples(100)
def test_what_has_no_room_is_missing(case, room):
    expected = by_oracle(case)
    assume(case.text and expected)
    fits = sum(p for tokens, p in expected.items() if len(tokens) <= room + 1)
    try:
        members = members_of(case, tolerance=0.5, room=room)
    except VocabularyError:
        return
    assert members.missing >= 1 - fits / sum(expected.values()) - 1e-9
    longest = max(len(members.token_ids(at)) for at in range(len(members)))
    assert longest <= room + 1


def words() -> SortedVocabulary:
    return SortedVocabulary(Vocabulary.from_bytes([b"s", b"sw", b"swim", b"weep", b"a", b"w"]))


def test_top_k_top_p_and_min_p_keep_the_likeliest_members():
    covering = boundary_covering(words(), b"s", tolerance=0)
    [(context, ids)] = covering.queries()
    assert [words().vocabulary.tokens[id] for id in ids] == [b"s", b"sw", b"swim"]
    covering.answer(context, np.log([0.05, 0.2, 0.15]))
    assert covering.queries() == []
    members = Members(covering)
    weights = {
        "plain": members.weights(),
        "cold": members.weights(0.5),
        "k": members.weights(top_k=1),
        "p": members.weights(top_p=0.6),
        "min": members.weights(min_p=0.5),
        "greedy": members.weights(0),
    }
    expected = {
        "plain": [0.125, 0.5, 0.375],
        "cold": [1 / 26, 16 / 26, 9 / 26],
        "k": [0, 1, 0],
        "p": [0, 4 / 7, 3 / 7],
        "min": [0, 4 / 7, 3 / 7],
        "greedy": [0, 1, 0],
    }
    assert {name: found.tolist() for name, found in weights.items()} == {
        name: pytest.approx(values) for name, values in expected.items()
    }


def test_what_was_not_answered_counts_as_missing():
    covering = boundary_covering(words(), b"s", tolerance=0.21)
    [(context, _)] = covering.queries()
    covering.answer(context, np.array([-math.inf, math.log(0.4), -math.inf]), unseen=0.1)
    assert covering.queries() == []
    assert Members(covering).missing == pytest.approx(0.2)


def test_a_text_without_probability_and_one_that_takes_too_much(monkeypatch):
    covering = boundary_covering(words(), b"sw")
    [(context, ids)] = covering.queries()
    covering.answer(context, np.full(len(ids), -math.inf))
    assert covering.queries() == []
    with pytest.raises(VocabularyError, match="no probability"):
        Members(covering)
    monkeypatch.setattr("charwise.boundary._MOST_CONTEXTS", 1)
    covering = boundary_covering(words(), b"sw")
    [(context, _)] = covering.queries()
    covering.answer(context, np.log([0.6, 0.1, 0.3]))
    assert covering.queries() == []
    with pytest.raises(VocabularyError, match=r"1 contexts leave out up to 0\.6"):
        Members(covering)


def test_a_text_that_cannot_be_spelled():
    with pytest.raises(VocabularyError, match="no token string"):
        boundary_covering(words(), b"x")
