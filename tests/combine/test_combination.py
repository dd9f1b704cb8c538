"""Combinations: each rule against its definition, and what one says of its error.

The oracle goes by the definitions, in plain probabilities: those of the members are of
`coverings.reference`, and the rules stand as one reads them.
"""

import math
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import charwise
from charwise import CharLM, combine
from charwise.combine import _Pool
from charwise.errors import ZeroProbabilityError
from models import Model, examples, has_spelling, model_of, table, two_ways

END = 256
IMPLAUSIBLE = math.exp(-100)
ALPHABETS = (b"ab", b"a\xff", b"\xc3\xa9")
NAMES = ("mixture", "product", "minimum", "maximum", "contrast")

Floats = NDArray[np.float64]


@dataclass
class Oracle:
    """A combination's numbers, slowly."""

    name: str
    models: Sequence[Model]
    weights: Sequence[float]
    befores: Sequence[bytes] = ()
    _known: dict[bytes, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.befores = self.befores or [b""] * len(self.models)

    def __repr__(self) -> str:
        tokens = [model.vocabulary.tokens for model in self.models]
        seeds = [(m.lm.order, m.lm._rows.seed, m.lm._rows.zeros) for m in self.models]
        return f"Oracle({self.name}, {self.weights}, {tokens}, {seeds}, {self.befores})"

    @cached_property
    def lm(self) -> CharLM:
        """The same from charwise."""
        members = [
            combine.Member(model.exact(), before=before)
            for model, before in zip(self.models, self.befores, strict=True)
        ]
        if self.name in ("mixture", "product"):
            return getattr(combine, self.name)(members, self.weights)
        if self.name in ("minimum", "maximum"):
            return getattr(combine, self.name)(members)
        return combine.contrast(*members, plausibility=self.weights[0])

    def f(self, p: Any) -> Floats:
        """F(p_1, …, p_n), where `p` are `[n]` or `[n, 257]`."""
        p = np.asarray(p)
        if self.name == "mixture":
            return np.array(self.weights) / sum(self.weights) @ p
        if self.name in ("minimum", "maximum"):
            return p.min(axis=0) if self.name == "minimum" else p.max(axis=0)
        result = np.ones(p.shape[1:])
        for power, one in zip(self.weights if self.name == "product" else (1, -1), p, strict=True):
            if power:
                result *= np.where(one > 0, np.where(one > 0, one, 1.0) ** power, 0.0)
        return result

    def members_next(self, text: bytes) -> Floats:
        """`[n, 257]` p_i(c | text); zeros of those that cannot write it."""
        if text not in self._known:
            rows = []
            for model, before in zip(self.models, self.befores, strict=True):
                try:
                    rows.append(model.next(before + text))
                except ZeroProbabilityError:
                    rows.append(np.zeros(257))
            self._known[text] = np.stack(rows)
        return self._known[text]

    def prefixes(self, text: bytes, string: bool = False) -> list[float]:
        """→p_i(text), or p_i(text)."""
        return [
            (model.string if string else model.prefix)(before + text) / model.prefix(before)
            for model, before in zip(self.models, self.befores, strict=True)
        ]

    def masses(self, text: bytes) -> Floats:
        """`[257]` what the rule gives to what may come next, not normalised."""
        rows = self.members_next(text)
        if self.name == "mixture":
            before = self.prefixes(text)
            if not self.f(before) > 0:
                return np.zeros(257)
            rows = rows * np.array(before)[:, None] / max(before)
        masses = self.f(rows)
        if self.name == "contrast":
            masses[rows[0] < self.weights[0] * rows[0].max()] *= IMPLAUSIBLE
        return masses

    def next(self, text: bytes) -> Floats | None:
        """`[257]` by the local rule; None if nothing can follow."""
        masses = self.masses(text)
        return masses / masses.sum() if masses.sum() > 0 else None

    def logprobs(self, text: bytes, context: bytes = b"") -> list[float]:
        """log q(byte | all before), of each byte; stops at the first that is impossible."""
        result = []
        for at, code in enumerate(text):
            row = self.next(context + text[:at])
            p = 0.0 if row is None else float(row[code])
            result.append(math.log(p) if p > 0 else -math.inf)
            if p == 0:
                break
        return result

    def probability(self, text: bytes, context: bytes = b"") -> float:
        """q(text | context)."""
        return math.exp(sum(self.logprobs(text, context)))


def _model(alphabet: bytes, seed: int, zeros: float) -> Model:
    rng = random.Random(seed)
    tokens = [bytes([byte]) for byte in alphabet]
    while len(tokens) < 5:
        token = bytes(rng.choices(alphabet, k=rng.choice((2, 2, 3))))
        if token not in tokens:
            tokens.append(token)
    if rng.random() < 0.3:
        tokens = tokens[1:]
    return model_of(tokens, rng.choice((1, 2)), seed, zeros=zeros, power=rng.choice((1.0, 3.0)))


@st.composite
def oracles(
    draw: st.DrawFn, names: Sequence[str] = NAMES, zeros: Sequence[float] = (0.0, 0.0, 0.3)
) -> Oracle:
    """A rule over two or three models that differ in everything but the bytes."""
    name = draw(st.sampled_from(names))
    alphabet = draw(st.sampled_from(ALPHABETS))
    seed = draw(st.integers(0, 2**30))
    rng = random.Random(seed)
    count = 2 if name == "contrast" else draw(st.sampled_from((2, 3, 1)))
    models = [_model(alphabet, seed + n, draw(st.sampled_from(zeros))) for n in range(count)]
    weights = {
        "mixture": [rng.choice((0.1, 1.0, 2.5)) for _ in range(count)],
        "product": [rng.choice((1.0, 0.5, -0.7, 0.0, 2.0)) for _ in range(count)],
        "contrast": [rng.choice((0.1, 0.4, 0.0))],
    }.get(name, [])
    if name == "product" and not any(weights):
        weights[0] = 1.0
    befores: list[bytes] = []
    if draw(st.booleans()):
        befores = [bytes(rng.choices(alphabet, k=rng.choice((0, 1, 2)))) for _ in models]
        if not all(
            has_spelling(before, model.index.sorted) and model.string(before) > 0
            for model, before in zip(models, befores, strict=True)
        ):
            befores = []
    return Oracle(name, models, weights, befores)


@st.composite
def tasks(draw: st.DrawFn, longest: int = 6, **how: object) -> tuple[Oracle, bytes]:
    """A combination, and a text over the models' bytes."""
    oracle = draw(oracles(**how))
    letters = sorted(set(b"".join(oracle.models[0].index.sorted)))
    return oracle, bytes(draw(st.lists(st.sampled_from(letters), max_size=longest)))


CLOSE = {"rtol": 1e-9, "atol": 1e-250}


def same(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(result, expected, **CLOSE)


@given(tasks(), st.integers(0, 6), st.integers(0, 6), st.booleans())
@examples(400)
def test_scored_typed_chosen_and_drawn_bytes_have_the_probabilities_of_the_definition(
    task: tuple[Oracle, bytes], cut: int, back: int, at_once: bool
) -> None:
    (oracle, whole), lm = task, task[0].lm
    context, text, row = whole[:cut], whole[cut:], oracle.next(whole)
    if row is None or not oracle.f(oracle.prefixes(whole)) > 0:
        with pytest.raises(ZeroProbabilityError):
            lm.next(whole)
    else:
        result = lm.next(whole)
        same(result.probs, row)
        assert result.error < 1e-12
    assume(oracle.f(oracle.prefixes(context)) > 0)
    expected = oracle.logprobs(text, context)
    if expected and expected[-1] == -math.inf:
        with pytest.raises(ZeroProbabilityError):
            lm.score(text, context=context)
        return
    score = lm.score(text, context=context, end=True, entropy="byte")
    for one in (score, lm.score(text, context=context)):
        np.testing.assert_allclose(one.logprobs, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(one.error, 0.0, atol=1e-12)
    end = 0.0 if row is None else row[END]
    assert math.exp(score.end_logprob) == pytest.approx(end, rel=1e-9, abs=1e-250)
    for at in range(len(text)):
        p = oracle.next(context + text[:at])
        bits = -(p[p > 0] * np.log2(p[p > 0])).sum()
        assert score.entropies[at] == pytest.approx(bits, abs=1e-9)
    if row is not None:
        state = lm.state(context)
        for some in (text,) if at_once else (text[n : n + 1] for n in range(len(text))):
            state = state._continued(some) if at_once and some else state + some
        same(state.next().probs, row)
        shorter = whole[: max(0, len(whole) - back)]
        deleted = state.without_bytes(len(whole) - len(shorter))
        assert deleted.raw == shorter
        same(deleted.next().probs, oracle.next(shorter))
    chosen = lm.choose(context, sorted({text, text[::-1]}))
    expected = [oracle.probability(choice, context) for choice in chosen.raw]
    same(np.exp(chosen.logprobs), expected)
    for one in lm.complete(context, n=3, temperature=1.0, seed=back, max_new_bytes=3):
        drawn = lm.vocabulary.decode(one.token_ids)
        p = oracle.probability(drawn[len(context) :], context)
        p *= oracle.next(drawn)[END] if one.finish == "end" else 1.0
        assert math.exp(one.logprob) == pytest.approx(p, rel=1e-9)


@given(tasks(names=("mixture",)))
@examples(150)
def test_a_mixture_is_one_of_strings(task: tuple[Oracle, bytes]) -> None:
    oracle, text = task
    expected = oracle.f(oracle.prefixes(text))
    assume(expected > 0)
    assert math.exp(oracle.lm.prefix_logprob(text)) == pytest.approx(expected, rel=1e-9)
    string = oracle.f(oracle.prefixes(text, string=True))
    assert math.exp(oracle.lm.logprob(text)) == pytest.approx(string, rel=1e-9, abs=1e-250)
    weights = np.array(oracle.weights) / sum(oracle.weights)
    posterior = weights * oracle.prefixes(text) / expected
    np.testing.assert_allclose(combine.shares(oracle.lm, text), posterior, rtol=1e-9, atol=1e-12)


# ---- a combination as a model -------------------------------------------------------------------


def other_words() -> CharLM:
    """A model of the same bytes as `two_ways`, with other tokens."""
    return table([b"a", b"b", b"ba"], {(): [0.2, 0.4, 0.2, 0.2]}).exact()


def test_every_method_takes_a_combination() -> None:
    """The embedded model and one whose tokens are bytes, those of ASCII equally likely."""
    row = np.where(np.arange(257) < 128, 1.0, 1e-4)
    letters = table([bytes([code]) for code in range(256)], {(): row / row.sum()})
    lm = combine.mixture([charwise.load(), CharLM(letters.lm)])
    for outcomes in (lm.next_chars, lm.next_words):
        assert outcomes("import nump", coverage=0.5).top(1)[0][0] == "y"
    score = lm.score("naïve = 1", entropy="char")
    assert (len(score.char_entropies), score.distributions.shape) == (9, (10, 257))
    assert "".join(lm.stream("import nump", max_new_bytes=1)) == "y"
    assert lm.info()["member 0, path"] == charwise.load().info()["path"]
    texts = ["import numpy as np", "import numpy as pd", "x"]
    for text, score in zip(texts, lm.scores(texts), strict=True):
        np.testing.assert_allclose(score.logprobs, lm.score(text).logprobs, atol=2e-3)
    again = pickle.loads(pickle.dumps(lm))
    np.testing.assert_allclose(again.next("import").probs, lm.next("import").probs, atol=1e-6)


@pytest.mark.parametrize("rule", [combine.mixture, combine.product])
def test_a_long_text_is_one_pass_of_each_member(rule: Any) -> None:
    passes = list[int]()

    class Counting(CharLM):
        def scores_with_rows(self, prompts, **settings):
            passes.append(sum(map(len, prompts)))
            return super().scores_with_rows(prompts, **settings)

    lm = rule([Counting(two_ways().lm), Counting(other_words().engine)])
    text = b"abba" * 60
    score = lm.score(text)
    assert len(passes) == 2
    assert max(passes) <= len(text)
    # The last bytes have all of the text before them.
    assert lm.score(text[-9:], context=text[:-9]).logprobs == pytest.approx(score.logprobs[-9:])


def test_a_member_has_a_prefix_of_its_own() -> None:
    lm, before = charwise.load(), "import numpy as np\n"
    alone = combine.mixture([combine.Member(lm, before=[lm.vocabulary.end_ids[0], before])])
    expected = lm.next(before + "x = n").probs
    np.testing.assert_allclose(alone.next("x = n").probs, expected, atol=2e-4)
    assert alone.state("x").raw == b"x"
    expected = lm.score("x = np", context=before).logprobs
    np.testing.assert_allclose(alone.score("x = np").logprobs, expected, atol=1e-3)


def test_a_typed_byte_that_a_state_left_out_is_evidence_nevertheless() -> None:
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


def test_a_combination_of_combinations() -> None:
    one, other = two_ways().exact(), other_words()
    inner = combine.product([one, other], weights=[1, 1])
    rows = np.stack([inner.next("ab").probs, one.next("ab").probs])
    mixed, least = combine.mixture([inner, one]), combine.minimum([inner, one])
    same(mixed.next("ab").probs, combine.shares(mixed, "ab") @ rows)
    same(least.next("ab").probs, rows.min(axis=0) / rows.min(axis=0).sum())
    logs = [math.log(least.next("ab"[:at]).probs[c]) for at, c in enumerate(b"ab")]
    np.testing.assert_allclose(least.score("ab").logprobs, logs, atol=1e-9)


def test_a_prompt_may_hold_bytes_that_are_not_plausible() -> None:
    lm = charwise.load()
    pair = combine.contrast(lm, combine.Member(lm, before="import numpy as np\n"))
    assert pair.complete("x = ?zq\nimport nump", max_new_bytes=1)[0].text
    assert pair.score("x = ?zq").bits_per_byte > 20


# ---- what it says of its error, against members that are off by that much ------------------------

RULES = [
    _Pool("mixture", (0.3, 0.7)),
    _Pool("mixture", (0.5, 0.5)),
    _Pool("product", (0.5, 0.5)),
    _Pool("product", (1.0, 1.0)),
    _Pool("product", (1.5, -0.5)),
    _Pool("product", (1.0, -1.0), plausibility=0.1),
    _Pool("minimum", (1.0, 1.0)),
    _Pool("maximum", (1.0, 1.0)),
]


def combined(rule: _Pool, rows: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.exp(rule.row(np.log(rows), evidence))


@given(
    st.sampled_from(RULES),
    st.integers(0, 2**30),
    st.sampled_from([1e-4, 0.01, 0.1]),
    st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)),
)
@examples(300)
def test_members_that_are_off_move_the_row_by_at_most_the_stated_error(
    rule: _Pool, seed: int, error: float, prefix_errors: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(257, 0.05), size=2) + 1e-9
    rows /= rows.sum(axis=1, keepdims=True)
    before = np.log(rule.weights) if rule.kind == "mixture" else np.zeros(2)
    before += rng.normal(size=2)
    result, plausible = combined(rule, rows, before), rows[0] >= 0.1 * rows[0].max()
    # Whichever byte has more in truth, by that much.
    bound = rule.next_error(np.log(rows), before, np.array([[error, 0.0], [0.0, 0.0]]))
    for code in [*rng.integers(257, size=20), rows[0].argmax(), rows[1].argmax(), result.argmax()]:
        true = rows.copy()
        true[0] *= 1 - error
        true[0, code] += error
        # The greatest and the least also fall elsewhere, by what the others give up.
        slack = error if rule.kind in ("minimum", "maximum") else 1e-9
        if rule.plausibility and (plausible != (true[0] >= 0.1 * true[0].max())).any():
            slack = 1.0
        assert 0.5 * np.abs(combined(rule, true, before) - result).sum() <= bound + slack
    if rule.kind == "mixture":  # and the weights
        both = np.array([[0.0, 0.0], prefix_errors])
        bound = rule.next_error(np.log(rows), before, both)
        for signs in ((1, -1), (-1, 1), (1, 1)):
            true = combined(rule, rows, before + signs * both[1])
            assert 0.5 * np.abs(true - result).sum() <= bound + 1e-9


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
