"""`heal_generate` and `heal_infill`: every decoding mode, against naive loops, on small models."""

import gc
import math
import warnings
import weakref
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
    TopPLogitsWarper,
)

import tiny
from charwise import SortedVocabulary, heal_generate, heal_infill
from charwise.errors import LimitError, VocabularyError
from charwise.healing import HealedPrompt, cut, prompt_ids
from charwise.healing.continuation import Bounds
from charwise.healing.fim import Template, request
from charwise.healing.transformers import HealingLogitsProcessor, index_of
from charwise.models import EMBEDDED
from charwise.tokens.canonical import to_bytes
from charwise.tokens.sentinels import SPELLINGS
from conftest import Data
from masked import greedy_text
from tiny import model_with

TEXT = Path(__file__).read_text(encoding="utf-8")
PROMPTS = ["def test_pro", "import tor", "    return mod", "x = {'ke", "naï".encode()[:-1], "日本"]
STOPS = ["mod", "e"]  # which are in forced texts: there they stop nothing
WIDER = 13  # columns of the output layer beyond the tokenizer
GREEDY: dict[str, Any] = {"do_sample": False}


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
        length = max(len(kept) for kept, _ in cuts)
        padding = [length - len(kept) for kept, _ in cuts]
        ids = [[0] * n + kept for n, (kept, _) in zip(padding, cuts, strict=True)]
        healing = HealingLogitsProcessor(self.index, [forced for _, forced in cuts], length)
        out = self.model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor([[0] * n + [1] * (length - n) for n in padding]),
            logits_processor=LogitsProcessorList([healing]),
            pad_token_id=0,
            **kwargs,
        )
        return out[:, length:].tolist()


def random_model(kind: str, width: int, **settings: Any) -> Any:
    return tiny.random_model(kind, width, bos_token_id=0, eos_token_id=0, **settings).double()


@cache
def trained(kind: str) -> Small:
    if kind == "embedded":
        model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
        return Small(model.eval(), AutoTokenizer.from_pretrained(EMBEDDED))
    tokenizer = tiny.trained_tokenizer(TEXT, 700, "<end>")
    return Small(random_model(kind, len(tokenizer) + WIDER), tokenizer)


@pytest.fixture(params=["llama", "gpt2", pytest.param("embedded", marks=pytest.mark.slow)])
def small(request: pytest.FixtureRequest) -> Small:
    return trained(request.param)


@pytest.fixture
def llama() -> Small:
    return trained("llama")


MODES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
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
        kept, _ = small.cut(prompt)
        start = vocabulary.implied_prefix + to_bytes(prompt)
        assert vocabulary.decode([*kept, *ids]).startswith(start)


@pytest.mark.parametrize("mode", ["assisted", "assisted sampling", "lookup"])
@pytest.mark.parametrize("rule", ["auto", 3])
def test_drafts_change_nothing(small: Small, mode: str, rule: Any) -> None:
    """Those that leave the forced text are tolerated."""
    width = small.model.config.vocab_size
    draft = random_model("llama", width, seed=5, size=8).to(small.model.dtype)
    how: dict[str, Any] = {"assistant_model": draft, "do_sample": mode == "assisted sampling"}
    if mode == "lookup":
        how = {"prompt_lookup_num_tokens": 3, "do_sample": False}
    for prompt in (PROMPTS[0], "ab ab ab ab a", "return ret"):
        [ids] = small.generate([prompt], rule, max_new_tokens=10, **how)
        kept, _ = small.cut(prompt, rule)
        assert small.index.vocabulary.decode([*kept, *ids]).startswith(prompt.encode())
        if not how["do_sample"]:
            assert [ids] == small.generate([prompt], rule, max_new_tokens=10, **GREEDY)


# ---- heal_generate ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "limits", "bounds"),
    [
        *((rule, {"max_new_tokens": 6}, Bounds(max_tokens=6)) for rule in ("auto", "off", 4, 99)),
        ("word", {"max_new_tokens": 1}, Bounds(max_tokens=1)),
        (1, {"max_new_bytes": 5}, Bounds(max_bytes=5)),
        (
            "word",
            {"stop_strings": ["mod", "e"], "max_new_bytes": 9},
            Bounds(["mod", "e"], max_bytes=9),
        ),
    ],
)
def test_greedy_texts_equal_the_naive_loop(
    small: Small, rule: Any, limits: dict[str, Any], bounds: Bounds
) -> None:
    """In a batch as one by one."""
    texts = [greedy_text(small.model, small.index, one, bounds, 8, rule) for one in PROMPTS]
    assert small.heal(PROMPTS, rule=rule, **limits, **GREEDY) == texts
    alone = [small.heal(prompt, rule=rule, **limits, **GREEDY) for prompt in PROMPTS]
    assert alone == [[text] for text in texts]


def test_a_generation_config_is_read_and_stays_as_it_is(llama: Small) -> None:
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    texts = llama.heal("import tor", generation_config=config)
    assert texts == llama.heal("import tor", max_new_tokens=4, **GREEDY)
    assert (config.max_new_tokens, config.eos_token_id) == (4, None)


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
    assert llama.heal([]) == []
    assert len(llama.heal(PROMPTS[:2], num_return_sequences=3, do_sample=True)) == 6
    assert len(llama.heal("import tor", return_dict_in_generate=True, num_beams=2)) == 1


@pytest.mark.parametrize("prompt", ["", "a", " ", "\n\n    ", "naïve caf", "日本", "👩‍"])
@pytest.mark.parametrize("name", ["llama2", "qwen2", "llama3", "gpt2"])
def test_real_tokenizers(name: str, prompt: str, data: Data) -> None:
    """An implied leading space, no start token, an NFC normalizer, no padding token."""
    tokenizer = data.tokenizer(name)
    small = Small(wide_model(data.vocabulary(name).width, tokenizer.eos_token_id), tokenizer)
    prompts = [prompt, "e\u0301 deux"]
    bounds = Bounds(max_tokens=3)
    texts = [greedy_text(small.model, small.index, one, bounds, 3) for one in prompts]
    assert small.heal(prompts, max_new_tokens=3, **GREEDY) == texts


@cache
def wide_model(width: int, end: int) -> Any:
    model = random_model("llama", width, size=4)
    model.generation_config.eos_token_id = end
    return model


def test_the_index_is_made_once_and_goes_with_the_tokenizer(llama: Small) -> None:
    backend = llama.tokenizer.backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
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
    processors = [processor, warper, TopPLogitsWarper(0.1)]
    llama.heal("import tor", logits_processor=processors, max_new_tokens=2, do_sample=True)
    width = llama.model.config.vocab_size
    assert processor.finite[0] == width > warper.finite[0]
    with pytest.raises(VocabularyError, match="forbids them all"):
        llama.heal("import tor", suppress_tokens=list(range(width - 1)))


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
def test_a_text_ends_at_the_end_of_the_window(kind: str, limits: dict[str, Any]) -> None:
    """With learned positions the next one would be an error, with rotary ones nonsense."""
    small, seen = trained(kind), list[int]()
    handle = small.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(int(kwargs["position_ids"].max())), with_kwargs=True
    )
    vocabulary = small.index.vocabulary
    prompt = vocabulary.decode(vocabulary.encode(b"def test_pro" * 100)[:100])
    assert 95 < len(prompt_ids(prompt, vocabulary)) < 110 < 128
    settings = {"do_sample": False, "eos_token_id": None, **limits}
    try:
        [one] = small.heal(prompt, **settings)
        both = small.heal([prompt, "import tor"], **settings)
    finally:
        handle.remove()
    assert 110 < max(seen) < 128
    assert both[0] == one != ""
    assert both[1]


def test_a_prompt_that_fills_the_window_is_refused() -> None:
    small = trained("gpt2")
    ids = [0, *small.index.vocabulary.encode(b"x = 1\n" * 200)]
    [text] = small.heal(ids[:127], do_sample=False)
    assert len(text) <= max(map(len, small.index.sorted))
    for length in (128, 200):
        with pytest.raises(LimitError, match=f"{length} tokens.*window is 128"):
            small.heal(ids[:length], rule=5)


# ---- heal_infill --------------------------------------------------------------------------------

NAMES = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
PAIRS = [
    ("import nu", "py as np\n"),
    ("def area(radius):\n    ret", "rn radius\n"),
    ("x = ", "\n"),
    ("", "self.value = value\n"),
    ("print('naï", "'')\n"),
    ("for i in rang", ""),
]


@cache
def infilling() -> tuple[Small, Template]:
    """The embedded model with sentinels that it was not trained to use."""
    small = Small(*model_with(NAMES))
    return small, Template.named(small.index.vocabulary, *NAMES)


def infill(prefix: Any, suffix: Any, **options: Any) -> list[str]:
    small, template = infilling()
    options = {"template": template, "do_sample": False, **options}
    return heal_infill(small.model, small.tokenizer, prefix, suffix, **options)


def generated(
    prefix: str, suffix: str, bias: float, **options: Any
) -> tuple[HealedPrompt, list[int], str]:
    """A request, the ids that `generate` wrote for it, and the middle that is read off them.

    Args:
        bias: of the end token.
    """
    small, template = infilling()
    rows: list[list[int]] = []

    def likelier(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, list(small.index.vocabulary.end_ids)] += bias
        return scores

    def note(input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        rows[:] = input_ids.tolist()
        return torch.zeros(1, dtype=torch.bool)

    hooks = {"logits_processor": [likelier], "stopping_criteria": [note]}
    [text] = infill(prefix, suffix, **hooks, **options)
    healed = request(prefix, suffix, template, small.index, order=options.get("order"))
    return healed, rows[0][len(healed.kept) :], text


@pytest.mark.parametrize("order", ["psm", "spm"])
@pytest.mark.parametrize(("prefix", "suffix"), PAIRS)
def test_a_middle_begins_and_ends_with_what_both_sides_gave_up(
    prefix: str, suffix: str, order: str
) -> None:
    """With the end token made likely, so that every middle ends."""
    vocabulary = infilling()[0].index.vocabulary
    for more in (6.0, 30.0):
        healed, ids, text = generated(prefix, suffix, more, order=order, max_new_tokens=24)
        at = next((n for n, id in enumerate(ids) if id in vocabulary.end_ids), None)
        output = vocabulary.decode(ids[:at])
        assert output.startswith(healed.forced)
        if at is not None:
            new = output[len(healed.forced) :]
            assert new.endswith(healed.ending)
            assert text == new[: len(new) - len(healed.ending)].decode("utf-8", "replace")
        if more == 30.0:  # it would end at once: what is missing is all that it writes
            assert at is not None
            most = len(healed.forced) + len(healed.ending) + vocabulary.max_token_bytes
            assert len(output) <= most


@pytest.mark.parametrize(
    ("prefix", "suffix"), [("for i in range(3):\n    print(i)\n", "\n"), ("x = [0, 0, 0, ", ", 0]")]
)
def test_a_middle_that_does_not_end_is_cut_where_its_end_is_likeliest(
    prefix: str, suffix: str
) -> None:
    small, _ = infilling()
    healed, ids, text = generated(prefix, suffix, -1e9, max_new_tokens=32)
    new = small.index.vocabulary.decode(ids)[len(healed.forced) :]
    places, size = [], -len(healed.forced)
    for n, id in enumerate(ids):
        size += small.index.length(id)
        if new[: max(size, 0)].endswith(healed.ending):
            places.append((n, size))
    assert len(places) > 1
    with torch.no_grad():
        logits = small.model(torch.tensor([[*healed.kept, *ids]])).logits[0].log_softmax(-1)
    ends = list(small.index.vocabulary.end_ids)
    best = max(places, key=lambda place: float(logits[len(healed.kept) + place[0], ends].sum()))
    assert text.encode() == new[: best[1] - len(healed.ending)]


def test_rows_of_a_batch_are_what_they_are_alone() -> None:
    prefixes, suffix = [prefix for prefix, _ in PAIRS[:3]], PAIRS[0][1]
    together = infill(prefixes, suffix, max_new_tokens=8)
    assert together == infill(prefixes, [suffix] * 3, max_new_tokens=8)
    for prefix, text in zip(prefixes, together, strict=True):
        [alone] = infill(prefix, suffix, max_new_tokens=8)
        # Padding changes the sums of floats, and rows of a batch go on for as long as its longest.
        assert text[:4] == alone[:4]
    assert infill([], []) == infill([], "") == []


@pytest.mark.parametrize(
    ("order", "prefix", "suffix", "says"),
    [
        ("psm", "for i in ra", "\n    print(i)\n" + "x = 1\n" * 2000,
         r": 0 bytes at the start .* and [1-9]\d+ at the end"),
        ("spm", "x = 1\n" * 2000 + "for i in ra", "\n    print(i)\n",
         r": [1-9]\d+ bytes at the start .* and 0 at the end"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_cut_at_the_far_end_and_a_warning_says_so(
    order: Any, prefix: str, suffix: str, says: str
) -> None:
    with pytest.warns(UserWarning, match=says):
        [text] = infill(prefix, suffix, order=order, max_new_tokens=2)
    assert text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infill("import nu", "y\n", order=order, max_new_tokens=2)


@pytest.mark.parametrize("name", ["<|file_sep|>", "<|im_end|>"])
def test_a_text_ends_where_another_file_begins(name: str) -> None:
    """Of a model that writes this, and would write anything after it."""
    small = Small(*model_with(tuple(dict.fromkeys(SPELLINGS[1].control)), False))
    separator = small.tokenizer.convert_tokens_to_ids(name)
    lengths: list[int] = []

    def ends_soon(input_ids: Any, scores: Any) -> Any:
        lengths.append(input_ids.shape[1])
        scores = scores.clone()
        scores[:, list(small.index.vocabulary.special)] = -math.inf
        if len(lengths) > 3:
            scores[:, separator] = 1e4
        return scores

    options: Any = {"max_new_tokens": 12, "do_sample": False, "logits_processor": [ends_soon]}
    for heal, sides in ((heal_generate, ["import nump"]), (heal_infill, ["x = 1", "\n"])):
        lengths.clear()
        [text] = heal(small.model, small.tokenizer, *sides, **options)
        assert len(lengths) < 12
        assert text
        assert "|" not in text
