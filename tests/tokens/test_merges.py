"""Which token may follow which inside a word, against merging as it is defined."""

import itertools
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from charwise.tokens.merges import Merges, Rules
from models import examples


def encoded(pieces: list[int], rules: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge the pair of the lowest rank, the leftmost of several, until there is none."""
    while True:
        pairs = list(itertools.pairwise(pieces))
        found = [(rules[pair][0], at) for at, pair in enumerate(pairs) if pair in rules]
        if not found:
            return pieces
        at = min(found)[1]
        pieces = [*pieces[:at], rules[pieces[at], pieces[at + 1]][1], *pieces[at + 2 :]]


def random_rules(seed: int) -> tuple[list[str], list[tuple[str, str]], list[int]]:
    """Tokens, pairs that merge, and their ranks: learnt, or shuffled, or one for each token."""
    rng = random.Random(seed)
    tokens = list("abc"[: rng.choice((1, 2, 3))])
    pairs: list[tuple[str, str]] = []
    for _ in range(rng.randrange(1, 12)):
        pair = rng.choice(tokens), rng.choice(tokens)
        if len("".join(pair)) <= 6 and pair not in pairs:
            pairs.append(pair)
            tokens += ["".join(pair)] if "".join(pair) not in tokens else []
    if rng.random() < 0.6:  # as a list of ranks is converted: all ways to split a token
        ways = [(t[:k], t[k:]) for t in tokens for k in range(1, len(t))]
        pairs += [(a, b) for a, b in ways if a in tokens and b in tokens and (a, b) not in pairs]
    if rng.random() < 0.7:
        rng.shuffle(pairs)
    order: dict[str, int] = {}
    by_token = [order.setdefault(a + b, len(order)) for a, b in pairs]
    return tokens, pairs, by_token if rng.random() < 0.3 else list(range(len(pairs)))


def drawn(seed: int) -> tuple[Merges, list[list[int]], dict[tuple[int, int], tuple[int, int]]]:
    """Random merges, the letters of each token, and the rules as `encoded` takes them."""
    tokens, pairs, ranks = random_rules(seed)
    ids = {token: id for id, token in enumerate(tokens)}
    left, right, made = zip(*((ids[a], ids[b], ids[a + b]) for a, b in pairs), strict=True)
    rules = {(a, b): (q, c) for a, b, c, q in zip(left, right, made, ranks, strict=True)}
    pieces = [[ids[letter] for letter in token] for token in tokens]
    return Merges(pieces, Rules(*map(np.array, (left, right, made, ranks)))), pieces, rules


@given(st.integers(0, 2**32 - 1))
@examples(600)
def test_two_tokens_may_follow_each_other_where_encoding_returns_them(seed: int) -> None:
    merges, pieces, rules = drawn(seed)
    for one in range(len(pieces)):
        assert merges.reachable[one] == (encoded(pieces[one], rules) == [one])
        may = merges.after(one)
        for other in range(len(pieces)):
            together = encoded(pieces[one] + pieces[other], rules)
            assert may[other] == (together == [one, other])


@given(st.integers(0, 2**32 - 1))
@examples(300)
def test_neighbours_that_may_follow_each_other_are_what_a_word_is_encoded_as(seed: int) -> None:
    merges, pieces, rules = drawn(seed)
    rng = random.Random(seed)
    for _ in range(10):
        some = [rng.randrange(len(pieces)) for _ in range(rng.randrange(2, 5))]
        may = all(merges.after(a)[b] for a, b in itertools.pairwise(some))
        word = [piece for token in some for piece in pieces[token]]
        assert may == (encoded(word, rules) == some)
