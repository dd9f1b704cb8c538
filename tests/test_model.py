"""`CharLM` against the oracle: probabilities, next bytes and characters, scores, prompts."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, Effort, Vocabulary
from charwise.cursor.options import GenerationOptions
from charwise.engines.ngram import NgramLM
from charwise.errors import SettingError, VocabularyError, ZeroProbabilityError
from charwise.healing.generate import heal_generate
from charwise.side_by_side import METHODS, complete_by_tokens
from charwise.tokens import utf8
from charwise.tokens.utf8 import pending
from models import (
    CLOSE,
    Case,
    Model,
    cases,
    close_logs,
    examples,
    log_of,
    model_of,
    table,
    two_ways,
)

approx = pytest.approx


def prefix_truth(case: Case) -> list[float]:
    """→p of every prefix of the text, from the oracle."""
    model, text = case.model, case.text
    return [model.prefix(text[:at]) for at in range(len(text) + 1)]


# ---- the oracle ---------------------------------------------------------------------------------


#: NUL, halves of a character, and a byte that is in none.
STRAY = table(
    [b"\x00", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xff", b"a\x00"],
    {(): [0.2, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1]},
)


@given(cases())
@example(Case(STRAY, b"\xff\x00\xc3"))
@example(Case(STRAY, b"\x00\xc3\xa9\xff"))
@example(Case(STRAY, b"a"))
@examples(300)
def test_probabilities_are_the_oracles(case: Case):
    lm, model, text = case.model.exact(), case.model, case.text
    expected = log_of(model.prefix(text))
    if expected == -math.inf:
        for ask in (lm.prefix_logprob, lm.logprob, lm.next, lm.state, lm.score):
            with pytest.raises((ZeroProbabilityError, VocabularyError)):
                ask(text)
        return
    assert close_logs(lm.prefix_logprob(text), expected)
    whole = log_of(model.string(text))
    assert close_logs(lm.logprob(text), whole)
    assert close_logs(lm.state(text).logprob, expected)

    truth = model.next(text)
    nxt = lm.next(text)
    assert nxt.probs == approx(truth, **CLOSE)
    assert nxt.probs.sum() == approx(1, rel=1e-12)
    assert nxt.eos == nxt[256] == nxt.probs[256]
    assert nxt.error == 0


@given(cases(possible=True))
@examples(200)
def test_scores_are_differences(case: Case):
    lm, truth = case.model.exact(), prefix_truth(case)
    score = lm.score(case.text, end=True)
    assert score.raw == case.text
    assert score.logprobs == approx(np.diff(np.log(truth)), rel=1e-9, abs=1e-9)
    assert not score.error.any()
    assert score.bits_per_byte == approx(
        -math.log2(truth[-1]) / max(1, len(case.text)), rel=1e-9, abs=1e-9
    )
    # The chain rule, end of text included.
    total = score.logprobs.sum() + score.end_logprob
    whole = case.model.string(case.text)
    assert close_logs(total, log_of(whole))


@given(cases(longest=5, largest=100, possible=True))
@examples(150)
def test_next_chars_are_marginals(case: Case):
    """p(character) is the product of its bytes' probabilities; what is no character is missing."""
    model, text = case.model, case.text
    total = model.prefix(text)
    result = model.exact().next_chars(text, coverage=1.0)
    nxt = model.next(text)
    assert result.eos == approx(nxt[256], **CLOSE)
    start = pending(text)
    for character, probability in result.items():
        encoded = character.encode()
        assert encoded.startswith(start)
        longer = text[: len(text) - len(start)] + encoded
        truth = model.prefix(longer) / total
        assert probability == approx(truth, **CLOSE)
    everything = [*(chr(c) for c in range(128)), "é", "À", "ã"]
    for character in everything:
        longer = text[: len(text) - len(start)] + character.encode()
        if longer.startswith(text) and character not in result:
            # All float64 can tell from the whole is listed.
            truth = model.prefix(longer) / total
            assert truth < 1e-15
    assert sum(result.values()) + result.eos + result.missing == approx(1, abs=1e-9)
    order = list(result.values())
    assert order == sorted(order, reverse=True)


@given(cases(longest=4, largest=50, possible=True), st.floats(0.05, 1))
@examples(100)
def test_next_chars_stop_at_the_coverage(case: Case, coverage: float):
    state = case.model.exact().state(case.text)
    everything = state.next_chars(1.0)
    result = state.next_chars(coverage)
    held = result.eos + sum(result.values())
    assert held + result.missing == approx(1, abs=1e-9)
    # Where bytes that are no character hold more than is to be left out, as much again may be.
    assert held >= min(coverage, coverage - everything.missing) - 1e-9
    assert held >= coverage - 1e-9 or everything.missing > 1 - coverage - 1e-9
    assert all(everything[character] == approx(p, **CLOSE) for character, p in result.items())
    assert list(result) == list(everything)[: len(result)]


def test_next_characters_are_bounded_however_much_is_asked_for():
    lm = charwise.load(preset="fast")
    sizes = []
    for text in ("x = 'na", "# 这是一个测试，我们"):
        state = lm.state(text)
        result = state.next_chars(1.0)
        beginnings = {character.encode()[:n] for character in result for n in (1, 2, 3)}
        sizes.append(len({b for b in beginnings if utf8.bytes_missing(b) > 0}))
        held = result.eos + sum(result.values())
        assert held + result.missing == approx(1, abs=1e-9)
        assert result.missing >= 1 - held - 1e-9
        some = state.next_chars(0.99)
        assert 0 < len(some) < 1000
        assert list(some) == list(result)[: len(some)]
    assert max(sizes) <= 64


# ---- long texts ---------------------------------------------------------------------------------


def bigram_truth(model: Model, text: bytes) -> np.ndarray:
    """`[len(text) + 1]` log →p of every prefix, for models of order 1 or 2, in linear time.

    After the same last token the model goes on in the same way, so contexts that end at the same
    position in the same token are one: the sum over coverings becomes a forward algorithm.
    """
    tokens = model.vocabulary.tokens
    weights: list[dict[int, float]] = [defaultdict(float) for _ in range(len(text) + 1)]
    weights[0][-1] = 1.0
    sums = np.zeros(len(text) + 1)
    sums[0] = 1.0
    logs = np.zeros(len(text) + 1)
    scale = 0.0
    for t in range(len(text) + 1):
        logs[t] = scale + math.log(sums[t])
        factor = 1 / sums[t]
        scale -= math.log(factor)
        sums[t:] *= factor
        for there in weights[t:]:
            for last in there:
                there[last] *= factor
        for last, weight in weights[t].items():
            row = model.p((last,) if last >= 0 else ())
            for id, token in enumerate(tokens):
                if token is None or not row[id]:
                    continue
                for d in range(1, min(len(token), len(text) - t) + 1):
                    if text[t + d - 1] != token[d - 1]:
                        break
                    sums[t + d] += weight * row[id]
                    if d == len(token):
                        weights[t + d][id] += weight * row[id]
    return logs


#: In models of order 2, contexts with the same last token are recombined without an error.
SAME_TAIL = Effort(6)


def long_text(model: Model, size: int, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    ids = model.index.ids
    return model.vocabulary.decode(int(i) for i in rng.choice(ids, size=size))[:size]


@cache
def small_bigram(order: int, window: int | None) -> Model:
    tokens = [b"a", b"b", b"c", b"ab", b"bc", b"cab", b"aa"]
    return model_of(tokens, order, 5).windowed(window)


@pytest.mark.parametrize("order", [1, 2])
def test_bigram_truth_is_the_oracle(order: int):
    model = small_bigram(order, None)
    text = long_text(model, 9)
    truth = [model.prefix(text[:t]) for t in range(len(text) + 1)]
    assert bigram_truth(model, text) == approx(np.log(truth), abs=1e-12)


@pytest.mark.parametrize(("order", "off"), [(1, 1e-9), (2, 0.005)])
@pytest.mark.slow
def test_a_text_several_windows_long(order: int, off: float):
    """After the warm-up, a model that forgets gives the values of one long window."""
    model = small_bigram(order, 100)
    text = long_text(model, 600)
    assert len(model.vocabulary.encode(text)) > 300
    truth = np.diff(bigram_truth(model, text))
    score = CharLM(model.lm).score(text, preset=SAME_TAIL)
    assert np.abs(score.logprobs - truth).mean() < off
    for preset in ("fast", "default"):
        score = CharLM(model.lm).score(text, preset=preset)
        assert np.isfinite(score.logprobs).all()
        assert (score.logprobs <= 0).all()
        assert score.bits_per_byte == approx(-truth.mean() / math.log(2), rel=0.05)


@pytest.mark.slow
def test_the_end_of_a_text_several_windows_long():
    model = small_bigram(2, 100)
    text = long_text(model, 600)
    lm = CharLM(model.lm, preset=SAME_TAIL)
    whole, prefix = lm.logprob(text), lm.prefix_logprob(text)
    # The end in closed form: Σ over last tokens, by asking for the end as if it were a letter.
    assert lm.next(text).probs[256] == approx(math.exp(whole - prefix), rel=0.02)


# ---- kinds of prompts ---------------------------------------------------------------------------


def test_prompts_mean_the_same_however_they_are_given():
    lm = two_ways().exact()
    bos = lm.vocabulary.bos_ids[0]
    expected = lm.next("ab").probs
    for prompt in (b"ab", bytearray(b"ab"), ["ab"], [bos, "ab"], [bos, "a", "b"], ("ab",)):
        assert (lm.next(prompt).probs == expected).all()
    for empty in ("", b"", [], [""], [bos], ()):
        nxt = lm.next(empty)
        assert nxt.probs[[ord("a"), ord("b"), 256]] == approx([0.7, 0.2, 0.1])
        assert lm.prefix_logprob(empty) == 0
        assert lm.logprob(empty) == approx(math.log(0.1))
        assert lm.score(empty).bits_per_byte == 0
        assert lm.state(empty).raw == b""
        assert lm.covering(empty).prefix_logprob().lower == 0


def test_special_tokens_inside_a_prompt_are_conditioned_on():
    special, end = 3, 4
    vocabulary = Vocabulary.from_bytes(
        [b"a", b"b", b"ab", None, None], end_ids=[end], bos_ids=[end], special={special: "<s>"}
    )
    rows = {(): [0.4, 0.2, 0.3, 0, 0.1], (special,): [0.1, 0.8, 0.05, 0, 0.05]}
    lm = CharLM(NgramLM(vocabulary, 2, lambda context: rows.get(context, rows[()])), preset="exact")
    assert lm.next([special])["b"] == approx(0.8)
    assert lm.next(["ab", special])["b"] == approx(0.8)
    assert lm.prefix_logprob(["ab", special, "b"]) == approx(math.log(0.8))
    assert lm.state(["ab", special, "b"]).raw == b"b"
    assert lm.state([special]).shared.opening.ids == (special,)
    assert lm.state(["a", special]).shared.opening.ids == (end, 0, special)
    # Its spelling as ordinary text is ordinary text, which this vocabulary cannot spell.
    with pytest.raises(VocabularyError, match="'<'"):
        lm.next("<s>")


def test_no_start_and_no_end_token():
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab"])
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.5, 0.2, 0.3]}), preset="exact")
    with pytest.raises(SettingError, match=r"\[id, 'text'\]"):
        lm.next("a")
    # No start token, but the caller says what to begin with.
    assert lm.next([0, "a"])["b"] == approx((0.5 * 0.2 + 0.3) / (0.5 + 0.3), rel=1e-12)
    assert lm.logprob([0, "a"]) == -math.inf  # there is no end


def test_all_256_bytes_in_one_text():
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"\xff\xfe", b"\x00\x01\x02"]
    model = model_of(tokens, 1, 3)
    text = bytes(range(256))
    lm = CharLM(model.lm, preset=SAME_TAIL)
    score = lm.score(text)
    assert score.raw == text
    assert score.logprobs == approx(np.diff(bigram_truth(model, text)), abs=1e-6)
    nxt = lm.next(text)
    assert nxt.probs.sum() == approx(1, rel=1e-12)
    assert (nxt.probs > 0).all()


def test_an_implied_leading_space_is_conditioned_on():
    """Tokenizers of Llama 2's kind begin every text with a space of their own."""
    tokens = [b" ", b"a", b" a", b"b", b"ab", b" ab"]
    row = [0.1, 0.1, 0.3, 0.1, 0.1, 0.2, 0.1]
    plain = table(tokens, {(): row})
    vocabulary = Vocabulary([*tokens, None], end_ids=[6], bos_ids=[6], implied_prefix=b" ")
    lm = CharLM(NgramLM(vocabulary, 1, {(): row}), preset="exact")

    def p(text: bytes) -> float:
        return plain.prefix(text)

    given_lead = math.log(p(b" ab") / p(b" "))
    assert lm.prefix_logprob("ab") == approx(given_lead, rel=1e-12)
    assert lm.state("ab").logprob == approx(given_lead, rel=1e-12)
    assert (lm.state("a") + "b").logprob == approx(given_lead, rel=1e-12)
    assert (lm.state("") + "ab").logprob == approx(given_lead, rel=1e-12)
    assert lm.state("").logprob == approx(0, abs=1e-12)
    assert lm.state("ab").raw == b"ab"
    assert lm.state("ab").exact_from == 0
    truth = plain.next(b" ab")
    for state in (lm.state("ab"), lm.state("a") + "b", lm.state("abb") - 1):
        assert state.next().probs == approx(truth, rel=1e-12)
        assert state.raw == b"ab"
    whole = plain.string(b" ab") / p(b" ")
    assert lm.logprob("ab") == approx(math.log(whole), rel=1e-12)
    member = lm.complete("ab", max_new_bytes=0)[0]
    assert member.token_ids == [5]
    assert member.logprob == approx(math.log(0.2 / p(b" ab")), rel=1e-12)
    # Conditioned on more than the start token, nothing is implied.
    assert lm.prefix_logprob([6, 6, "ab"]) == approx(math.log(p(b"ab")), rel=1e-12)


# ---- the embedded model and a trained one -------------------------------------------------------


@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_presets_on_a_trained_model(lm: CharLM, preset: str):
    """Each preset's own bound on the error of the next byte, against best first."""
    worst = {"fast": 0.15, "default": 0.03, "accurate": 0.01}[preset]
    prompts = ("import numpy", "def __init__", "raise ValueE", "    return s", "for i in ra")
    for text in (*prompts, "self.ass"):
        covering = lm.covering(text, tolerance=1e-6)
        masses, _ = covering.next_byte_masses()
        truth = masses / masses.sum()
        result = lm.next(text, preset=preset).probs
        assert np.abs(result - truth).sum() / 2 <= worst


# ---- plain and healed texts drawn token by token: those of transformers' own `generate` ---------

PROMPTS = ["raise ValueErr", "import nump", "for i in rang", "x = 'na\u00ef", "def f(s", "x = 1\n"]


@pytest.mark.parametrize("rule", ["auto", "off", 2])
def test_greedy_texts_are_those_of_generate(lm: CharLM, rule: charwise.healing.Rule) -> None:
    options = GenerationOptions(max_new_bytes=24)
    for prompt in PROMPTS:
        ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt.encode())]
        expected = heal_generate(
            lm.engine.model, lm.index, [ids], rule=rule, max_new_bytes=24, do_sample=False
        )
        assert complete_by_tokens(lm, prompt.encode(), rule, options) == expected


def test_draws_have_the_probabilities_of_the_model_and_end_at_a_stop() -> None:
    model = table([b"a", b"b"], {(): [0.5, 0.3, 0.2]})
    options = GenerationOptions(n=4000, temperature=1.0, max_new_bytes=1, seed=1)
    texts = complete_by_tokens(CharLM(model.lm), b"a", "off", options)
    shares = np.array([texts.count(text) / 4000 for text in ("a", "b", "")])
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    stopped = GenerationOptions(n=200, temperature=1.0, max_new_bytes=9, seed=1, stop="b")
    assert not any(
        "b" in text for text in METHODS["healed"](CharLM(model.lm), b"a", "off", stopped)
    )
