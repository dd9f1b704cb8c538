"""`CharLM` against the oracle, and in cases in which published implementations were seen to fail.

Untrained Llama and GPT-2 models, with tokenizers trained on this very file, so that no data is
needed; random tables; and the embedded model.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import charwise
from charwise import CharLM, Effort, Vocabulary
from charwise.cursor.options import GenerationOptions
from charwise.engines.ngram import NgramLM
from charwise.engines.transformers import TransformersLM
from charwise.errors import SettingError, VocabularyError, ZeroProbabilityError
from charwise.healing.generate import heal_generate
from charwise.side_by_side import METHODS, complete_by_tokens
from charwise.tokens import utf8
from charwise.tokens.utf8 import pending
from models import CLOSE, Case, cases, examples, log_of, model_of, random_lm, table, two_ways
from tiny import random_model, trained_tokenizer

approx = pytest.approx

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
    sums = [log_of(model.prefix(text[:at])) for at in range(len(text) + 1)]
    if sums[-1] == -math.inf:
        for ask in (lm.prefix_logprob, lm.logprob, lm.next, lm.state, lm.score):
            with pytest.raises((ZeroProbabilityError, VocabularyError)):
                ask(text)
        return
    assert lm.prefix_logprob(text) == approx(sums[-1], abs=1e-9)
    whole = log_of(model.string(text))
    assert lm.logprob(text) == approx(whole, abs=1e-9)
    assert lm.state(text).logprob == approx(sums[-1], abs=1e-9)

    nxt = lm.next(text)
    assert nxt.probs == approx(model.next(text), **CLOSE)
    assert nxt.probs.sum() == approx(1, rel=1e-12)
    assert nxt.eos == nxt[256] == nxt["<eos>"] == nxt.probs[256]
    assert nxt.error == 0

    score = lm.score(text, end=True)
    assert score.raw == text
    assert score.logprobs == approx(np.diff(sums), rel=1e-9, abs=1e-9)
    assert not score.error.any()
    bits = -sums[-1] / math.log(2) / max(1, len(text))
    assert score.bits_per_byte == approx(bits, rel=1e-9, abs=1e-9)
    assert score.logprobs.sum() + score.end_logprob == approx(whole, abs=1e-9)  # the chain rule


@given(cases(longest=5, largest=100, possible=True), st.floats(0.05, 1))
@examples(150)
def test_next_chars_are_marginals_and_stop_at_the_coverage(case: Case, coverage: float):
    """p(character) is the product of its bytes' probabilities; what is no character is missing."""
    model, text = case.model, case.text
    total, state = model.prefix(text), model.exact().state(text)
    result = state.next_chars(1.0)
    assert result.eos == approx(model.next(text)[256], **CLOSE)
    start = pending(text)
    before = text[: len(text) - len(start)]
    for character, probability in result.items():
        assert character.encode().startswith(start)
        assert probability == approx(model.prefix(before + character.encode()) / total, **CLOSE)
    for character in (*(chr(c) for c in range(128)), "é", "À", "ã"):
        longer = before + character.encode()
        if longer.startswith(text) and character not in result:
            assert model.prefix(longer) / total < 1e-15  # float64 cannot tell it from the whole
    assert sum(result.values()) + result.eos + result.missing == approx(1, abs=1e-9)
    assert list(result.values()) == sorted(result.values(), reverse=True)
    some = state.next_chars(coverage)
    held = some.eos + sum(some.values())
    assert held + some.missing == approx(1, abs=1e-9)
    # Where bytes that are no character hold more than is to be left out, as much again may be.
    assert held >= min(coverage, coverage - result.missing) - 1e-9
    assert held >= coverage - 1e-9 or result.missing > 1 - coverage - 1e-9
    assert all(result[character] == approx(p, **CLOSE) for character, p in some.items())
    assert list(some) == list(result)[: len(some)]


def test_next_characters_have_at_most_64_beginnings():
    result = charwise.load(preset="fast").next_chars("# 这是一个测试，我们", coverage=1.0)
    beginnings = {character.encode()[:n] for character in result for n in (1, 2, 3)}
    assert 32 < len({b for b in beginnings if utf8.bytes_missing(b) > 0}) <= 64


@pytest.mark.slow
@pytest.mark.parametrize(("order", "off"), [(1, 1e-9), (2, 0.005)])
def test_windows_change_little_of_a_model_that_forgets(order: int, off: float):
    """In models of order 2, contexts with the same last token are recombined without an error."""
    model = model_of([b"a", b"b", b"c", b"ab", b"bc", b"cab", b"aa"], order, 5)
    ids = np.random.default_rng(0).choice(model.index.ids, size=600).tolist()
    text = model.vocabulary.decode(ids)[:600]
    assert len(model.vocabulary.encode(text)) > 300
    whole, lm = CharLM(model.lm).score(text, preset=Effort(6)), CharLM(model.windowed(100).lm)
    score = lm.score(text, preset=Effort(6))
    assert np.abs(score.logprobs - whole.logprobs).mean() < off
    for preset in ("fast", "default"):
        score = lm.score(text, preset=preset)
        assert (score.logprobs <= 0).all()
        assert score.bits_per_byte == approx(whole.bits_per_byte, rel=0.05)
    ended = lm.logprob(text, preset=Effort(6)) - lm.prefix_logprob(text, preset=Effort(6))
    assert lm.next(text, preset=Effort(6)).eos == approx(math.exp(ended), rel=0.02)


def test_all_256_bytes_in_one_text():
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"\xff\xfe", b"\x00\x01\x02"]
    model, text = model_of(tokens, 1, 3), bytes(range(256))
    lm = CharLM(model.lm)
    score = lm.score(text)
    assert score.raw == text
    for at in (1, 3, 98, 99):
        assert score.logprobs[:at].sum() == approx(math.log(model.prefix(text[:at])), abs=1e-6)
    rest = [math.log(model.prefix(text[at : at + 1])) for at in range(99, 256)]
    assert score.logprobs[99:] == approx(rest, abs=1e-6)  # each of them is a token
    assert lm.next(text).probs.sum() == approx(1, rel=1e-12)
    assert (lm.next(text).probs > 0).all()


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


def test_an_implied_leading_space_is_conditioned_on():
    """Tokenizers of Llama 2's kind begin every text with a space of their own."""
    tokens = [b" ", b"a", b" a", b"b", b"ab", b" ab"]
    row = [0.1, 0.1, 0.3, 0.1, 0.1, 0.2, 0.1]
    plain = table(tokens, {(): row})
    vocabulary = Vocabulary([*tokens, None], end_ids=[6], bos_ids=[6], implied_prefix=b" ")
    lm = CharLM(NgramLM(vocabulary, 1, {(): row}), preset="exact")

    def p(text: bytes) -> float:
        return plain.prefix(text)

    after_space = math.log(p(b" ab") / p(b" "))
    assert lm.prefix_logprob("ab") == approx(after_space, rel=1e-12)
    assert lm.state("").logprob == approx(0, abs=1e-12)
    assert lm.state("ab").exact_from == 0
    truth = plain.next(b" ab")
    states = (lm.state("ab"), lm.state("a") + "b", lm.state("") + "ab", lm.state("abb") - 1)
    for state in states:
        assert state.logprob == approx(after_space, rel=1e-12)
        assert state.next().probs == approx(truth, rel=1e-12)
        assert state.raw == b"ab"
    whole = plain.string(b" ab") / p(b" ")
    assert lm.logprob("ab") == approx(math.log(whole), rel=1e-12)
    member = lm.complete("ab", max_new_bytes=0)[0]
    assert member.token_ids == [5]
    assert member.logprob == approx(math.log(0.2 / p(b" ab")), rel=1e-12)
    # Conditioned on more than the start token, nothing is implied.
    assert lm.prefix_logprob([6, 6, "ab"]) == approx(math.log(p(b"ab")), rel=1e-12)


# ---- a trained model, and texts drawn token by token --------------------------------------------


@pytest.mark.parametrize("preset", ["fast", "default", "accurate"])
def test_presets_on_a_trained_model(lm: CharLM, preset: str):
    """Each preset's own bound on the error of the next byte, against best first."""
    worst = {"fast": 0.15, "default": 0.03, "accurate": 0.01}[preset]
    for text in ("import numpy", "def __init__", "raise ValueE", "    return s", "for i in ra"):
        masses, _ = lm.covering(text, tolerance=1e-6).next_byte_masses()
        truth = masses / masses.sum()
        result = lm.next(text, preset=preset).probs
        assert np.abs(result - truth).sum() / 2 <= worst


PROMPTS = ["raise ValueErr", "import nump", "for i in rang", "x = 'na\u00ef", "def f(s", "x = 1\n"]


@pytest.mark.parametrize("rule", ["auto", "off", 2])
def test_greedy_texts_are_those_that_transformers_generates(
    lm: CharLM, rule: charwise.healing.Rule
) -> None:
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


# ---- untrained models, and odd cases ------------------------------------------------------------

TEXT = Path(__file__).read_text(encoding="utf-8")
KINDS = ("llama", "gpt2")

#: Columns of the output layer beyond the tokenizer.
WIDER = 13


@cache
def tokenizer(start_token: bool) -> PreTrainedTokenizerFast:
    return trained_tokenizer(TEXT, 500, "<|endoftext|>", start_token)


def small(kind: str, start_token: bool = True, head: float = 1.0) -> CharLM:
    """An untrained model; `head` multiplies its output layer."""
    tokens = tokenizer(start_token)
    width = len(tokens) + WIDER
    shared = {"bos_token_id": None, "eos_token_id": 0, "tie_word_embeddings": False}
    model = random_model(kind, width, window=256, **shared)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(head)
    return CharLM(TransformersLM(model, Vocabulary.from_transformers(tokens, width)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_without_a_start_token(kind: str):
    lm = small(kind, start_token=False)
    assert lm.vocabulary.bos_ids == (0,), "the end of text stands in"
    assert "end" in lm.vocabulary.bos_rule
    for prompt in ("", "de", "def test_pro", [0, "de"]):
        nxt, score = lm.next(prompt), lm.score(prompt, end=True)
        assert nxt.probs.sum() == approx(1)
        assert (lm.next(prompt).probs == nxt.probs).all()
        assert np.isfinite([*score.logprobs, score.end_logprob]).all()
        assert (lm.score(prompt, end=True).logprobs == score.logprobs).all()
        [one] = lm.complete(prompt, max_new_bytes=8)
        assert lm.complete(prompt, max_new_bytes=8) == [one]
        assert math.isfinite(one.logprob)
    assert lm.next("").probs == approx(lm.next([0]).probs)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_layer_wider_than_the_tokenizer(kind: str):
    lm = small(kind)
    width = lm.vocabulary.width
    assert width == len(tokenizer(True)) + WIDER
    logs = lm.engine.tree(lm.vocabulary.bos_ids).logprobs([0])[0]
    assert logs[-WIDER:].exp().sum() == 0
    assert float(logs.double().exp().sum()) == approx(1, abs=1e-5)
    # Without the columns that spell nothing, the probabilities of what is spelled sum to one.
    nxt = lm.next("def test_pro")
    assert nxt.probs.sum() == approx(1)
    result = lm.complete("de", n=20, temperature=5.0, seed=0, max_new_bytes=20)
    assert len(result) > 1
    assert max(max(completion.token_ids) for completion in result) < width - WIDER


@pytest.mark.parametrize("kind", KINDS)
def test_a_very_peaked_model(kind: str):
    """Logits thousands apart: what is not certain is below the least float, and said to be."""
    lm = small(kind, head=1e3)
    assert lm.next("").entropy >= 0
    [likely] = lm.complete("", max_new_bytes=12)
    assert math.isfinite(likely.logprob)
    for text in ("", likely.raw, "def", "zzzzzz", "x = 1\n", "\x00"):
        try:
            assert np.isfinite(lm.score(text).logprobs).all()
            assert lm.next(text).probs.sum() == approx(1)
        except ZeroProbabilityError:
            assert text not in ("", likely.raw)
    for temperature in (1e-6, 1.0, 1e6):
        result = lm.complete("", n=3, temperature=temperature, seed=0, max_new_bytes=6)
        assert not any(math.isnan(c.logprob) for c in result)


def test_a_state_takes_the_lighter_way_if_only_that_goes_on():
    lighter = CharLM(table([b"ab", b"a"], {(): [0.6, 0.3, 0.1]}).lm, preset=Effort(1))
    state = lighter.state("") + "a" + "a"
    assert state.logprob == approx(math.log(0.3 * 0.9))
    assert state.next().probs[[ord("a"), ord("b"), 256]] == approx([0.3, 2 / 3, 0.1 / 3])


@pytest.mark.parametrize("effort", [Effort(1), Effort(2)])
def test_a_threshold_above_every_alternative(effort: Effort):
    """Three twins, none of which reaches the threshold: the better part is evaluated anyway."""
    vocabulary = Vocabulary.from_bytes([b"x", b"x", b"x", b"y", None], end_ids=[4], bos_ids=[4])
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.3, 0.3, 0.3, 0.05, 0.05]}), preset=effort)
    for state in (lm.state("x"), lm.state("") + "x", lm.state("xx"), lm.state("x") + "x"):
        assert state.next()["x"] == approx(0.9)
        assert state.error < 1
    assert np.isfinite(lm.score("xxyx").logprobs).all()


def test_the_least_probabilities():
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"bc", None], end_ids=[3], bos_ids=[3])
    lm = CharLM(NgramLM(vocabulary, 1, {(): [0.5, 1e-312, 1e-312, 0.5]}))
    assert lm.prefix_logprob("b") == approx(math.log(2) + math.log(1e-312))
    assert lm.prefix_logprob("bb") == approx(math.log(2) + 2 * math.log(1e-312))
    for state in (lm.state("b"), lm.state("") + "b"):
        assert state.next()["c"] == approx(0.5)
    assert lm.complete("b", max_new_bytes=1)[0].raw in (b"", b"a", b"c")
    assert lm.score("bb", entropy="byte").entropies == approx([1.0, 1.5])


def test_an_interrupted_evaluation_leaves_no_trace(monkeypatch: pytest.MonkeyPatch):
    tokens = [b"a", b"b", b"c", b"z", b"ab", b"ca", None]
    vocabulary = Vocabulary.from_bytes(tokens, end_ids=[6], bos_ids=[6])
    lm = CharLM(random_lm(vocabulary, 3, 5))
    expected = (lm.state("ab") + "cabca").next().probs
    state = lm.state("ab")
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(type(state.shared.tree), "extend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            state + "cabca"
    state + "zzzzz"
    assert (state + "cabca").next().probs == approx(expected)
