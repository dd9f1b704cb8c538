"""Typing, deleting, pasting, completing and forking: what an editor does, against new states."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

import charwise
from charwise import CharLM, Effort, State
from charwise.coverings.beam import Beam
from charwise.cursor.shared_tree import EXACT_TOKENS
from charwise.errors import VocabularyError, ZeroProbabilityError
from models import Case, Model, cases, examples, model_of, models

approx = pytest.approx

FRAGMENTS = (
    "def push(self, tok):\n    ",
    "for i in rnage(10):\n    pritn(i)",
    "self.lexer = shlex()\n",
    "import nunpy as np",
    "# Die Größe überprüfen, falls nötig: ",
    "# 这是一个测试。",
    "🙂 ß プ é́",
    'raise ValueErorr("x")\n\n',
    "\t\t}{;\r\n",
)

#: Most that a typed state's next byte may be off that of a new state, as a share of probability.
#: Both leave out alternatives; typing five hundred keys of code with typos comes to 0.06.
OFF = 0.15


@cache
def lm() -> CharLM:
    return charwise.load()


def distance(one: State, other: State) -> float:
    """Total variation of their next bytes."""
    return float(np.abs(one.next().probs - other.next().probs).sum() / 2)


def beam(text: str) -> NDArray[np.float64]:
    """What comes next, by a beam over the whole text."""
    tree = lm().engine.tree(lm().vocabulary.bos_ids)
    masses, _ = Beam.start(tree, 0, 24).advance(text.encode()).next_byte_masses()
    return masses / masses.sum()


@pytest.mark.parametrize("preset", ["default", "fast"])
@pytest.mark.parametrize("text", ["# 这是一个测试。🙂 プ", "for i in rnage(10):\n    pritn(i)\n"])
def test_every_key_that_a_model_allows_is_taken(preset: str, text: str):
    state = lm().state("", preset=preset)
    for character in text:
        state = state + character
    assert state.text == text
    assert distance(state, lm().state(text, preset=preset)) < OFF


class Editor(RuleBasedStateMachine):
    """Whatever was done before, the state is that of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.forks: list[tuple[State, str]] = []
        self.checked: State | None = None

    @initialize(prompt=st.sampled_from(("", "import numpy as np\n\n\nclass Node:\n", "# Übung\n")))
    def open(self, prompt: str) -> None:
        self.state, self.text = lm().state(prompt), prompt

    @rule(fragment=st.sampled_from(FRAGMENTS), size=st.integers(1, 12))
    def type(self, fragment: str, size: int) -> None:
        for character in fragment[:size]:
            self.state, self.text = self.state + character, self.text + character

    @rule(fragment=st.sampled_from(FRAGMENTS), swap=st.integers(1, 8))
    def type_with_a_typo(self, fragment: str, swap: int) -> None:
        at = min(swap, len(fragment) - 1)
        self.type(fragment[: at - 1] + fragment[at] + fragment[at - 1], 12)

    @rule(n=st.integers(1, 9))
    def delete(self, n: int) -> None:
        n = min(n, len(self.text))
        self.state, self.text = self.state - n, self.text[: len(self.text) - n]

    @rule(first=st.sampled_from(FRAGMENTS), second=st.sampled_from(FRAGMENTS))
    def paste(self, first: str, second: str) -> None:
        self.state, self.text = self.state + (first + second), self.text + first + second

    @rule(size=st.integers(1, 12))
    def accept_a_completion(self, size: int) -> None:
        new = self.state.complete(max_new_bytes=size)[0].text
        self.state, self.text = self.state + new, self.text + new

    @rule()
    def fork(self) -> None:
        self.forks.append((self.state, self.text))

    @precondition(lambda self: self.forks)
    @rule(which=st.integers(0, 99))
    def go_back(self, which: int) -> None:
        self.state, self.text = self.forks[which % len(self.forks)]

    @invariant()
    def is_a_new_state(self) -> None:
        if self.state is self.checked:
            return
        self.checked = self.state
        assert self.state.text == self.text
        assert self.state.raw == self.text.encode()
        # Where they differ, either may be the one that is off: more effort tells. A new state has
        # what is long ago in its canonical tokens, whatever the effort; a beam sums over the whole.
        if distance(self.state, lm().state(self.text)) >= OFF:
            nearer = lm().state(self.text, preset="accurate")
            if distance(self.state, nearer) >= OFF:
                assert self.state.exact_from < nearer.exact_from
                off = np.abs(self.state.next().probs - beam(self.text)).sum() / 2
                assert off < OFF


class TinyEditor(RuleBasedStateMachine):
    """The same with random models and coarse efforts: nothing that is possible is refused."""

    @initialize(model=models(), effort=st.sampled_from((Effort(1), Effort(2))))
    def open(self, model: Model, effort: Effort) -> None:
        self.model = model
        self.state = CharLM(model.lm, preset=effort).state("")

    @rule(which=st.integers(0, 99), size=st.integers(1, 4))
    def type(self, which: int, size: int) -> None:
        for byte in self.model.index.sorted[which % len(self.model.index.sorted)][:size]:
            self._add(bytes([byte]))

    @rule(which=st.integers(0, 99), also=st.integers(0, 99))
    def paste(self, which: int, also: int) -> None:
        tokens = self.model.index.sorted
        self._add(tokens[which % len(tokens)] + tokens[also % len(tokens)])

    @rule(n=st.integers(1, 4))
    def delete(self, n: int) -> None:
        self.state = self.state.without_bytes(min(n, len(self.state.raw)))

    def _add(self, more: bytes) -> None:
        longer = self.state.raw + more
        if len(self.model.vocabulary.tokens) ** len(longer) > 1e7 or len(longer) > EXACT_TOKENS:
            return
        truth = self.model.prefix(longer)
        if truth == 0:  # what is recombined may let it in, and the exact preset alone never does
            with suppress(ZeroProbabilityError, VocabularyError):
                _ = self.state + more
            return
        self.state = self.state + more
        assert self.state.raw == longer

    @invariant()
    def goes_on(self) -> None:
        assert self.state.next().probs.sum() == approx(1)


Editor.TestCase.settings = examples(4)
TinyEditor.TestCase.settings = examples(100)
TestEditor = pytest.mark.slow(Editor.TestCase)
TestTinyEditor = pytest.mark.slow(TinyEditor.TestCase)


@given(cases(largest=200), st.sampled_from(("fast", "default", "accurate", Effort(1))))
@examples(400)
def test_no_possible_byte_is_refused(case: Case, preset: str | Effort):
    """Candidates are recombined, so that nothing possible is lost.

    How far the probabilities are off has no bound: what a threshold leaves out may be all that goes
    on. The next test has what they come to.
    """
    lm = CharLM(case.model.lm, preset=preset)
    state = lm.state("")
    for at in range(len(case.text)):
        longer = case.text[: at + 1]
        if case.model.prefix(longer) == 0:
            return
        state = state + longer[-1:]
        for one in (state, lm.state(longer)):
            assert math.isfinite(one.logprob)
            assert 0 <= one.error <= 1
            assert one.next().probs.sum() == approx(1)


#: Tokens of fixed models.
SHORT = [bytes(token) for size in (2, 3, 4) for token in product(b"ab", repeat=size)]

#: Preset → nats of a typed state, total variation of a typed and of a new one, share covered.
NEAR = {
    "fast": (0.031, 0.0071, 0.001, 0.945),
    "default": (0.0175, 0.0018, 1e-4, 0.945),
    "accurate": (0.0115, 0.00092, 3e-6, 0.94),
}


def test_states_are_near_the_truth():
    """The means over sixty fixed models, and how often three times the error covers the truth."""
    off = {preset: list[tuple[float, float, float, bool, bool]]() for preset in NEAR}
    for seed in range(60):
        rng = random.Random(seed)
        tokens = sorted({b"a", b"b", *rng.choices(SHORT, k=6)})
        zeros, power = 0.1 * (seed % 2), (1.0, 4.0)[seed // 2 % 2]
        model = model_of(tokens, 1 + seed % 3, seed, zeros=zeros, power=power)
        text = b"".join(rng.choices(tokens, k=8))[:8]
        states = {preset: CharLM(model.lm, preset=preset).state("") for preset in NEAR}
        for at in range(1, len(text) + 1):
            truth = model.prefix(text[:at])
            if truth == 0:
                break
            following = model.next(text[:at])
            for preset, state in states.items():
                states[preset] = typed = state + text[at - 1 : at]
                both = (typed, CharLM(model.lm, preset=preset).state(text[:at]))
                away = [float(np.abs(one.next().probs - following).sum() / 2) for one in both]
                held = [3 * one.error + 1e-9 >= far for one, far in zip(both, away, strict=True)]
                off[preset].append((abs(typed.logprob - math.log(truth)), *away, *held))
    for preset, bounds in NEAR.items():
        means = np.mean(off[preset], axis=0)
        assert (means[:3] < bounds[:3]).all()
        assert (means[3:] > bounds[3]).all()
