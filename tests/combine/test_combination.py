"""A combination is a `CharLM`: what it takes, gives back, refuses, and says of its error."""

from __future__ import annotations

import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, combine
from charwise.combine import Pool
from charwise.errors import ZeroProbabilityError
from models import examples, model_of, table, two_ways


def other_words() -> CharLM:
    """A model of the same bytes as `two_ways`, with other tokens."""
    return table([b"a", b"b", b"ba"], {(): [0.2, 0.4, 0.2, 0.2]}).exact()


def code_and_letters() -> CharLM:
    """The embedded model and one whose tokens are bytes, those of ASCII equally likely."""
    row = np.where(np.arange(257) < 128, 1.0, 1e-4)
    letters = table([bytes([code]) for code in range(256)], {(): row / row.sum()})
    return combine.mixture([charwise.load(), CharLM(letters.lm)])


class TestUsedAsAModel:
    def test_all_methods(self) -> None:
        lm = code_and_letters()
        assert lm.next("import nump").top(1)[0][0] == "y"
        assert lm.next_chars("import nump", coverage=0.5).top(1)[0][0] == "y"
        assert lm.next_words("import nump", coverage=0.5).top(1)[0][0] == "y"
        score = lm.score("naïve = 1", entropy="char")
        assert len(score.char_entropies) == 9
        assert score.distributions.shape == (len(score.raw), 257)
        assert [word.text for word in score.words("leading")] == ["naïve", " =", " 1"]
        assert score.bits_per_byte == pytest.approx(
            -lm.prefix_logprob("naïve = 1") / math.log(2) / len(score.raw), rel=1e-6
        )
        assert lm.complete("import nump", max_new_bytes=1)[0].text == "y"
        assert "".join(lm.stream("import nump", max_new_bytes=1)) == "y"
        assert lm.choose("for i in ra", ["nge(", "ndom."]).top(1)[0][0] == "nge("
        assert lm.logprob("import os") < lm.prefix_logprob("import os")
        assert len(lm.scores(["a", "b"], contexts=["x", ""])) == 2
        assert lm.info()["member 0, path"] == charwise.load().info()["path"]

    def test_a_copy_of_the_model_elsewhere(self) -> None:
        lm = combine.mixture([charwise.load(), combine.Member(charwise.load(), before="x")])
        again = pickle.loads(pickle.dumps(lm))
        np.testing.assert_allclose(again.next("import").probs, lm.next("import").probs, atol=1e-6)


class TestKnownText:
    @pytest.mark.parametrize("name", ["mixture", "product"])
    def test_a_long_text_is_one_pass_of_each_member(self, name: str) -> None:
        passes = list[int]()

        class Counting(CharLM):
            def scores_with_rows(self, prompts, **settings):
                passes.append(sum(map(len, prompts)))
                return super().scores_with_rows(prompts, **settings)

        members = [Counting(two_ways().lm), Counting(other_words().engine)]
        lm, text = getattr(combine, name)(members), b"abba" * 60
        score = lm.score(text)
        assert len(passes) == 2
        assert max(passes) <= len(text)
        # The last bytes have all of the text before them.
        assert lm.score(text[-9:], context=text[:-9]).logprobs == pytest.approx(score.logprobs[-9:])
        if name == "mixture":
            logs = [member.prefix_logprob(text) for member in members]
            expected = np.logaddexp(*logs) - math.log(2)
            assert score.logprobs.sum() == pytest.approx(expected, rel=1e-9)

    def test_several_texts_go_to_a_member_together(self) -> None:
        lm = code_and_letters()
        texts = ["import numpy as np", "import numpy as pd", "x"]
        for text, score in zip(texts, lm.scores(texts), strict=True):
            np.testing.assert_allclose(score.logprobs, lm.score(text).logprobs, atol=2e-3)


class TestMembers:
    def test_a_prefix_of_its_own(self) -> None:
        lm = charwise.load()
        end = lm.vocabulary.end_ids[0]
        alone = combine.mixture([combine.Member(lm, before=[end, "import numpy as np\n"])])
        expected = lm.next("import numpy as np\nx = n").probs
        np.testing.assert_allclose(alone.next("x = n").probs, expected, atol=2e-4)
        assert alone.state("x").raw == b"x"
        expected = lm.score("x = np", context="import numpy as np\n").logprobs
        np.testing.assert_allclose(alone.score("x = np").logprobs, expected, atol=1e-3)

    def test_a_typed_byte_that_a_state_left_out_is_evidence_nevertheless(self) -> None:
        lm = charwise.load(tolerance=0.002)
        pair = combine.mixture([lm, combine.Member(lm, before="import quokka\n\n")])
        for mixed in (combine.mixture([lm]), pair):
            state = mixed.state("")
            for letter in "raise ValueErr":
                state = state + letter
            assert state.next()["?"] < 1e-6
            state = state + "?"
            tree, size = state.shared.tree, len(state.raw)
            before, after = (tree.evidence(node)[0] for node in (size - 1, size))
            assert (after - before > -40).all()  # nats: it is what the member makes of the byte

    def test_a_combination_of_combinations(self) -> None:
        one, other = two_ways().exact(), other_words()
        inner = combine.product([one, other], weights=[1, 1])
        rows = np.stack([inner.next("ab").probs, one.next("ab").probs])
        mixed, least = combine.mixture([inner, one]), combine.minimum([inner, one])
        np.testing.assert_allclose(
            mixed.next("ab").probs, combine.shares(mixed, "ab") @ rows, rtol=1e-9
        )
        expected = rows.min(axis=0) / rows.min(axis=0).sum()
        np.testing.assert_allclose(least.next("ab").probs, expected, rtol=1e-9)
        logs = [math.log(least.next("ab"[:at]).probs[c]) for at, c in enumerate(b"ab")]
        np.testing.assert_allclose(least.score("ab").logprobs, logs, atol=1e-9)

    def test_a_member_that_cannot_write_the_text(self) -> None:
        digits = table([b"1", b"2"], {(): [0.4, 0.4, 0.2]}).exact()
        letters = other_words()
        mixed = combine.mixture([digits, letters])
        assert combine.shares(mixed, "a").tolist() == [0.0, 1.0]
        assert (mixed.state("a") - 1).next()["1"] > 0.1
        assert mixed.logprob("1") == pytest.approx(math.log(0.5 * 0.4 * 0.2))
        for impossible in (
            lambda: mixed.state("1a"),
            lambda: combine.product([digits, letters]).state("a"),
            lambda: combine.minimum([digits, letters]).score("a"),
        ):
            with pytest.raises(ZeroProbabilityError):
                impossible()
        assert combine.product([digits, letters]).next("").eos == 1.0
        only_digits = combine.product([digits, letters], weights=[1, 0])
        assert only_digits.next("1").probs == pytest.approx(digits.next("1").probs)

    def test_a_prompt_may_hold_bytes_that_are_not_plausible(self) -> None:
        lm = charwise.load()
        pair = combine.contrast(lm, combine.Member(lm, before="import numpy as np\n"))
        assert pair.complete("x = ?zq\nimport nump", max_new_bytes=1)[0].text
        assert pair.score("x = ?zq").bits_per_byte > 20


# ---- what it says of its error, against members that are off by that much ------------------------

RULES = [
    Pool("mixture", (0.3, 0.7)),
    Pool("product", (0.5, 0.5)),
    Pool("product", (1.0, 1.0)),
    Pool("product", (1.5, -0.5)),
    Pool("product", (1.0, -1.0), plausibility=0.1),
    Pool("minimum", (1.0, 1.0)),
    Pool("maximum", (1.0, 1.0)),
]


def combined(rule: Pool, rows: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.exp(rule.row(np.log(rows), evidence))


@given(st.sampled_from(RULES), st.integers(0, 2**30), st.sampled_from([1e-4, 0.01, 0.1]))
@examples(200)
def test_one_byte_that_is_off_is_covered(rule: Pool, seed: int, error: float) -> None:
    """Whichever byte has more in truth, by that much: the distribution is not further off."""
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(257, 0.05), size=2) + 1e-9
    rows /= rows.sum(axis=1, keepdims=True)
    before = np.log(rule.weights) if rule.kind == "mixture" else np.zeros(2)
    before += rng.normal(size=2)
    bound = rule.next_error(np.log(rows), before, np.array([[error, 0.0], [0.0, 0.0]]))
    result = combined(rule, rows, before)
    for code in [*rng.integers(257, size=20), rows[0].argmax(), rows[1].argmax(), result.argmax()]:
        true = rows.copy()
        true[0] *= 1 - error
        true[0, code] += error
        apart = 0.5 * np.abs(combined(rule, true, before) - result).sum()
        # The greatest and the least also fall elsewhere, by what the others give up.
        slack = error if rule.kind in ("minimum", "maximum") else 1e-9
        if rule.plausibility:
            slack = 1.0 if plausible(true) != plausible(rows) else 1e-9
        assert apart <= bound + slack


def plausible(rows: np.ndarray) -> set[int]:
    return set(np.flatnonzero(rows[0] >= 0.1 * rows[0].max()).tolist())


@given(st.integers(0, 2**30), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
@examples(100)
def test_weights_of_a_mixture_that_are_off(seed: int, one: float, other: float) -> None:
    rng = np.random.default_rng(seed)
    rows, before = rng.dirichlet(np.full(257, 0.05), size=2), rng.normal(size=2) * 5
    rows = (rows + 1e-12) / (1 + 257e-12)
    prefix_errors = np.array([one, other])
    rule = Pool("mixture", (0.5, 0.5))
    bound = rule.next_error(np.log(rows), before, np.stack([np.zeros(2), prefix_errors]))
    result = combined(rule, rows, before)
    for signs in ((1, -1), (-1, 1), (1, 1)):
        apart = 0.5 * np.abs(combined(rule, rows, before + signs * prefix_errors) - result).sum()
        assert apart <= bound + 1e-9


def pair(preset: str) -> list[CharLM]:
    """Two models of several thousand ways to read a text, so that something is left out."""
    words = ([b"ab", b"bc", b"ca", b"abc"], [b"aa", b"ba", b"cab", b"cb", b"ac"])
    return [
        CharLM(model_of([b"a", b"b", b"c", *more], 3, seed, power=2.0).lm, preset=preset)
        for seed, more in enumerate(words, start=1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture", "product", "minimum", "maximum", "contrast"])
def test_an_approximate_combination_is_within_what_it_says(name: str) -> None:
    if name == "contrast":
        exactly, lm = (combine.contrast(*pair(p), plausibility=0.0) for p in ("exact", "fast"))
    else:
        exactly, lm = (getattr(combine, name)(pair(preset)) for preset in ("exact", "fast"))
    rng, text = random.Random(3), "abcabacabcbabcaabcabbcab"
    off, stated = list[float](), list[float]()
    for one in [text, *("".join(rng.choices("abc", k=24)) for _ in range(7))]:
        exact, fast = exactly.score(one), lm.score(one)
        np.testing.assert_allclose(exact.error, 0, atol=1e-12)
        off.append(np.abs(exact.logprobs - fast.logprobs).mean())
        stated.append(fast.error.mean())
        assert stated[-1] > 0
        assert off[-1] <= 4 * stated[-1]  # of one text, an estimate is this near
    assert sum(off) <= sum(stated)
    result, truth = lm.state(text), exactly.state(text).next()
    assert truth.error <= 1e-9
    assert 0.5 * np.abs(result.next().probs - truth.probs).sum() <= 3 * result.error + 1e-6
