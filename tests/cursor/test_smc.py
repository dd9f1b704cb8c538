"""What particles are drawn from, and what they come to, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, GenerationOptions, constraints
from charwise.coverings.bundles import Bundle
from charwise.cursor import smc
from charwise.cursor.generation import Floats, NextTokens, pick
from charwise.errors import ConstraintError
from models import Model, by_hand, examples, models, particles, table

WORDS = st.lists(st.text("ab", max_size=4).map(str.encode), min_size=1, max_size=6, unique=True)


def by_definition(members: list[bytes], text: bytes, token: bytes, most: int) -> tuple[int, str]:
    """What becomes of a text with a token more: how much of it may follow, and why that ends."""
    for size in range(len(token) + 1):
        here = text + token[:size]
        going_on = {one for one in members if one.startswith(here)}
        if not going_on:
            return size - 1, "refused"
        if size < len(token) and going_on == {here}:
            return size, "constraint"
        if size < len(token) and len(here) >= most:
            return size, "length"
    return len(token), ""


@given(WORDS, models(), st.integers(1, 4), st.integers(0, 2**31))
@examples(150)
def test_the_outcome_of_each_token_is_that_of_the_definition(
    members: list[bytes], model: Model, most: int, seed: int
) -> None:
    """And of the tokens looked at, those are left out that are refused."""
    if members == [b""]:
        return
    constraint, index = constraints.choices(members), model.index
    state = model.exact().state("")
    options = GenerationOptions(constraint=constraint, max_new_bytes=most, conditioning="global")
    drawing = smc._Particles(state, options, options.limit())
    [before] = drawing.partials
    masses = np.random.default_rng(seed).dirichlet(np.ones(len(index.sorted)))
    whole = Bundle(0, 0.0, 0, 0, len(masses), 0.0)
    tokens = NextTokens(index, [whole], [np.log(masses)])
    nothing = np.zeros(len(masses), dtype=np.bool_)
    common = drawing._without_refused(before, tokens, nothing, 0.0)
    expected = [by_definition(members, b"", token, most) for token in index.sorted]
    assert [drawing.outcome(before, token) for token in index.sorted] == expected
    refused = np.array([finish == "refused" for _, finish in expected])
    unknown = np.exp(common[refused]).sum()
    assert unknown <= smc.UNKNOWN * masses[~refused].sum()
    assert (common[~refused] == np.log(masses)[~refused]).all()


SETS = {"closed": [b"abbbb", b"bbaba", b"babbb"], "open": [b"a", b"ab", b"aba", b"bb", b"bbab"]}


@pytest.mark.slow
class TestUnbiased:
    """The mean of many estimates, text by text, where every kind of outcome is met."""

    @pytest.mark.parametrize("kind", sorted(SETS))
    @pytest.mark.parametrize("looked_at", [512, 0])
    @pytest.mark.parametrize("most", [9, 3])
    def test_over_1000_runs(
        self, kind: str, looked_at: int, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(smc, "LOOKED_AT", looked_at)  # 0: none is known to be refused
        model, members, prompt = by_hand(), SETS[kind], b"b"
        whole = model.prefix(prompt)
        truth: dict[bytes, float] = {}
        for one in members:
            longer = any(other != one and other.startswith(one) for other in members)
            if len(one) > most or (longer and len(one) == most):
                truth[one[:most]] = 0.0  # a text that is cut is no member
            elif longer:
                truth[one] = model.string(prompt + one) / whole
            else:
                truth[one] = model.prefix(prompt + one) / whole
        state = model.exact().state(prompt)
        constraint = constraints.choices(members)
        runs = np.zeros((1000, len(truth)))  # of each text: the estimate's part
        texts, dead = sorted(truth), 0
        for seed, run in enumerate(runs):
            try:
                result = particles(state, constraint, 4, n=9, max_new_bytes=most, seed=seed)
            except ConstraintError:  # all drew tokens that are refused
                dead += 1
                continue
            for one, weight in zip(result, result.weights, strict=True):
                run[texts.index(one.raw)] += math.exp(result.logprob) * weight
        assert dead == 0 or looked_at == 0
        masses = np.array([truth[text] for text in texts])
        errors = runs.std(axis=0) / math.sqrt(len(runs))
        assert (np.abs(runs.mean(axis=0) - masses) < 4.5 * errors + 1e-12).all()
        whole_error = runs.sum(axis=1).std() / math.sqrt(len(runs))
        assert abs(runs.sum(axis=1).mean() - masses.sum()) < 4 * whole_error + 1e-12


class TestParticles:
    def test_the_tree_is_as_it_was(self) -> None:
        state = charwise.load().state("x = ")
        state.next()
        size = len(state.shared.tree.live)
        particles(state, constraints.regex("[0-9]{1,4}[.][0-9]{1,4}\n"), 200, seed=0)
        assert len(state.shared.tree.live) == size
        assert state.next()["1"] > 0

    def test_a_window_ends_them(self) -> None:
        model = table([b"a", b"b"], {(): [0.5, 0.4, 0.1]}).windowed(12)
        constraint = constraints.choices(["a" * 50 + "b", "b" * 50])
        draws = particles(CharLM(model.lm).state("a"), constraint, 4, seed=0)
        assert {one.finish for one in draws} == {"window"}


def agree(places: list[int], expected: Floats, spare: float = 15) -> None:
    """Draws against their probabilities, by Pearson's χ²; those under 5 draws are not compared."""
    counts = np.bincount(places, minlength=len(expected))
    assert (counts[expected == 0] == 0).all()
    mean = expected * len(places)
    common = mean > 5
    assert ((counts[common] - mean[common]) ** 2 / mean[common]).sum() < 2 * common.sum() + spare


class TestDrawn:
    """One by one and asked for afterwards: the distribution is that of what may follow."""

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_members(self, temperature: float) -> None:
        members = NextTokens.covering(by_hand().exact().state("a"))
        words = (b"ba", b"bb")
        fits = [
            any(w.startswith(members.at(n)[2]) for w in words) for n in range(len(members.logs))
        ]
        assert 0 < sum(fits) < len(fits)
        expected = np.where(fits, np.exp(members.logs / temperature), 0.0)
        expected /= expected.sum()
        rng = np.random.default_rng(0)
        one = GenerationOptions(constraint=constraints.choices(words), temperature=temperature)
        # One at a time what was ruled out is forgotten.
        agree([place for _ in range(4000) for place, _ in members.draw(one, rng, 1)], expected)
        agree([place for place, _ in members.draw(one, rng, 4000)], expected)

    @given(
        st.lists(st.sampled_from([-9.0, -3.5, -2.0, -1.0, -np.inf]), min_size=2, max_size=9),
        st.integers(1, 4),
    )
    @examples(100)
    def test_picks_are_the_heaviest_or_in_proportion(self, logs: list[float], n: int) -> None:
        weights = np.array([*logs, -1.5])
        order = [at for at in np.argsort(-weights, kind="stable").tolist() if weights[at] > -np.inf]
        assert pick(weights, GenerationOptions(), np.random.default_rng(0), n) == order[:n]
        options, rng = GenerationOptions(temperature=0.5), np.random.default_rng(1)
        masses = np.exp(2 * weights)
        agree(pick(weights, options, rng, 4000), masses / masses.sum(), spare=25)

    @pytest.mark.parametrize("words", [[b"ab", b"aa", b""], [b"b"], [b"abab", b"baba", b"aab"]])
    def test_tokens_under_a_mask_are_those_that_may_follow(self, words: list[bytes]) -> None:
        """First tokens have their probabilities among all that may follow."""
        model = by_hand()
        row, [end] = model.p(()), model.vocabulary.end_ids
        fits = [
            b"" in words if token is None else any(one.startswith(token) for one in words)
            for token in model.vocabulary.tokens
        ]
        draws = model.exact().complete("", choices=words, n=4000, temperature=1.0, seed=0)
        expected = np.where(fits, row, 0.0) / row[fits].sum()
        agree([one.token_ids[0] if one.token_ids else end for one in draws], expected)
