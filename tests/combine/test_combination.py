"""A combination is a `CharLM`: what it takes, gives back, and refuses."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import charwise
from charwise import CharLM, Vocabulary, combine
from charwise.combine import CombinedTree
from charwise.errors import ZeroProbabilityError
from models import table, two_ways


def other_words() -> CharLM:
    """A model of the same bytes as `two_ways`, with other tokens."""
    return table([b"a", b"b", b"ba"], {(): [0.2, 0.4, 0.2, 0.2]}).exact()


def code_and_letters() -> CharLM:
    """The embedded model and one whose tokens are bytes, those of ASCII equally likely."""
    from charwise.engines.ngram import NgramLM

    tokens = [*(bytes([code]) for code in range(256)), None]
    vocabulary = Vocabulary.from_bytes(tokens, end_ids=[256], bos_ids=[256])
    row = np.where(np.arange(257) < 128, 1.0, 1e-4)
    letters = CharLM(NgramLM(vocabulary, 1, {(): row / row.sum()}))
    return combine.mixture([charwise.load(), letters])


class TestUsedAsAModel:
    def test_all_methods(self) -> None:
        lm = code_and_letters()
        assert lm.next("import nump").top(1)[0][0] == "y"
        assert lm.next_chars("import nump", coverage=0.5).top(1)[0][0] == "y"
        assert lm.next_words("import nump", coverage=0.5).top(1)[0][0] == "y"
        score = lm.score("naïve = 1", entropy="char")
        assert score.char_entropies is not None
        assert score.distributions is not None
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
            def scores_with_rows(self, prompts, **settings):  # type: ignore[no-untyped-def]
                passes.append(sum(map(len, prompts)))
                return super().scores_with_rows(prompts, **settings)

        members = [Counting(two_ways().lm), Counting(other_words().engine)]
        lm, text = getattr(combine, name)(members), b"abba" * 1000
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
            typed = mixed.state("")
            for letter in "raise ValueErr":
                typed = typed + letter
            assert typed.next()["?"] < 1e-6
            typed = typed + "?"
            tree, size = typed.shared.tree, len(typed.raw)
            assert isinstance(tree, CombinedTree)
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
