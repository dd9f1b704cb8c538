"""Every rule against its definition, on random models with different tokens over the same bytes.

The oracle goes by the definitions: probabilities of members by `coverings.reference`, the rules as
one reads them, in plain probabilities.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from charwise import CharLM, combine
from charwise.errors import ZeroProbabilityError
from models import Model, chi_square, examples, has_spelling, model_of

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

    def f(self, probabilities: Sequence[float]) -> float:
        """F(p_1, …, p_n)."""
        if self.name == "mixture":
            total = sum(self.weights)
            return sum(w / total * p for w, p in zip(self.weights, probabilities, strict=True))
        if self.name in ("minimum", "maximum"):
            return min(probabilities) if self.name == "minimum" else max(probabilities)
        powers = self.weights if self.name == "product" else (1.0, -1.0)
        out = 1.0
        for power, p in zip(powers, probabilities, strict=True):
            if power:
                out = out * p**power if p > 0 else 0.0
            if out == 0:
                return 0.0
        return out

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
        masses = np.array([self.f(list(column)) for column in rows.T])
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

    def strings(self, longest: int) -> dict[bytes, float]:
        """What each text of at most so many bytes is given; the longest ones with what follows."""
        letters = sorted(set(b"".join(b"".join(m.index.sorted) for m in self.models)))
        result: dict[bytes, float] = {}
        todo = [(b"", 1.0)]
        while todo:
            text, p = todo.pop()
            if len(text) == longest:
                result[text] = p
                continue
            row = self.next(text)
            if row is None:
                continue
            if row[END] > 0:
                result[text] = p * float(row[END])
            todo += [(text + bytes([c]), p * float(row[c])) for c in letters if row[c] > 0]
        return result


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
def tasks(draw: st.DrawFn, longest: int = 5, **how: object) -> tuple[Oracle, bytes]:
    """A combination, and a text over the models' bytes."""
    oracle = draw(oracles(**how))
    letters = sorted(set(b"".join(oracle.models[0].index.sorted)))
    return oracle, bytes(draw(st.lists(st.sampled_from(letters), max_size=longest)))


CLOSE = {"rtol": 1e-9, "atol": 1e-250}


def same(result: Any, expected: Any) -> None:
    np.testing.assert_allclose(result, expected, **CLOSE)


@given(tasks())
@examples(250)
def test_the_next_byte(task: tuple[Oracle, bytes]) -> None:
    oracle, text = task
    alive = oracle.f(oracle.prefixes(text)) > 0
    expected = oracle.next(text) if alive else None
    if expected is None:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.next(text)
        return
    result = oracle.lm.next(text)
    same(result.probs, expected)
    assert result.error < 1e-12


@given(tasks(), st.integers(0, 5))
@examples(250)
def test_a_text_is_scored(task: tuple[Oracle, bytes], cut: int) -> None:
    oracle, whole = task
    context, text = whole[:cut], whole[cut:]
    assume(oracle.f(oracle.prefixes(context)) > 0)
    expected = oracle.logprobs(text, context)
    if expected and expected[-1] == -math.inf:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.score(text, context=context)
        return
    after = oracle.next(whole)
    score = oracle.lm.score(text, context=context, end=True, entropy="byte")
    np.testing.assert_allclose(score.logprobs, expected, rtol=0, atol=1e-9)
    assert score.raw == text
    end = 0.0 if after is None else after[END]
    assert math.exp(score.end_logprob) == pytest.approx(end, rel=1e-9, abs=1e-250)
    for at in range(len(text)):
        row = oracle.next(context + text[:at])
        positive = row[row > 0]
        assert score.entropies[at] == pytest.approx(-(positive * np.log2(positive)).sum(), abs=1e-9)
    plain = oracle.lm.score(text, context=context)
    np.testing.assert_allclose(plain.logprobs, score.logprobs, rtol=0, atol=1e-9)
    np.testing.assert_allclose(plain.error, 0.0, atol=1e-12)


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
    # Never worse than the best member by more than what its weight costs.
    best = max(
        p and math.log(p) + math.log(w)
        for w, p in zip(weights, oracle.prefixes(text), strict=True)
        if p > 0
    )
    assert oracle.lm.prefix_logprob(text) >= best - 1e-9


@given(tasks(longest=6), st.integers(0, 6), st.integers(0, 6), st.booleans())
@examples(200)
def test_typing_and_deleting_is_building_at_once(
    task: tuple[Oracle, bytes], cut: int, back: int, at_once: bool
) -> None:
    oracle, text = task
    assume(all(oracle.next(text[:at]) is not None for at in range(len(text) + 1)))
    assume(not oracle.logprobs(text) or oracle.logprobs(text)[-1] > -math.inf)
    lm = oracle.lm
    state = lm.state(text[:cut])
    rest = text[cut:]
    if at_once:
        state = state._continued(rest) if rest else state
    else:
        for byte in rest:
            state = state + bytes([byte])
    same(state.next().probs, oracle.next(text))
    shorter = state.without_bytes(min(back, len(text)))
    shorter_text = text[: len(text) - min(back, len(text))]
    assert shorter.raw == shorter_text
    same(shorter.next().probs, oracle.next(shorter_text))
    if len(rest) <= 4:
        assert (shorter + text[len(shorter_text) :]).raw == text


@given(oracles(zeros=(0.0,)), st.integers(0, 3), st.booleans())
@examples(120)
def test_choices(oracle: Oracle, size: int, ended: bool) -> None:
    letters = sorted(set(b"".join(oracle.models[0].index.sorted)))
    choices = [bytes([one, other]) for one in letters for other in letters][: size + 1]
    prompt = bytes(letters[:1])
    logs = []
    for choice in choices:
        steps = oracle.logprobs(choice, prompt)
        total = sum(steps) if len(steps) == len(choice) else -math.inf
        if ended and total > -math.inf:
            row = oracle.next(prompt + choice)
            p = 0.0 if row is None else float(row[END])
            total = total + math.log(p) if p > 0 else -math.inf
        logs.append(total)
    if oracle.next(prompt) is None or oracle.f(oracle.prefixes(prompt)) == 0:
        return
    if max(logs) == -math.inf:
        with pytest.raises(ZeroProbabilityError):
            oracle.lm.choose(prompt, choices, ended=ended)
        return
    chosen = oracle.lm.choose(prompt, choices, ended=ended)
    np.testing.assert_allclose(np.exp(chosen.logprobs), np.exp(logs), **CLOSE)


#: Three models over `a` and `b`, with three tokenizers.
FIRST = model_of([b"a", b"b", b"ab"], 2, 1)
SECOND = model_of([b"a", b"b", b"ba", b"aa"], 2, 2)
THIRD = model_of([b"a", b"b"], 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "oracle",
    [
        Oracle("mixture", [FIRST, SECOND], [0.3, 0.7]),
        Oracle("product", [FIRST, SECOND], [1.0, 0.8]),
        Oracle("minimum", [FIRST, SECOND], []),
        Oracle("maximum", [FIRST, SECOND], []),
        Oracle("product", [FIRST, SECOND, THIRD], [1.0, 0.5, -0.5]),
        Oracle("contrast", [FIRST, SECOND], [0.2]),
    ],
    ids=lambda oracle: oracle.name,
)
def test_draws_by_the_local_rule(oracle: Oracle) -> None:
    longest = 3
    truth = oracle.strings(longest)
    assert sum(truth.values()) == pytest.approx(1.0)
    draws = oracle.lm.complete("", n=1500, temperature=1.0, seed=5, max_new_bytes=longest)
    assert abs(chi_square(Counter(one.raw for one in draws), truth)) < 4
    for one in draws[:50]:
        assert math.exp(one.logprob) == pytest.approx(truth[one.raw], rel=1e-9)
        assert one.finish == ("length" if len(one.raw) == longest else "end")
