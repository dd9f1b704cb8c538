"""A combination is used as a model is: what it takes, gives back, and refuses."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import charwise
from charwise import CharLM, combine
from charwise.combine import Combination
from charwise.errors import (
    CharwiseError,
    ConstraintError,
    SettingError,
    TokenizationError,
    ZeroProbabilityError,
)
from models import table, two_ways


def other_words() -> CharLM:
    """A model of the same bytes as `two_ways`, with other tokens."""
    return CharLM(table([b"a", b"b", b"ba"], {(): [0.2, 0.4, 0.2, 0.2]}).lm, preset="exact")


def code_and_letters() -> Combination:
    """The embedded model and one whose tokens are bytes, those of ASCII equally likely."""
    from charwise.engines.ngram import NgramLM
    from charwise.tokens.vocabulary import Vocabulary

    tokens = [*(bytes([code]) for code in range(256)), None]
    vocabulary = Vocabulary.from_bytes(tokens, end_ids=[256], bos_ids=[256])
    row = np.where(np.arange(257) < 128, 1.0, 1e-4)
    letters = CharLM(NgramLM(vocabulary, 1, {(): row / row.sum()}))
    return combine.mixture([charwise.load(), letters])


class TestUsedAsAModel:
    def test_all_that_does_not_speak_of_tokens(self) -> None:
        lm = code_and_letters()
        assert lm.next("import nump").top(1)[0][0] == "y"
        assert lm.next_chars("import nump", coverage=0.5).top(1)[0][0] == "y"
        score = lm.score("naïve = 1", entropy="char")
        assert score.char_entropies is not None
        assert score.distributions is not None
        assert [word.text for word in score.words("leading")] == ["naïve", " =", " 1"]
        assert score.bits_per_byte == pytest.approx(
            -lm.prefix_logprob("naïve = 1") / math.log(2) / len(score.raw), rel=1e-9
        )
        assert type(score.plot()).__name__ == "Figure"
        with pytest.raises(SettingError, match="canonical tokens"):
            score.tokens()
        assert lm.complete("import nump", max_new_bytes=1)[0].text == "y"
        assert "".join(lm.stream("import nump", max_new_bytes=1)) == "y"
        [drawn] = lm.characters("import nump", max_new_bytes=1, temperature=0)
        assert drawn.character == "y"
        assert lm.choose("for i in ra", ["nge(", "ndom."]).top(1)[0][0] == "nge("
        assert lm.logprob("import os") < lm.prefix_logprob("import os")
        assert len(lm.scores(["a", "b"], contexts=["x", ""])) == 2
        assert (
            lm.members[0].lm.info().items()
            <= {name.removeprefix("member 0, "): value for name, value in lm.info().items()}.items()
        )

    def test_constraints(self) -> None:
        lm = code_and_letters()
        assert lm.complete("return ", choices=["True", "False"])[0].text == "True"
        [one] = lm.complete("Answer: ", regex=r"(yes|no)\.", temperature=1.0, seed=1)
        assert (one.text in ("yes.", "no."), one.finish) == (True, "constraint")
        found: Any = lm.complete("x = ", regex="[01]", conditioning="global", n=2)
        assert sum(found.weights) == pytest.approx(1)
        assert lm.state("x = ").next(charwise.constraints.choices(["1"])).top(1) == [("1", 1.0)]
        [json] = lm.complete("x = ", json_schema={"enum": [0, 1]})
        assert json.text in ("0", "1")
        with pytest.raises(ConstraintError, match="inside a character"):
            lm.complete(b"na\xc3", regex="ïve")

    def test_stops_and_budgets(self) -> None:
        lm = code_and_letters()
        [one] = lm.complete("import nump", stop="\n", max_new_bytes=40)
        assert (one.finish, "\n" in one.text) == ("stop", False)
        assert "".join(lm.stream("import nump", stop="\n", max_new_bytes=40)) == one.text
        assert lm.complete("import nump", seconds=0)[0].finish == "time"
        cancel = threading.Event()
        cancel.set()
        assert lm.complete("import nump", cancel=cancel)[0].finish == "cancelled"
        seen: list[tuple[int, int]] = []
        lm.complete("import nump", max_new_bytes=3, progress=lambda *at: seen.append(at))
        assert seen == [(1, 3), (2, 3), (3, 3)]
        lm.scores(["ab", "c"], progress=lambda *at: seen.append(at))
        assert seen[3:] == [(1, 3), (3, 3)]
        drawn = lm.complete("x", n=4, temperature=1.0, seed=3, max_new_bytes=6)
        assert [one.raw for one in drawn] == [
            one.raw for one in lm.complete("x", n=4, temperature=1.0, seed=3, max_new_bytes=6)
        ]

    def test_a_completion_ends_between_characters(self) -> None:
        tokens = table(["é".encode(), b"a"], {(): [0.9, 0.1, 0.0]})
        lm = combine.product([CharLM(tokens.lm, preset="exact")])
        assert lm.complete("", max_new_bytes=3)[0].text == "é"
        assert lm.complete(b"\xc3", max_new_bytes=1)[0].text == "é"
        assert "".join(lm.stream(b"\xc3", max_new_bytes=4)) == "éé"


class TestStates:
    def test_deleting_characters(self) -> None:
        lm = code_and_letters()
        state = lm.state("naï")
        assert (state - 1).raw == b"na"
        assert (state + "ve" - 3).text == "na"
        assert state.without_bytes(1).raw == b"na\xc3"
        assert (state + "x").text == "naïx"
        assert (state - 3).text == ""
        np.testing.assert_allclose(
            (state + "ve = 1" - 6).next().probs, state.next().probs, atol=1e-12
        )
        np.testing.assert_allclose((state - 1).shares, lm.state("na").shares, rtol=1e-3)

    def test_repr(self) -> None:
        assert "2 members" in repr(code_and_letters().state("import nump"))
        assert "2 members" in repr(code_and_letters())

    def test_what_is_said_of_the_text(self) -> None:
        state = code_and_letters().state("import nump")
        assert state.exact_from == 0
        assert state.error == state.next().error


class TestMembers:
    def test_a_prefix_of_its_own(self) -> None:
        lm = charwise.load()
        end = lm.vocabulary.end_ids[0]
        told = combine.member(lm, before=[end, "import numpy as np\n"])
        alone = combine.mixture([told])
        expected = lm.next("import numpy as np\nx = n").probs
        np.testing.assert_allclose(alone.next("x = n").probs, expected, atol=1e-9)
        assert alone.state("x").raw == b"x"
        assert alone.state("x = n").exact_from == 0
        score = alone.score("x = np")
        np.testing.assert_allclose(
            score.logprobs, lm.score("x = np", context="import numpy as np\n").logprobs, atol=1e-9
        )

    def test_a_typed_byte_that_a_state_left_out_is_evidence_nevertheless(self) -> None:
        lm = charwise.load(tolerance=0.002)
        pair = combine.mixture([lm, combine.member(lm, before="import quokka\n\n")])
        for mixed in (combine.mixture([lm]), combine.mixture([combine.mixture([lm])]), pair):
            typed = mixed.state("")
            for letter in "raise ValueErr":
                typed = typed + letter
            assert typed.next()["?"] < 1e-6
            typed = typed + "?"
            assert np.allclose(typed.shares, mixed.state(typed.text).shares, atol=0.01)

    def test_a_combination_of_combinations(self) -> None:
        one, other = CharLM(two_ways().lm, preset="exact"), other_words()
        inner = combine.product([one, other], weights=[1, 1])
        for outer in (combine.mixture([inner, one]), combine.minimum([inner, one])):
            row, first = inner.next("ab").probs, one.next("ab").probs
            state = outer.state("ab")
            found = state.next().probs
            if state.team.rule.remembers(False):
                np.testing.assert_allclose(found, state.shares @ np.stack([row, first]), rtol=1e-9)
            else:
                least = np.minimum(row, first)
                np.testing.assert_allclose(found, least / least.sum(), rtol=1e-9)
            logs = [math.log(outer.next("ab"[:at]).probs[c]) for at, c in enumerate(b"ab")]
            np.testing.assert_allclose(outer.score("ab").logprobs, logs, atol=1e-9)
            assert outer.complete("", conditioning="global", particles=3, max_new_bytes=2, seed=1)

    def test_what_has_only_states(self) -> None:
        class Stateful:
            def __init__(self, lm: CharLM) -> None:
                self._lm = lm

            def state(self, prompt: Any = "", **spend: Any) -> Any:
                return self._lm.state(prompt, **spend)

        one, other = CharLM(two_ways().lm, preset="exact"), other_words()
        for name in ("mixture", "product", "maximum"):
            make = getattr(combine, name)
            plain, bare = make([one, other]), make([Stateful(one), other])
            for lm in (plain, bare):
                assert lm.next("ab").probs.sum() == pytest.approx(1)
            np.testing.assert_allclose(
                bare.score("aba", end=True).logprobs, plain.score("aba", end=True).logprobs
            )
            assert bare.logprob("ab") == pytest.approx(plain.logprob("ab"))

    def test_the_same_object_twice_is_itself(self) -> None:
        lm = other_words()
        for make in (combine.mixture, combine.product, combine.minimum, combine.maximum):
            np.testing.assert_allclose(make([lm, lm]).next("b").probs, lm.next("b").probs)
            np.testing.assert_allclose(make([lm]).score("ba").logprobs, lm.score("ba").logprobs)

    def test_a_member_that_cannot_write_the_text(self) -> None:
        digits = CharLM(table([b"1", b"2"], {(): [0.4, 0.4, 0.2]}).lm, preset="exact")
        letters = other_words()
        mixed = combine.mixture([digits, letters])
        assert mixed.state("a").shares.tolist() == [0.0, 1.0]
        assert (mixed.state("") + "a").shares.tolist() == [0.0, 1.0]
        assert (mixed.state("a") - 1).next()["1"] > 0.1
        assert mixed.logprob("1") == pytest.approx(math.log(0.5 * 0.4 * 0.2))
        with pytest.raises(ZeroProbabilityError):
            mixed.state("1a")
        with pytest.raises(ZeroProbabilityError, match="cannot write it"):
            combine.product([digits, letters]).state("a")
        with pytest.raises(ZeroProbabilityError, match="cannot write it"):
            combine.minimum([digits, letters]).score("a")
        only_end = combine.product([digits, letters])
        assert only_end.next("").eos == 1.0
        nothing = combine.product([digits, letters], weights=[1, 0])
        assert nothing.next("1").probs == pytest.approx(digits.next("1").probs)

    def test_two_members_after_each_of_which_nothing_fits(self) -> None:
        one = CharLM(table([b"ab", b"b"], {(): [1.0, 0.0, 0.0]}).lm, preset="exact")
        other = CharLM(table([b"a", b"aa"], {(): [0.5, 0.5, 0.0]}).lm, preset="exact")
        with pytest.raises(ZeroProbabilityError, match="nothing may follow"):
            combine.product([one, other]).next("a")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda lm: combine.mixture([lm, lm], [1e308, 1e308]), "one is above 0"),
        (lambda lm: combine.mixture([lm, lm], [1, math.nan]), "must be finite"),
        (lambda lm: combine.mixture([lm, lm], [1, 10**400]), "must be finite"),
        (lambda lm: combine.mixture([lm, lm], [1, "2"]), "must be a number"),
        (lambda lm: combine.mixture([lm, lm], 2), "give a list of numbers"),
        (lambda lm: combine.mixture([lm, lm], {0: 1, 1: 1}), "give a list of numbers"),
        (lambda lm: combine.product([lm, lm], [0, 0]), "other than 0"),
        (lambda lm: combine.product([lm, lm], [math.inf, 0]), "must be finite"),
        (lambda lm: combine.proxy(lm, lm, lm, alpha=math.nan), "alpha is nan"),
        (lambda lm: combine.contrast(lm, lm, plausibility="a"), "must be a number"),
        (lambda lm: combine.member(lm, before=3), "a prompt is text"),
        (lambda lm: combine.mixture([lm]).next([0, "x"]), "one tokenizer only"),
        (lambda lm: combine.mixture([combine.member(lm, before=[10**6])]).next("x"), "token"),
        (lambda lm: combine.mixture([lm]).scores("ab"), "put one text into a list"),
        (lambda lm: combine.mixture([lm]).scores(["a"], contexts=[]), "0 contexts for 1"),
        (lambda lm: combine.mixture([lm]).score("a", entropy="line"), "entropy is 'line'"),
        (lambda lm: combine.mixture([lm]).score("a", end=2), "must be True or False"),
        (lambda lm: combine.mixture([lm]).next("a", preset="slow"), "unknown preset"),
        (lambda lm: combine.product([lm]).next("a", preset="slow"), "unknown preset"),
        (
            lambda lm: combine.product([lm]).complete("a", conditioning="so"),
            "choose 'local' or 'global'",
        ),
        (
            lambda lm: combine.product([lm]).complete("a", conditioning="global", stop="b"),
            "leave temp",
        ),
        (lambda lm: combine.product([lm]).complete("a", stop=""), "stop string is empty"),
        (lambda lm: combine.product([lm]).stream("a", stop=5), "stop is 5"),
        (lambda lm: combine.product([lm]).state("a") - 2, "cannot delete 2"),
        (lambda lm: combine.product([lm]).state("a") - 1.5, "a whole number"),
        (lambda lm: combine.product([lm]).state("a").without_bytes(2), "cannot delete 2 bytes"),
        (lambda lm: combine.product([lm]).choose("a", ["a", "a"]), "twice"),
    ],
)
def test_refused(ask: Callable[[CharLM], object], says: str) -> None:
    with pytest.raises(CharwiseError, match=says) as caught:
        ask(charwise.load())
    assert isinstance(caught.value, SettingError | TokenizationError)
