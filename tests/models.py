"""Random tokenization models for property tests, small enough to be summed by brute force.

    @given(cases())
    @examples(300)
    def test_something(case): ...

Alphabets of 2-3 bytes (NUL, 0xFF and parts of UTF-8 characters among them), 3-12 tokens of 1-4
bytes, up to two with the same bytes, some that no context allows, one or two end tokens, rows of
order 1-3 that depend on their context, contain zeros, and may be very peaked. No token need spell
a byte of the alphabet by itself, so many texts have no encoding at all.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from charwise import CharLM, GenerationOptions, SortedVocabulary, State, Vocabulary
from charwise.constraints import Constraint
from charwise.coverings.covering import covering_size
from charwise.coverings.reference import (
    Prune,
    TokenString,
    enum_cover,
    next_character_probability,
    prefix_probability,
    string_probability,
)
from charwise.cursor.smc import Weighted, sample
from charwise.engine import TokenTree
from charwise.engines.ngram import NgramLM
from charwise.errors import ConstraintError

ALPHABETS = (b"ab", b"abc", b"a\x00", b"a\xff", b"\xfe\xff\x00", b"\xc3\xa9\x80")

#: Relative agreement of sums of probabilities in float64; below the second bound is underflow.
CLOSE = {"rel": 1e-9, "abs": 1e-290}


#: The most examples of a property: `make test` sets a lower one.
MOST = int(os.environ.get("CHARWISE_EXAMPLES", 10**9))


def examples(count: int) -> settings:
    """The same `count` examples on every machine, however slow it is."""
    return settings(
        max_examples=min(count, MOST),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def close_logs(value: float, expected: float) -> bool:
    """Whether two logs of probabilities agree to nine digits of the probabilities."""
    return value == expected or abs(value - expected) <= 1e-9


#: The bytes that end a word.
SPACES = [byte for byte in range(128) if chr(byte).isspace()]


def entropy(probabilities: Iterable[float]) -> float:
    """−Σ p log₂ p, bits."""
    return -math.fsum(p * math.log2(p) for p in probabilities if p > 0)


def log_of(probability: float) -> float:
    """log, −inf at zero."""
    return math.log(probability) if probability > 0 else -math.inf


class Rows:
    """Rows `[width]` drawn once per context, from a seed, in whatever order they are asked for.

    `zeros` is the chance of a token to be impossible in a context, `dead` in all contexts; higher
    `power` makes rows more peaked.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        seed: int,
        zeros: float = 0.0,
        dead: float = 0.0,
        power: float = 1.0,
    ) -> None:
        self.seed, self.zeros, self.power = seed, zeros, power
        self.ends = list(vocabulary.end_ids)
        self.safe = next(id for id, token in enumerate(vocabulary.tokens) if token is not None)
        draw = np.random.default_rng(seed).random(vocabulary.width)
        self.alive = vocabulary.counted & (draw >= dead)
        # The end must be reachable from everywhere, or these are no distributions over strings:
        # one token is possible everywhere, and the end is possible after it.
        self.alive[[self.safe, *self.ends]] = True

    def __repr__(self) -> str:
        return f"Rows(seed={self.seed}, zeros={self.zeros}, power={self.power})"

    def __call__(self, context: tuple[int, ...]) -> NDArray[np.float64]:
        rng = np.random.default_rng([self.seed, len(context), *context])
        allowed = self.alive & (rng.random(self.alive.size) >= self.zeros)
        allowed[self.safe] = True
        if context[-1:] in ((), (self.safe,)):
            allowed[self.ends] = True
        row = allowed * (rng.random(self.alive.size) + 1e-3) ** self.power
        probabilities: NDArray[np.float64] = row / row.sum()
        return probabilities


def random_lm(
    vocabulary: Vocabulary, order: int, seed: int, *, window: int | None = None, **traits: float
) -> NgramLM:
    """A random model over a vocabulary of one's own; see `Rows`."""
    return NgramLM(vocabulary, order, Rows(vocabulary, seed, **traits), window=window)


@dataclass(frozen=True)
class Model:
    """A tokenization model: p_Δ as an engine, and as the plain function that the oracle takes."""

    lm: NgramLM

    @property
    def vocabulary(self) -> Vocabulary:
        return self.lm.vocabulary

    @cached_property
    def index(self) -> SortedVocabulary:
        return SortedVocabulary(self.lm.vocabulary)

    def p(self, tokens: tuple[int, ...]) -> NDArray[np.float64]:
        """p_Δ(· | tokens): `[width]`."""
        return self.lm.row((*self.vocabulary.bos_ids, *tokens))

    def prefix(self, text: bytes) -> float:
        """→p(text), from the oracle, as the next three."""
        return prefix_probability(text, self.p, self.vocabulary)

    def string(self, text: bytes) -> float:
        """p(text), its end included."""
        return string_probability(text, self.p, self.vocabulary)

    def next(self, text: bytes, prune: Prune | None = None) -> NDArray[np.float64]:
        """`[257]` p(byte | text), and that of its end."""
        return next_character_probability(text, self.p, self.vocabulary, prune)

    def cover(self, text: bytes, prune: Prune | None = None) -> list[TokenString]:
        """The members of the covering of a text."""
        return enum_cover(text, self.p, self.vocabulary, prune)

    def evaluated(self) -> TokenTree:
        """A new tree, with nothing but the root evaluated."""
        return self.lm.tree(self.vocabulary.bos_ids)

    def windowed(self, window: int | None) -> Model:
        """The same with a window of so many tokens."""
        return Model(NgramLM(self.vocabulary, self.lm.order, self.lm._rows, window=window))

    def exact(self) -> CharLM:
        """The model for characters that sums over everything."""
        return CharLM(self.lm, preset="exact")


def with_sentinels(model: Model) -> Model:
    """The same tokens and the sentinels of infilling, with rows of a model that is as random."""
    old, rows, width = model.vocabulary, model.lm._rows, model.vocabulary.width
    vocabulary = Vocabulary.from_bytes(
        [*old.tokens, None, None, None],
        end_ids=old.end_ids,
        bos_ids=old.bos_ids,
        special={width: "<fim_prefix>", width + 1: "<fim_suffix>", width + 2: "<fim_middle>"},
    )
    traits = {"zeros": rows.zeros, "power": rows.power}
    return Model(random_lm(vocabulary, model.lm.order, rows.seed, **traits))


@dataclass(frozen=True)
class Case:
    """A model and a text over its alphabet."""

    model: Model
    text: bytes

    def __repr__(self) -> str:
        """All that is needed to make it again."""
        lm, rows = self.model.lm, self.model.lm._rows
        return (
            f"Case(text={self.text!r}, tokens={self.model.vocabulary.tokens}, "
            f"ends={self.model.vocabulary.end_ids}, order={lm.order}, rows={rows})"
        )


def model_of(
    tokens: list[bytes],
    order: int,
    seed: int,
    *,
    ends: int = 1,
    specials_first: bool = False,
    extra: int = 0,
    **traits: float,
) -> Model:
    """A random model over these tokens; `extra` widens the output layer beyond them."""
    specials: list[bytes | None] = [None] * (ends + extra)
    ordinary: list[bytes | None] = list(tokens)
    first = 0 if specials_first else len(tokens)
    vocabulary = Vocabulary.from_bytes(
        specials + ordinary if specials_first else ordinary + specials,
        end_ids=range(first, first + ends),
        bos_ids=[first],
    )
    return Model(random_lm(vocabulary, order, seed, **traits))


def table(tokens: list[bytes], rows: object, order: int = 1) -> Model:
    """A model given by its rows over the tokens and, last, the end of text (id `len(tokens)`)."""
    end = len(tokens)
    vocabulary = Vocabulary.from_bytes([*tokens, None], end_ids=[end], bos_ids=[end])
    return Model(NgramLM(vocabulary, order, rows))


@cache
def _pool(alphabet: bytes) -> tuple[bytes, ...]:
    """Byte strings to draw tokens from: all up to length 4, short ones more often."""
    pool: list[bytes] = []
    for length, copies in ((1, 8), (2, 3), (3, 1), (4, 1)):
        pool += [bytes(letters) for letters in product(alphabet, repeat=length)] * copies
    return tuple(pool)


#: Strategies that are made once: Hypothesis looks into each new one, and thousands are drawn.
ALPHABET = st.sampled_from(ALPHABETS)
SIZE = st.sampled_from((6, 3, 4, 5, 7, 8, 9, 10, 11, 12))
ORDER = st.sampled_from((2, 1, 3))
TRAITS, SEED, KIND = (st.integers(0, most) for most in (2**12 - 1, 2**32 - 1, 7))
LENGTHS = [st.integers(0, longest) for longest in range(17)]


@st.composite
def models(draw: st.DrawFn, order: st.SearchStrategy[int] | None = None) -> Model:
    """Tokenization models as the module says.

    Sizes and traits are drawn one by one, so that failures shrink; the rest comes from one seed,
    since thousands of models must be cheap.
    """
    alphabet = draw(ALPHABET)
    size = draw(SIZE)
    traits = draw(TRAITS)
    seed = draw(SEED)
    tokens: list[bytes] = []
    for token in random.Random(seed).choices(_pool(alphabet), k=size) + [alphabet[:2]] * 2:
        if len(tokens) < size and tokens.count(token) < 2:
            tokens.append(token)
    if len(tokens) < 3:
        tokens.append(alphabet[-1:])
    return model_of(
        tokens,
        draw(ORDER if order is None else order),
        seed,
        zeros=(0.0, 0.1, 0.3, 0.6)[traits % 4],
        dead=(0.0, 0.0, 0.0, 0.3)[traits // 4 % 4],
        power=(1.0, 1.0, 4.0, 16.0)[traits // 16 % 4],
        ends=(1, 1, 1, 2)[traits // 64 % 4],
        specials_first=traits // 256 % 4 == 1,
        extra=(0, 0, 0, 3)[traits // 1024 % 4],
    )


@st.composite
def texts(draw: st.DrawFn, model: Model, longest: int = 8) -> bytes:
    """Texts over the model's alphabet; most are made of tokens, some have a foreign byte."""
    size = longest - draw(LENGTHS[longest])
    kind = draw(KIND)
    rng = random.Random(draw(SEED))
    tokens = model.index.sorted
    if kind == 6:
        return bytes(rng.choices(sorted(set(b"".join(tokens))), k=size))
    text = b"".join(rng.choices(tokens, k=size))[:size]
    if kind == 7 and size > 2:
        at = rng.randrange(size)
        text = text[:at] + b"z" + text[at + 1 :]
    return text


def has_spelling(text: bytes, tokens: list[bytes]) -> bool:
    """Whether some of the tokens, one after the other, are exactly the text."""
    return not text or any(
        has_spelling(text[len(token) :], tokens) for token in tokens if text.startswith(token)
    )


@st.composite
def cases(
    draw: st.DrawFn,
    longest: int = 8,
    largest: int = 400,
    order: st.SearchStrategy[int] | None = None,
    possible: bool = False,
) -> Case:
    """Models with texts whose coverings have at most `largest` members (others are cut).

    Only `possible` ones have a positive probability for sure.
    """
    model = draw(models(order))
    text = draw(texts(model, longest))
    while covering_size(model.index, text) > largest:
        text = text[:-1]
    assume(not possible or prefix_probability(text, model.p, model.vocabulary) > 0)
    return Case(model, text)


def two_ways() -> Model:
    """`ab` spelled by one token or by two, for examples by hand."""
    return table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})


def chi_square(counts: Counter[Any], expected: dict[Any, float]) -> float:
    """Standard deviations of Pearson's χ² above its mean; bins of fewer than 5 are joined."""
    draws = counts.total()
    assert set(counts) <= set(expected), "something impossible was drawn"
    rare = {text for text, p in expected.items() if p * draws < 5}
    bins = [(counts[text], p * draws) for text, p in expected.items() if text not in rare]
    joined = sum(expected[text] for text in rare) * draws
    if joined >= 5:
        bins.append((sum(counts[text] for text in rare), joined))
    freedom = len(bins) - 1
    statistic = sum((count - mean) ** 2 / mean for count, mean in bins)
    return (statistic - freedom) / math.sqrt(2 * freedom)


class After:
    """A flag that sets itself when it has been asked so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def is_set(self) -> bool:
        self.times -= 1
        return self.times < 0


def by_hand() -> Model:
    """The example that docs/coverings.md goes through, with σ = `aba`."""
    rows = {
        (5,): [0.3, 0.2, 0.1, 0.3, 0.05, 0.05],  # after the start: a, b, aa, ab, aba, end
        (0,): [0.2, 0.5, 0.1, 0.1, 0.0, 0.1],
        (1,): [0.4, 0.2, 0.1, 0.1, 0.1, 0.1],
        (2,): [0.1, 0.4, 0.1, 0.1, 0.1, 0.2],
        (3,): [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
        (4,): [0.2, 0.2, 0.2, 0.1, 0.1, 0.2],
    }
    return table([b"a", b"b", b"aa", b"ab", b"aba"], rows, order=2)


def is_member(constraint: Constraint, text: str) -> bool:
    """Whether a text satisfies a constraint."""
    try:
        return bool(constraint.after(text).allowed()[256])
    except ConstraintError as error:
        if "may not follow" not in str(error):
            raise
        return False


def particles(state: State, constraint: Constraint, count: int, **options: Any) -> Weighted:
    """Texts that follow a state, conditioned on a constraint by sampling, however few there are."""
    settings = GenerationOptions(constraint=constraint, particles=count, **options)
    return sample(state, settings, settings.limit())
