"""Random combinations of models with different tokens over the same bytes, and the truth of them.

Everything here is by the definitions: probabilities of members by `coverings.reference`, the rules
as one reads them, in plain probabilities.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from charwise import CharLM, combine
from charwise.coverings.reference import prefix_probability, string_probability
from charwise.errors import ZeroProbabilityError
from models import Model, model_of, spelled

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

    def __repr__(self) -> str:
        tokens = [model.vocabulary.tokens for model in self.models]
        seeds = [(m.lm.order, m.lm._rows.seed, m.lm._rows.zeros) for m in self.models]
        return f"Oracle({self.name}, {self.weights}, {tokens}, {seeds}, {self.befores})"

    @cached_property
    def lm(self) -> CharLM:
        """The same from charwise."""
        befores = self.befores or [b""] * len(self.models)
        members = [
            combine.Member(model.exact(), before=before)
            for model, before in zip(self.models, befores, strict=True)
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
        powers = {
            "product": self.weights,
            "contrast": (1.0, -1.0),
        }[self.name]
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
            for model, before in zip(self.models, self._befores, strict=True):
                try:
                    rows.append(model.next(before + text))
                except ZeroProbabilityError:
                    rows.append(np.zeros(257))
            self._known[text] = np.stack(rows)
        return self._known[text]

    @property
    def _befores(self) -> Sequence[bytes]:
        return self.befores or [b""] * len(self.models)

    def prefixes(self, text: bytes, string: bool = False) -> list[float]:
        """→p_i(text), or p_i(text)."""
        of: Callable[..., float] = string_probability if string else prefix_probability
        return [
            of(before + text, model.p, model.vocabulary) / model.prefix(before)
            for model, before in zip(self.models, self._befores, strict=True)
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
        found = []
        for at, code in enumerate(text):
            row = self.next(context + text[:at])
            p = 0.0 if row is None else float(row[code])
            found.append(math.log(p) if p > 0 else -math.inf)
            if p == 0:
                break
        return found

    def strings(self, longest: int) -> dict[bytes, float]:
        """What each text of at most so many bytes is given; the longest ones with what follows."""
        letters = sorted(set(b"".join(b"".join(m.index.sorted) for m in self.models)))
        found: dict[bytes, float] = {}
        todo = [(b"", 1.0)]
        while todo:
            text, p = todo.pop()
            if len(text) == longest:
                found[text] = p
                continue
            row = self.next(text)
            if row is None:
                continue
            if row[END] > 0:
                found[text] = p * float(row[END])
            todo += [(text + bytes([c]), p * float(row[c])) for c in letters if row[c] > 0]
        return found


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
    draw: st.DrawFn,
    names: Sequence[str] = NAMES,
    zeros: Sequence[float] = (0.0, 0.0, 0.3),
    prefixed: bool = True,
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
    if prefixed and draw(st.booleans()):
        befores = [bytes(rng.choices(alphabet, k=rng.choice((0, 1, 2)))) for _ in models]
        for model, before in zip(models, befores, strict=True):
            if not (spelled(before, model.index.sorted) and model.string(before) > 0):
                befores = []
                break
    return Oracle(name, models, weights, befores)


@st.composite
def texts_for(draw: st.DrawFn, oracle: Oracle, longest: int = 5) -> bytes:
    """A text over the models' bytes."""
    letters = sorted(set(b"".join(oracle.models[0].index.sorted)))
    return bytes(draw(st.lists(st.sampled_from(letters), max_size=longest)))


@st.composite
def asked(draw: st.DrawFn, longest: int = 5, **how: object) -> tuple[Oracle, bytes]:
    """A combination, and a text."""
    oracle = draw(oracles(**how))  # type: ignore[arg-type]
    return oracle, draw(texts_for(oracle, longest))
