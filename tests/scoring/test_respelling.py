"""Respelling: other tokens for what occurs again, and texts that need them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import charwise
from charwise import CharLM
from charwise.coverings.rows import EvaluatedRows
from charwise.evaluation.methods import walk_beam
from charwise.scoring.contexts import Contexts
from charwise.scoring.respelling import respell
from charwise.tokens.known_text import KnownText
from conftest import Data
from models import Model, table


def respelled(lm: CharLM, text: bytes, deepest: float = math.inf) -> tuple[list[bytes], int]:
    """The tokens of the base path that is found, and how many contexts it took."""
    rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    contexts = Contexts(rows, KnownText.of(text, lm.index), through=True)
    tokens = list(lm.vocabulary.encode(text))
    contexts.add([(0, tokens)], rows.follow([(0, tokens)]))
    path = [0, *contexts.follow(0, tokens)]
    steps = respell(contexts, path, deepest)
    while True:
        try:
            branches = next(steps)
        except StopIteration as found:
            path = found.value
            ids = rows.tree.tokens(int(contexts.node[path[-1]]))
            return [lm.vocabulary.tokens[id] or b"" for id in ids], contexts.evaluated
        nodes = [(int(contexts.node[branch.context]), branch.tokens) for branch in branches]
        contexts.add(branches, rows.follow(nodes))


def splitting(cost: float) -> Model:
    """[ab] costs 3 nats. [a b] costs more at the first place, and next to nothing after that."""

    def row(context: tuple[int, ...]) -> list[float]:
        if context[-1:] == (0,):
            return [0.01, 0.95, 0.01, 0.02, 0.01]
        if 0 in context and context[-1:] == (3,):
            return [0.9, 0.02, 0.02, 0.05, 0.01]
        return [cost, 0.02, 0.05, 0.92 - cost, 0.01]

    return table([b"a", b"b", b"ab", b"-"], row, order=40)


@pytest.mark.parametrize(("times", "pays"), [(1, False), (2, True), (6, True)])
def test_a_split_that_costs_at_first_and_pays_later(times: int, pays: bool):
    """[a b] loses 1.7 nats at the first place, and gains 2.8 at each later one."""
    lm = CharLM(splitting(0.01).lm)
    found, _ = respelled(lm, b"ab-" * times)
    assert found == [b"a", b"b", b"-"] * times if pays else [b"ab", b"-"] * times


def test_what_never_pays_back_is_given_up():
    """One place costs more than all others are worth."""
    lm = CharLM(splitting(1e-9).lm)
    assert respelled(lm, b"ab-" * 2)[0] == [b"ab", b"-"] * 2
    assert respelled(lm, b"ab-" * 8)[0] == [b"a", b"b", b"-"] * 8


def test_what_does_not_fit_the_window_is_not_tried():
    lm = CharLM(splitting(0.01).lm)
    assert respelled(lm, b"ab-" * 4, deepest=11)[0] == [b"ab", b"-"] * 4
    assert respelled(lm, b"ab-" * 4, deepest=12)[0] == [b"a", b"b", b"-"] * 4


def test_trials_have_room_for_so_many_contexts():
    text = b"".join(b"frobnicate%d zumquandle%d " % (n, n) for n in range(20))
    lm = charwise.load()
    tokens = len(lm.vocabulary.encode(text))
    found, contexts = respelled(lm, text)
    assert b"".join(found) == text
    assert contexts <= 1 + tokens * (1 + 8) + 2 * tokens


def test_text_that_does_not_repeat_takes_no_call():
    lm = charwise.load()
    text = b"import os"
    _, contexts = respelled(lm, text)
    assert contexts == 1 + len(lm.vocabulary.encode(text))


# ---- texts that need it -------------------------------------------------------------------------


def log_p(lm: CharLM, tokens: list[int]) -> float:
    """The sum over a single path: no more than the text's prefix probability."""
    tree = lm.engine.tree(lm.vocabulary.bos_ids, list(enumerate(tokens)))
    rows = tree.logprobs(list(range(len(tokens))))
    return sum(float(row[token]) for row, token in zip(rows, tokens, strict=True))


@pytest.mark.parametrize(
    ("word", "times"), [("zumquandle ", 10), ("niradepa ", 8), ("mohoduwax ", 8)]
)
def test_an_unknown_word_over_and_over(word: str, times: int) -> None:
    """Its best tokens differ from the canonical ones, and pay when it is back; or it is said."""
    lm, text = charwise.load(), (word * times).encode()
    score = lm.score(text)
    least = walk_beam(lm, text, k=32).logprobs.sum()
    assert score.error is not None
    assert score.logprobs.sum() > least - max(0.03 * len(text), 4 * score.error.sum())


def test_a_split_that_loses_much_at_first_may_gain_it_back():
    """`e|a|x` loses much on `e|ax` at its first place, and has gained far more at its last."""
    text = b"    mov eax, [ebp+8]\n    mov ebx, [ebp+12]\n    add eax, ebx\n    mov ecx, eax\n"
    lm = charwise.load()
    assert lm.vocabulary.encode(text).count(lm.vocabulary.encode(b" eax")[-1]) == 3
    found, _ = respelled(lm, text)
    assert log_p(lm, [lm.vocabulary.tokens.index(token) for token in found]) > log_p(
        lm, list(lm.vocabulary.encode(text))
    )
    score, fine = lm.score(text), lm.score(text, preset="accurate")
    assert score.logprobs.sum() == pytest.approx(fine.logprobs.sum(), abs=3.0)


def test_what_many_places_may_pay_is_followed(data: Data):
    """[t he] costs 10.5 nats where it comes first, and 16 on the way, and pays after 11 places."""
    lm = charwise.load(data.folder / "models" / "tinystories-3m", device="cpu")
    text = "the " * 12
    first, the, *_ = usual = list(lm.vocabulary.encode(text))
    id_of = {token: id for id, token in enumerate(lm.vocabulary.tokens) if token}
    t, he = id_of[b" t"], id_of[b"he"]
    mixed = [first, *[t, he] * 3, the, *[t, he] * 2, the, *[t, he] * 2, the, t, he, usual[-1]]
    assert lm.vocabulary.decode(mixed) == text.encode()
    assert log_p(lm, mixed) > log_p(lm, usual) + 15
    score = lm.score(text)
    assert score.error is not None
    assert score.logprobs.sum() > log_p(lm, mixed) - max(1.0, 3 * score.error.sum())
    assert np.isfinite(score.logprobs).all()
