"""Conditional generation: the right distribution, and everything a caller can ask of it."""

import math
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, Completion, GenerationOptions
from charwise.cursor.generation import Generation
from charwise.errors import VocabularyError, ZeroProbabilityError
from charwise.tokens.utf8 import pending
from models import After, Case, Model, cases, chi_square, examples, models, table

#: Draws in a chi-square test.
DRAWS = 10_000


# ---- distributions ------------------------------------------------------------------------------


def true_endings(model: Model, prompt: bytes, size: int) -> dict[bytes, float]:
    """p(what follows the prompt, up to `size` bytes), shorter where the text ends; the oracle's."""
    out: dict[bytes, float] = {}
    total = model.prefix(prompt)
    letters = sorted(set(b"".join(model.index.sorted)))
    for length in range(size + 1):
        for ending in map(bytes, product(letters, repeat=length)):
            p = (model.prefix if length == size else model.string)(prompt + ending) / total
            if p > 0:
                out[ending] = p
    assert math.fsum(out.values()) == pytest.approx(1)
    return out


#: Where masking goes wrong: `s` is likely, but hardly ever goes on with `w`.
MASKED = table(
    [b"s", b"sw", b"w", b"i", b"swi"],
    {
        (5,): [0.60, 0.10, 0.05, 0.05, 0.10, 0.10],
        (0,): [0.40, 0.05, 0.01, 0.44, 0.00, 0.10],
        (1,): [0.20, 0.10, 0.10, 0.40, 0.10, 0.10],
        (2,): [0.20, 0.20, 0.10, 0.20, 0.10, 0.20],
        (3,): [0.10, 0.20, 0.20, 0.10, 0.10, 0.30],
        (4,): [0.30, 0.10, 0.20, 0.10, 0.10, 0.20],
    },
    order=2,
)


@pytest.mark.parametrize(("prompt", "seed"), [(b"sw", 1), (b"", 2), (b"s", 3), (b"isw", 4)])
def test_draws_of_tokens_have_the_exact_distribution(prompt: bytes, seed: int):
    lm = MASKED.exact()
    expected = true_endings(MASKED, prompt, 3)
    draws = lm.complete(prompt, n=DRAWS, max_new_bytes=3, temperature=1.0, seed=seed)
    counts = Counter(completion.raw for completion in draws)
    assert abs(chi_square(counts, expected)) < 4
    # What masking would draw is told apart: `s`, then `w`, six times in nine and not in a hundred.
    members = Counter(tuple(c.token_ids[:2]) for c in draws if c.token_ids[:1] == [0])
    if prompt == b"sw":
        share = sum(members.values()) / DRAWS
        assert share == pytest.approx(0.006 / 0.206, abs=0.005)


@given(cases(longest=4, largest=60, possible=True), st.integers(0, 2**32))
@examples(30)
def test_draws_from_random_models(case: Case, seed: int):
    model, prompt = case.model, case.text
    members = {m.tokens: m.p for m in model.cover(prompt) if m.p > 0}
    total = sum(members.values())
    draws = model.exact().complete(prompt, n=1000, max_new_bytes=0, temperature=1.0, seed=seed)
    counts = Counter(tuple(c.token_ids) for c in draws)
    assert set(counts) <= set(members)
    for member, mass in members.items():  # to six standard deviations
        p = mass / total
        assert abs(counts[member] - 1000 * p) <= 3 + 6 * math.sqrt(1000 * p * max(0, 1 - p))


# ---- temperature 0 ------------------------------------------------------------------------------


def greedy_tokens(model: Model, tokens: tuple[int, ...], size: int) -> list[int]:
    """`size` more tokens, each the most probable, until the end."""
    ids = list(tokens)
    for _ in range(size):
        best = int(model.p(tuple(ids)).argmax())
        if best in model.vocabulary.end_ids:
            break
        ids.append(best)
    return ids


@given(cases(possible=True))
@examples(200)
def test_greedy_is_the_best_member_then_greedy_tokens(case: Case):
    model, prompt = case.model, case.text
    total = model.prefix(prompt)
    lm = model.exact()
    oracle = sorted(model.cover(prompt), key=lambda m: -m.p)
    [result] = lm.complete(prompt, max_new_bytes=8)
    size = len(result.token_ids)
    assert any(
        greedy_tokens(model, m.tokens, size - len(m.tokens)) == result.token_ids
        for m in oracle
        if m.p >= oracle[0].p * (1 - 1e-12)
    )
    if any(b.p >= a.p * (1 - 1e-12) for a, b in pairwise(oracle)):
        return  # ties, or as good as
    options = GenerationOptions(n=4)
    members = Generation(lm.state(prompt), options, options.limit()).partials
    expected = [m for m in oracle if m.p > 0][:4]
    assert [tuple(d.token_ids) for d in members[: len(expected)]] == [m.tokens for m in expected]
    for draft, m in zip(members, expected, strict=False):
        assert draft.logprob == pytest.approx(math.log(m.p / total), rel=1e-9, abs=1e-9)


@given(models(), st.integers(2, 5))
@examples(100)
def test_the_likeliest_first_tokens_begin_completions_of_nothing(model: Model, n: int):
    row, tokens = model.p(()), model.vocabulary.tokens
    result = model.exact().complete("", n=n, max_new_bytes=5)
    firsts = {tokens[one.token_ids[0]] if one.token_ids else None for one in result}
    expected = [tokens[at] for at in np.argsort(-row, kind="stable")[:n] if row[at] > 0]
    assert firsts <= set(expected)
    assert len({one.raw for one in result}) == len(result) <= len(expected)
    # Texts that begin with other bytes never meet.
    if len(set(expected)) == len(expected) and max(map(len, model.index.sorted)) == 1:
        assert len(result) == len(expected)


def test_a_state_completes_as_its_text_does_and_evaluates_nothing_twice():
    lm, prompt = charwise.load(), "def area(radius):\n    return math.p"
    state = lm.state(prompt[:-1]) + "p"
    expected = lm.complete(prompt, n=3, max_new_bytes=12)
    before = state.shared.tree.contexts
    result = state.complete(n=3, max_new_bytes=12)
    assert [one.raw for one in result] == [one.raw for one in expected]
    assert state.shared.tree.contexts - before <= 3 * 12
    assert "".join(state.stream(max_new_bytes=12)) == "".join(lm.stream(prompt, max_new_bytes=12))


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_cancelling_stops_within_one_model_call(calls: int):
    state = charwise.load().state("import num")
    tree = state.shared.tree
    before = tree.calls
    [result] = state.complete(max_new_bytes=60, cancel=After(calls))
    assert (result.finish, tree.calls - before) == ("cancelled", calls)
    assert result.raw == state.complete(max_new_bytes=60)[0].raw[: len(result.raw)]
    before = tree.calls
    list(state.stream(max_new_bytes=60, cancel=After(calls)))
    assert tree.calls - before == calls


@given(
    cases(),
    st.integers(1, 6),
    st.integers(0, 12),
    st.sampled_from((0.0, 0.0, 0.7, 1.0)),
    st.integers(0, 99),
)
@examples(400)
def test_every_completion_adds_up(
    case: Case, n: int, limit: int, temperature: float, seed: int
) -> None:
    """Tokens decode to prompt + completion, logprob is theirs, and lengths are kept.

    At temperature 0 the most probable come first, and each once.
    """
    model, prompt = case.model, case.text
    total, lm = model.prefix(prompt), model.exact()
    if total == 0:
        with pytest.raises((ZeroProbabilityError, VocabularyError)):
            lm.complete(prompt)
        return
    settings = {"max_new_bytes": limit, "temperature": temperature, "seed": seed}
    completions = lm.complete(prompt, n=n, **settings)
    assert 1 <= len(completions) <= n
    if temperature == 0:
        assert len({c.raw for c in completions}) == len(completions)
        bits = [c.bits_per_byte for c in completions]
        assert bits == sorted(bits)
    for c in completions:
        decoded = model.vocabulary.decode(c.token_ids)
        assert decoded.startswith(prompt + c.raw)
        assert c.drawn == len(decoded) - len(prompt) + (c.finish == "end")
        bits_drawn = -c.logprob / math.log(2) if c.drawn else 0.0
        assert c.bits_per_byte * c.drawn == pytest.approx(bits_drawn, abs=1e-9)
        assert len(c.raw) <= limit
        assert c.finish in ("end", "length")
        if c.finish == "end":
            assert decoded == prompt + c.raw or limit - len(c.raw) < 4
        weights = [model.p(tuple(c.token_ids[:i]))[t] for i, t in enumerate(c.token_ids)]
        if c.finish == "end":
            weights.append(model.p(tuple(c.token_ids))[list(model.vocabulary.end_ids)].max())
        expected = math.log(math.prod(weights)) - math.log(total)
        if len(model.vocabulary.end_ids) == 1 or c.finish != "end":
            assert c.logprob == pytest.approx(expected, rel=1e-9, abs=1e-9)
        whole = pending(prompt) + c.raw
        with suppress(UnicodeDecodeError):
            assert c.text == whole.decode()
        assert c.exact_from == 0
    assert lm.complete(prompt, n=n, **settings) == completions
    first = "".join(lm.stream(prompt, **settings))
    assert first == lm.complete(prompt, **settings)[0].text


# ---- stop strings, lengths, streams -------------------------------------------------------------


def scripted(*tokens: bytes) -> CharLM:
    """A model that says these tokens, one after the other, then ends."""
    size = len(tokens) + 1
    return table([*tokens], lambda context: np.eye(size)[(context[-1] + 1) % size], 2).exact()


def ask(lm: CharLM, prompt: str = "", **settings: object) -> Completion:
    settings = {"max_new_bytes": 99, **settings}
    [result], pieces = lm.complete(prompt, **settings), list(lm.stream(prompt, **settings))
    assert "".join(pieces) == result.text
    assert all(pieces)
    return result


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("\n", "def f():"),
        (["():\n "], "def f"),  # across three tokens
        (["f()"], "def "),
        (["def"], ""),
        ([b"e"], "d"),
        (["x", "\n    "], "def f():"),
        (["return", "ret"], "def f():\n    "),
        (["f():\n    return", "():"], "def f"),  # the one that is complete first
        (["nothing"], "def f():\n    return"),
        (["def f():\n    return"], ""),
    ],
)
def test_a_stop_string_ends_the_text_before_it(stop: object, text: str):
    result = ask(scripted(b"def", b" f(", b")", b":", b"\n  ", b"  ret", b"urn"), stop=stop)
    assert (result.text, result.raw) == (text, text.encode())
    assert result.finish == ("end" if stop == ["nothing"] else "stop")
    # However the same text falls into tokens.
    assert ask(scripted(b"def f", b"():\n    return"), stop=stop).text == text


def test_stop_strings_in_the_prompt_do_not_count():
    lm = scripted(b"one\n", b"two\n", b"three")
    assert ask(lm, "one\n", stop=["\n"]).text == "two"
    assert ask(lm, "on", stop=["\n"]).text == "e"
    assert ask(lm, "one", stop=["e\n"]).text == "\ntwo\nthree"  # half of it was the prompt's


def test_a_stream_holds_back_what_may_become_a_stop_string():
    lm = scripted(b"ab", b"ca", b"b", b"c", b"abc", b"d")
    assert list(lm.stream("", stop=["abcd"])) == ["abc", "abc"]
    assert list(lm.stream("", stop=["abcab"])) == []
    assert list(lm.stream("", stop=["cabcabcx"])) == ["ab", "cabcabcd"]
    assert list(lm.stream("", stop=["bcx"])) == ["a", "bca", "bca", "bcd"]


@pytest.mark.slow
def test_a_stream_that_nobody_ended_is_quiet_at_exit():
    code = (
        "import charwise; stream = charwise.load().stream('class A:\\n\\tdef f(self', "
        "max_new_bytes=60); next(stream)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_characters_are_never_split():
    euro = "€".encode()
    lm = scripted(b"a" + euro[:1], euro[1:2], euro[2:] + b"b", euro)
    text = "a€b€"
    for limit in range(10):
        result = ask(lm, max_new_bytes=limit)
        expected = max((text[:k] for k in range(5) if len(text[:k].encode()) <= limit), key=len)
        assert result.text == expected
        assert result.raw == expected.encode()
        assert result.finish == ("length" if limit <= 8 else "end")
    assert list(lm.stream("", max_new_bytes=99)) == ["a", "€b", "€"]
    # The prompt ends inside a character: the rest of it has room, or does not.
    inside = b"a" + euro[:1]
    for limit, raw in ((0, b""), (1, b""), (2, euro[1:]), (3, euro[1:] + b"b")):
        [result] = lm.complete(inside, max_new_bytes=limit)
        assert result.raw == raw


def test_a_window_ends_a_text():
    loop = table([b"a", b"b", b"ab"], {(): [0.5, 0.2, 0.3, 0.0]}).windowed(16)
    result = ask(loop.exact(), "ab")
    assert result.finish == "window"
    # Start token and prompt leave room for this many tokens, and one more is drawn from the last.
    assert len(result.token_ids) == 16
    assert result.logprob == pytest.approx(
        math.log(0.3 / 0.4) + 15 * math.log(0.5), rel=1e-9
    ) or result.token_ids[:2] == [0, 1]


# ---- options and progress -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "keywords",
    [
        {"n": 3, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 1, "max_new_bytes": 6},
        {"choices": ["nge(", "ndom."], "conditioning": "global", "n": 2},
        {"stop": "(", "max_new_bytes": 9},
    ],
)
def test_an_object_draws_what_its_keywords_draw(keywords: dict[str, Any]):
    lm, prompt, options = charwise.load(), "for i in ra", GenerationOptions(**keywords)
    state = lm.state(prompt)
    expected = lm.complete(prompt, **keywords)
    assert lm.complete(prompt, options) == state.complete(options) == expected
    # Keywords change an object.
    fewer = lm.complete(prompt, replace(options, n=1, seed=7))
    assert lm.complete(prompt, options, n=1, seed=7) == fewer
    assert state.complete(options, n=1, seed=7) == fewer
    if "choices" not in keywords:
        assert "".join(lm.stream(prompt, options, n=1, seed=7)) == fewer[0].text


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 0}, {"stop": ["("]}])
def test_progress_counts_the_bytes_drawn_and_may_end_the_call(settings: dict[str, object]):
    state, reports = charwise.load().state("for i in rang"), list[tuple[int, int]]()

    def report(done: int, total: int) -> None:
        if reports[-1:] == [(60, 60)]:
            raise KeyboardInterrupt
        reports.append((done, total))

    settings = {"n": 3, "max_new_bytes": 20, **settings}
    result = state.complete(progress=report, **settings)
    assert reports == sorted(reports)
    assert reports[-1] == (60, 60)
    with pytest.raises(KeyboardInterrupt):
        state.complete(progress=report, **settings)
    assert result == state.complete(**settings)  # the state is as it was
