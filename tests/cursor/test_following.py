"""Tokens drawn beside a constraint, against what each token may do by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charwise import GenerationOptions, constraints
from charwise.constraints.constraint import END, Constraint
from charwise.cursor.following import Following
from charwise.errors import ConstraintError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary
from models import examples

WORDS = [bytes(word) for size in (1, 2, 3) for word in itertools.product(b"ab.", repeat=size)]
INDEX = SortedVocabulary(Vocabulary.from_bytes([*WORDS, None], end_ids=[len(WORDS)]))
MADE = {
    "choices": constraints.choices(["a", "ab.", "b.b"]),
    "few": constraints.regex(r"(ab)+\.?"),
    "many": constraints.regex(r"[ab]*\.|a*"),
    "all": constraints.regex(r"[ab.]*"),
}
SCORES = st.sampled_from([-9.0, -3.5, -3.25, -2.0, -1.0, -np.inf])


def allowed(constraint: Constraint) -> list[int]:
    """The tokens that may follow, asked one by one."""
    found = []
    for id, word in enumerate(WORDS):
        try:
            constraint.after(word)
        except ConstraintError:
            continue
        found.append(id)
    return found + [len(WORDS)] * bool(constraint.allowed()[END])


@given(
    st.sampled_from(sorted(MADE)),
    st.lists(SCORES, min_size=len(WORDS) + 1, max_size=len(WORDS) + 1),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(
        [GenerationOptions(), GenerationOptions(top_k=2), GenerationOptions(temperature=1.0)]
    ),
)
@examples(300)
def test_what_is_drawn_may_follow_and_nothing_likelier_does(
    name: str, scores: list[float], dtype: torch.dtype, options: GenerationOptions
) -> None:
    constraint = MADE[name]
    following = Following.of(constraint, INDEX)
    for _ in range(3):  # along what is drawn
        row = torch.tensor(scores, dtype=dtype)
        may = [id for id in allowed(constraint) if scores[id] > -np.inf]
        first = int(row.argmax())
        token, following = following.draw(first, row, options, torch.Generator())
        if not may:
            assert token == -1
            return
        assert token in may
        if options.temperature == 0:
            assert scores[token] == max(scores[id] for id in may)
        if token == len(WORDS):
            return
        constraint = constraint.after(WORDS[token])
        assert np.array_equal(following.allowed, constraint.allowed())
        scores = scores[1:] + scores[:1]


@pytest.mark.parametrize("name", sorted(MADE))
@pytest.mark.parametrize(
    "options", [GenerationOptions(), GenerationOptions(top_k=2), GenerationOptions(top_p=0.5)]
)
@pytest.mark.parametrize("token", [0, 3, len(WORDS)])
def test_where_all_has_probability_zero_none_is_drawn(
    name: str, options: GenerationOptions, token: int
) -> None:
    following = Following.of(MADE[name], INDEX)
    row = torch.full((len(WORDS) + 1,), -np.inf)
    assert following.draw(token, row, options, torch.Generator()) == (-1, following)


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_grammar_is_begun_once_for_a_vocabulary(name: str) -> None:
    """What is kept of where the text begins is not moved by those who follow it."""
    constraint = MADE[name]
    before = constraint.over(INDEX).mask()
    for word in (WORDS[id] for id in allowed(constraint) if id < len(WORDS)):
        after = constraint.after(word)
        assert np.array_equal(after.over(INDEX).mask(), constraint.over(INDEX).after(word).mask())
    assert np.array_equal(constraint.over(INDEX).mask(), before)
