"""Healing inside transformers: every decoding mode, against a naive loop, on real small models."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    TopPLogitsWarper,
)

import tiny
from charwise import SortedVocabulary, Vocabulary, heal_generate
from charwise.errors import LimitError, SettingError, VocabularyError
from charwise.healing import cut, prompt_ids
from charwise.healing.transformers import HealingLogitsProcessor, index_of
from charwise.models import EMBEDDED
from charwise.tokens.canonical import to_bytes
from conftest import Data
from tiny import trained_tokenizer

TEXT = Path(__file__).read_text(encoding="utf-8")
PROMPTS = ["def test_pro", "import tor", "    return mod", "x = {'ke", "naï".encode()[:-1], "日本"]
WIDER = 13  # columns of the output layer beyond the tokenizer


@dataclass(frozen=True)
class Small:
    """A model with its tokenizer and index."""

    model: Any
    tokenizer: Any

    @property
    def index(self) -> SortedVocabulary:
        return index_of(self.tokenizer, self.model)

    def cut(self, prompt: str | bytes, rule: Any = "auto") -> tuple[list[int], bytes]:
        return cut(prompt, self.index, rule)

    def heal(self, prompts: Any, **kwargs: Any) -> Any:
        """`heal_generate` with this model."""
        return heal_generate(self.model, self.tokenizer, prompts, **kwargs)

    def generate(
        self, prompts: Sequence[str | bytes], rule: Any = "auto", **kwargs: Any
    ) -> list[list[int]]:
        """Ids after the kept ones, from the model's own `generate` with the processor."""
        cuts = [self.cut(prompt, rule) for prompt in prompts]
        length = max(len(kept_ids) for kept_ids, _ in cuts)
        ids = torch.tensor([[0] * (length - len(kept_ids)) + kept_ids for kept_ids, _ in cuts])
        seen = torch.tensor(
            [[0] * (length - len(kept_ids)) + [1] * len(kept_ids) for kept_ids, _ in cuts]
        )
        healing = HealingLogitsProcessor(self.index, [forced for _, forced in cuts], length)
        out = self.model.generate(
            ids,
            attention_mask=seen,
            logits_processor=LogitsProcessorList([healing]),
            pad_token_id=0,
            **kwargs,
        )
        return out[:, length:].tolist()


@cache
def tokenizer_of(size: int = 700, end: str = "<end>") -> PreTrainedTokenizerFast:
    """Trained on this file."""
    return trained_tokenizer(TEXT, size, end)


def random_model(kind: str, width: int, **settings: Any) -> Any:
    return tiny.random_model(kind, width, bos_token_id=0, eos_token_id=0, **settings).double()


@cache
def trained(kind: str) -> Small:
    if kind == "embedded":
        model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
        return Small(model.eval(), AutoTokenizer.from_pretrained(EMBEDDED))
    tokenizer = tokenizer_of()
    return Small(random_model(kind, len(tokenizer) + WIDER), tokenizer)


@pytest.fixture(params=["llama", "gpt2", pytest.param("embedded", marks=pytest.mark.slow)])
def small(request: pytest.FixtureRequest) -> Small:
    return trained(request.param)


@pytest.fixture
def llama() -> Small:
    return trained("llama")


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0},
    "hot, truncated": {"do_sample": True, "temperature": 3.0, "top_k": 3, "top_p": 0.5},
    "beams": {"num_beams": 3, "do_sample": False},
    "all beams": {"num_beams": 3, "num_return_sequences": 3, "do_sample": False},
    "sampled beams": {"num_beams": 3, "num_return_sequences": 2, "do_sample": True},
    "returns": {"num_return_sequences": 3, "do_sample": True},
    "static cache": {"cache_implementation": "static", "do_sample": False},
    "no cache": {"use_cache": False, "do_sample": False},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_starts_with_the_exact_prompt(small: Small, mode: str) -> None:
    """A left-padded batch with a different forced text in each row."""
    vocabulary = small.index.vocabulary
    torch.manual_seed(1)
    rows = small.generate(PROMPTS, max_new_tokens=12, min_new_tokens=8, **MODES[mode])
    copies = len(rows) // len(PROMPTS)
    for row, ids in enumerate(rows):
        prompt = PROMPTS[row // copies]
        kept_ids, _ = small.cut(prompt)
        assert vocabulary.decode([*kept_ids, *ids]).startswith(
            vocabulary.implied_prefix + to_bytes(prompt)
        )


@pytest.mark.parametrize("mode", ["assisted", "assisted sampling", "lookup"])
@pytest.mark.parametrize("rule", ["auto", 3])
def test_drafts(small: Small, mode: str, rule: Any) -> None:
    """Drafts that leave the forced text are tolerated, and change nothing under greedy."""
    width = small.model.config.vocab_size
    draft = random_model("llama", width, seed=5, size=8).to(small.model.dtype)
    how: dict[str, Any] = {"assistant_model": draft, "do_sample": mode == "assisted sampling"}
    if mode == "lookup":
        how = {"prompt_lookup_num_tokens": 3, "do_sample": False}
    for prompt in (PROMPTS[0], "ab ab ab ab a", "return ret"):
        [ids] = small.generate([prompt], rule, max_new_tokens=10, **how)
        kept_ids, _ = small.cut(prompt, rule)
        assert small.index.vocabulary.decode([*kept_ids, *ids]).startswith(prompt.encode())
        if not how["do_sample"]:
            assert [ids] == small.generate([prompt], rule, max_new_tokens=10, do_sample=False)


def naive(small: Small, kept_ids: list[int], forced: bytes, steps: int) -> list[int]:
    """Greedy decoding with a scan over the whole vocabulary at each step."""
    tokens, out = small.index.vocabulary.tokens, list[int]()
    while len(out) < steps:
        with torch.no_grad():
            logits = small.model(torch.tensor([kept_ids + out])).logits[0, -1]
        rest = forced[sum(len(tokens[id] or b"") for id in out) :]
        if rest:
            logits[
                [
                    id
                    for id, token in enumerate(tokens)
                    if not token or not (token.startswith(rest) or rest.startswith(token))
                ]
            ] = -torch.inf
        out.append(int(logits.argmax()))
        if out[-1] in small.index.vocabulary.end_ids:
            break
    return out


@pytest.mark.parametrize("rule", ["auto", "word", "off", 1, 4, 99])
def test_equals_the_naive_loop(small: Small, rule: Any) -> None:
    for prompt in PROMPTS:
        kept_ids, forced = small.cut(prompt, rule)
        [ids] = small.generate([prompt], rule, max_new_tokens=8, do_sample=False)
        assert ids == naive(small, kept_ids, forced, 8)


@pytest.mark.parametrize("rule", ["auto", "word", 3])
def test_a_batch_equals_its_prompts_one_by_one(small: Small, rule: Any) -> None:
    settings: dict[str, Any] = {"rule": rule, "max_new_tokens": 6, "do_sample": False}
    together = small.heal(PROMPTS, **settings)
    alone = [small.heal(p, **settings) for p in PROMPTS]
    assert together == [text for [text] in alone]


# ---- the processor alone ------------------------------------------------------------------------


def letters(forced: list[bytes], prompt_length: int = 2) -> HealingLogitsProcessor:
    tokens = [b"a", b"b", b"ab", b"abc", None]
    vocabulary = Vocabulary.from_bytes(tokens, end_ids=[4], width=5)
    return HealingLogitsProcessor(SortedVocabulary(vocabulary), forced, prompt_length)


def test_finished_rows_keep_their_tensor_and_scores_may_be_narrower() -> None:
    done, process = torch.zeros(2, 5), letters([b"ab", b""])
    assert process(torch.tensor([[4, 4, 0, 1], [4, 4, 1, 1]]), done) is done
    assert process(torch.tensor([[4, 4, 3], [4, 4, 1]]), done) is done
    narrow = letters([b"ab"])(torch.tensor([[4, 4]]), torch.zeros(1, 4))
    assert narrow.isfinite().nonzero()[:, 1].tolist() == [0, 2, 3]  # no token is missing


def test_errors_say_what_is_wrong() -> None:
    ids = torch.full((3, 2), 4)
    with pytest.raises(VocabularyError, match=r"spells b'x'"):
        letters([b"x"])
    with pytest.raises(SettingError, match="3 rows of 2 ids, for 2 forced texts"):
        letters([b"a", b"b"])(ids, torch.zeros(3, 5))
    with pytest.raises(SettingError, match=r"1 ids, .* prompt_length of 2"):
        letters([b"a"])(ids[:1, :1], torch.zeros(1, 5))
    with pytest.raises(SettingError, match="0 forced texts"):
        letters([])
    with pytest.raises(SettingError, match="2 forced texts and 1 endings"):
        HealingLogitsProcessor(letters([b"a"]).mask.index, [b"a", b"a"], 2, [b"b"])


# ---- heal_generate ------------------------------------------------------------------------------


def test_what_is_given_back_does_not_eat_the_budget(llama: Small) -> None:
    """Every rule leaves the same number of tokens that go beyond the prompt."""
    vocabulary = llama.index.vocabulary
    for rule in ("auto", "word", 5, 99):
        kept_ids, forced = llama.cut("import tor", rule)
        ids = naive(llama, kept_ids, forced, 60)
        within = [n for n in range(61) if len(vocabulary.decode(ids[:n])) <= len(forced)]
        for budget in (1, 4):
            text = vocabulary.decode(ids[: max(within) + budget])[len(forced) :]
            [got] = llama.heal("import tor", rule=rule, max_new_tokens=budget, do_sample=False)
            assert text.decode("utf-8", "replace").startswith(got.rstrip("�"))
            assert len(text) - len(got.encode()) < 4


def test_bytes_and_stop_strings(small: Small) -> None:
    prompt, ask = "x = [a, b]\nfor i in rang", {"do_sample": False, "eos_token_id": None}
    [long] = small.heal(prompt, max_new_bytes=40, **ask)
    assert 30 < len(long.encode()) <= 40 + 3 * long.count("�")
    [short] = small.heal(prompt, max_new_bytes=5, **ask)
    assert long.startswith(short.rstrip("�"))
    stop = next(long[at : at + 2] for at in range(6, 40) if "�" not in long[at : at + 2])
    [stopped] = small.heal(prompt, stop_strings=[stop], max_new_bytes=40, **ask)
    # A character that the stop string cuts off is left out; before other bytes it is shown.
    assert stopped.rstrip("�") == long[: long.index(stop)].rstrip("�")
    # A stop string inside the forced text stops nothing.
    [text] = small.heal(prompt, rule="word", stop_strings="rang", max_new_tokens=4, **ask)
    assert text


def test_a_generation_config(small: Small) -> None:
    """Settings may come in the object that generate takes; it is not changed."""
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    [text] = small.heal("import tor", generation_config=config)
    arguments = {"max_new_tokens": 4, "do_sample": False}
    assert [text] == small.heal("import tor", **arguments)
    assert config.max_new_tokens == 4
    assert config.eos_token_id is None


def test_a_prompt_of_any_form_is_the_same_prompt(llama: Small) -> None:
    """Bytes in any wrapping are bytes, not the ids that their numbers would be."""
    ask: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5}
    expected, end = llama.heal("import tor", **ask), llama.tokenizer.eos_token_id
    for text in (b"import tor", bytearray(b"import tor"), memoryview(b"import tor")):
        for prompt in (text, [text], [[end, text]], [end, "import tor"], [[end, "import tor"]]):
            assert llama.heal(prompt, **ask) == expected
    ids = torch.tensor([[0, *llama.tokenizer("import tor").input_ids]] * 2)
    for prompt in (ids[0], ids[0].numpy()):
        assert llama.heal(prompt, **ask) == expected
    assert llama.heal(ids, **ask) == [*expected, *expected]
    assert len(llama.heal(["import tor", b"class Nod"], **ask)) == 2
    assert llama.heal([]) == []


def test_returns_are_flat(llama: Small) -> None:
    assert len(llama.heal(PROMPTS[:2], num_return_sequences=3, do_sample=True)) == 6
    assert len(llama.heal("import tor", return_dict_in_generate=True, num_beams=2)) == 1


def test_a_prompt_that_ends_inside_a_character() -> None:
    """The completion starts with that character, whole."""
    vocabulary = [b"\xc3\xa9", b"\xc3", b"e", b"x", None]
    index = SortedVocabulary(Vocabulary.from_bytes(vocabulary, end_ids=[4], bos_ids=[4]))
    model = random_model("llama", 5)
    [text] = heal_generate(model, index, b"x\xc3", max_new_tokens=2, suppress_tokens=[1])
    assert text[0] == "é"


@pytest.mark.parametrize("prompt", ["", "a", " ", "\n\n    ", "naïve caf", "日本", "👩‍"])
@pytest.mark.parametrize("name", ["llama2", "qwen2", "llama3", "gpt2"])
def test_real_tokenizers(name: str, prompt: str, data: Data) -> None:
    """An implied leading space, no start token, an NFC normalizer, no padding token."""
    tokenizer = data.tokenizer(name)
    width = data.vocabulary(name).width
    model = wide_model(width, tokenizer.eos_token_id)
    index = index_of(tokenizer, model)
    vocabulary = index.vocabulary
    kept_ids, forced = cut(prompt, index)
    texts = heal_generate(model, tokenizer, [prompt, "e\u0301 deux"], max_new_tokens=3)
    assert len(texts) == 2
    ids = naive(Small(model, tokenizer), kept_ids, forced, 3 + len(forced))
    text = vocabulary.decode(ids)
    assert text.startswith(forced)
    assert text[len(forced) :].decode("utf-8", "replace").startswith(texts[0].rstrip("�"))


@cache
def wide_model(width: int, end: int) -> Any:
    model = random_model("llama", width, size=4)
    model.generation_config.eos_token_id = end
    return model


def test_the_index_is_made_once_and_not_kept_alive() -> None:
    import weakref

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of().backend_tokenizer, eos_token="<end>"
    )
    index = weakref.ref(index_of(tokenizer))
    assert index() is index_of(tokenizer)
    assert index_of(index()) is index()
    tokenizer.add_tokens(["one more"])
    assert index() is not index_of(tokenizer)
    del tokenizer
    gc.collect()
    assert index() is None


class Record(LogitsProcessor):
    """Notes how many tokens were still possible when it ran."""

    def __init__(self) -> None:
        self.finite: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.finite.append(int((~scores.isneginf()).sum()))
        return scores


class RecordWarper(Record):
    pass


def test_the_mask_comes_after_processors_and_before_warpers(llama: Small) -> None:
    processor, warper = Record(), RecordWarper()
    llama.heal(
        "import tor",
        logits_processor=[processor, warper, TopPLogitsWarper(0.1)],
        max_new_tokens=2,
        do_sample=True,
    )
    assert processor.finite[0] == llama.model.config.vocab_size
    assert warper.finite[0] < llama.model.config.vocab_size


def test_forbidden_by_others(llama: Small) -> None:
    every_token = list(range(llama.model.config.vocab_size - 1))
    with pytest.raises(VocabularyError, match="forbids them all"):
        llama.heal("import tor", suppress_tokens=every_token)


def test_arguments_that_make_no_sense(llama: Small) -> None:
    for wrong in (
        {"token_healing": True},
        {"max_new_bytes": 0},
        {"max_new_tokens": 0},
        {"max_new_tokens": "5"},
        {"max_new_tokens": True},
        {"max_new_bytes": 2.5},
        {"max_length": "20"},
        {"stop_strings": [""]},
        {"stop_strings": ""},
        {"stop_strings": 5},
        {"stop_strings": [5]},
        {"rule": None},
        {"rule": "sometimes"},
        {"rule": -1},
        {"input_ids": torch.tensor([[1]])},
        {"inputs": torch.tensor([[1]])},
        {"inputs_embeds": torch.zeros(1, 1, 8)},
        {"attention_mask": torch.tensor([[1]])},
        {"position_ids": torch.tensor([[0]])},
    ):
        with pytest.raises(SettingError):
            llama.heal("a", **wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="str does not continue"):
        heal_generate("llama", llama.tokenizer, "a")
    for nothing in (None, 5, "llama", llama.index.vocabulary):
        with pytest.raises(VocabularyError, match="fast tokenizer"):
            heal_generate(llama.model, nothing, "a")
    config = T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(SettingError, match="encoder-decoder"):
        heal_generate(T5ForConditionalGeneration(config), llama.tokenizer, "a")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_new_tokens": 60},
        {"max_new_bytes": 200},
        {"max_length": 300},
        {"generation_config": GenerationConfig(max_new_tokens=60)},
        {"max_new_tokens": 60, "num_beams": 2},
    ],
)
def test_near_the_end_of_the_window_it_stops(kind: str, limits: dict[str, Any]) -> None:
    """With learned positions the next one would be an error, with rotary ones nonsense."""
    small, seen = trained(kind), list[int]()
    handle = small.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(int(kwargs["position_ids"].max())), with_kwargs=True
    )
    vocabulary = small.index.vocabulary
    long = b"def test_pro" * 100
    prompt = vocabulary.decode(vocabulary.encode(long)[:100])
    length = len(prompt_ids(prompt, vocabulary))
    assert 95 < length < 110 < 128
    settings = {"do_sample": False, "eos_token_id": None, **limits}
    try:
        one = small.heal(prompt, **settings)
        two = small.heal([prompt, "import tor"], **settings)
    finally:
        handle.remove()
    assert 110 < max(seen) < 128
    assert two[0] == one[0]
    assert one[0]
    assert two[1]


def test_a_prompt_that_fills_the_window_is_refused() -> None:
    small = trained("gpt2")
    vocabulary = small.index.vocabulary
    ids = [0, *vocabulary.encode(b"x = 1\n" * 200)]
    [text] = small.heal(ids[:127], do_sample=False)
    assert len(text) <= max(map(len, small.index.sorted))
    for length in (128, 129, 200):
        with pytest.raises(LimitError, match=f"{length} tokens.*window is 128"):
            small.heal(ids[:length], rule=5)
