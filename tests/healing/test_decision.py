"""The decision core, and the contract that it shares with every adapter."""

from __future__ import annotations

import gc
import random
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters import ADAPTERS, Served, bits, byte_level, embedded, reproduce, same
from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing import allowed_next
from charwise.healing.decision import Decisions, _TensorCache
from conftest import Data
from models import examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@cache
def letters() -> Served:
    """No byte is sure to have a token, and two tokens are twins in what follows them."""
    folder = tempfile.mkdtemp()
    tokenizer = byte_level([b"a", b"b", b"ab", b"abc", b"ca", b"cab"])
    tokenizer.save_pretrained(folder)
    return Served(tokenizer, folder)


# ---- the contract -------------------------------------------------------------------------------

tokens = st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=14, unique=True)
few_letters = st.lists(
    st.text("ab é", min_size=1, max_size=4).map(str.encode), min_size=1, max_size=14, unique=True
)


@st.composite
def served(draw: st.DrawFn) -> tuple[Served, bytes]:
    """A model with any vocabulary, and a text that its tokens begin to spell."""
    vocabulary = draw(st.one_of(tokens, few_letters))
    tokenizer = byte_level(vocabulary)
    folder = tempfile.mkdtemp()
    tokenizer.save_pretrained(folder)
    text = b"".join(draw(st.lists(st.sampled_from(vocabulary), max_size=4)))
    return Served(tokenizer, folder), text[: draw(st.integers(0, len(text)))]


@examples(60)
@given(served(), st.integers(0, 2**31))
def test_random_logits_reproduce_the_text_in_every_adapter(
    case: tuple[Served, bytes], seed: int
) -> None:
    """Each step equals the reference, and so all adapters write the same tokens."""
    model, forced = case
    texts = {name: reproduce(adapter, model, forced, seed) for name, adapter in ADAPTERS.items()}
    assert len(set(texts.values())) == 1
    assert texts["core"].startswith(forced)


@pytest.mark.parametrize("name", ADAPTERS)
def test_real_vocabularies_too(name: str) -> None:
    model, text = embedded(), b"    raise ValueErr"
    for start in (0, 1, 4, 10, 15):
        assert reproduce(ADAPTERS[name], model, text[start:], seed=start).startswith(text[start:])


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float_type_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    """Also infinities and not-a-numbers: an allowed logit is untouched, any other is −inf."""
    for model, forced in ((letters(), b"abca"), (embedded(), b" "), (embedded(), b" Val")):
        logits = torch.randn(model.vocabulary.width).to(dtype)
        logits[::7] = torch.nan
        logits[1::7] = torch.inf
        logits[2::7] = -torch.inf
        logits[3::7] = -0.0
        same(ADAPTERS[name], model, forced, [], logits)


@pytest.mark.parametrize("name", ADAPTERS)
def test_calls_in_any_order_give_the_answer_of_their_ids(name: str) -> None:
    """Repeated for a chunked prompt, replayed after a preemption, asked about rejected drafts."""
    model, forced = letters(), b"abcab"
    ways = [[], [0], [0, 1], [3], [3, 2], [2], [2, 4], [2, 5], [3, 0], [3, 0, 1]]
    drafts = [[1], [0, 0], [5], [6], [0, 6], [3, 1, 1]]  # 6 is the end token
    logits = torch.randn(model.vocabulary.width)
    rng = random.Random(3)
    for generated in rng.choices([*ways, *drafts], k=60):
        row = same(ADAPTERS[name], model, forced, generated, logits)
        if generated in drafts:
            assert torch.equal(row, logits)


@pytest.mark.parametrize("name", ADAPTERS)
def test_columns_beyond_the_vocabulary_are_never_allowed(name: str) -> None:
    for model in (letters(), embedded()):
        logits = torch.randn(model.vocabulary.width + 40)
        row = same(ADAPTERS[name], model, b"a", [], logits)
        assert row[model.vocabulary.width :].isneginf().all()


# ---- the core -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2", "llama2", "llama3"])
def test_wide_and_narrow_rows_of_real_vocabularies(data: Data, name: str) -> None:
    index = data.index(name)
    decisions = Decisions(index)
    for forced in (b" ", b"a", b"\n", b"\xe4", b" the", b"    return self.", b"\xff"):
        for dtype in DTYPES[:2]:
            row = torch.randn(index.vocabulary.width).to(dtype)
            expected = torch.full_like(row, -torch.inf)
            ids = torch.tensor(allowed_next(forced, index))
            expected[ids] = row[ids]
            out = torch.empty_like(row)
            before = row.clone()
            assert decisions.mask_(row, forced, [], out=out)
            assert torch.equal(row, before)
            assert decisions.mask_(row, forced, [])
            assert torch.equal(bits(row), bits(expected))
            assert torch.equal(bits(out), bits(expected))


def test_rows_may_be_columns_of_something_else() -> None:
    model = embedded()
    for forced in (b" ", b" Val"):
        table = torch.randn(model.vocabulary.width, 3)
        expected = table.clone()
        Decisions(model.index).mask_(expected[:, 1].contiguous(), forced, [], out=expected[:, 1])
        Decisions(model.index).mask_(table[:, 1], forced, [])
        assert torch.equal(table, expected)
        assert table[:, 1].isneginf().any()
        assert not table[:, 2].isneginf().any()


def test_what_is_left() -> None:
    decisions = Decisions(letters().index)
    assert decisions.left(b"abc", []) == b"abc"
    assert decisions.left(b"abc", [2]) == b"c"
    assert decisions.left(b"abc", [3]) == b""
    assert decisions.left(b"abc", [1]) is None
    assert decisions.left(b"abc", [1, 1, 1]) == b""  # as many tokens as bytes: nobody looks
    row = torch.zeros(7)
    assert decisions.mask_(row, b"", []) is False
    assert decisions.mask_rows_(torch.zeros(2, 7), [b"a", b""], [[0], []]) is False


def test_bad_input() -> None:
    decisions = Decisions(letters().index)
    with pytest.raises(VocabularyError, match="b'xyz'"):
        decisions.check(b"xyz")
    with pytest.raises(SettingError, match="is bytes"):
        decisions.check("ab")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="3 columns"):
        decisions.mask_(torch.zeros(3), b"a", [])
    with pytest.raises(SettingError, match="-1"):
        Decisions(letters().index, max_bytes=-1)
    with pytest.raises(ValueError, match="zip"):
        decisions.mask_rows_(torch.zeros(2, 7), [b"a"], [[], []])


def test_the_cache_stays_under_its_bound() -> None:
    model = embedded()
    bound = 300_000
    decisions = Decisions(model.index, max_bytes=bound)
    row = torch.zeros(model.vocabulary.width)
    most = 0
    for token in model.index.sorted[::11]:
        decisions.mask_(row, token, [])
        entries = decisions.cache._entries.values()
        kept = sum(tensor.nbytes for tensors in entries for tensor in tensors)
        most = max(most, decisions.cache.bytes)
        assert kept < decisions.cache.bytes <= bound
    assert most > bound / 2


def test_the_least_recently_used_goes_first() -> None:
    made: list[str] = []

    def get(key: str) -> None:
        cache.get(key, lambda: (made.append(key) or torch.zeros(1000),))  # type: ignore[func-returns-value]

    cache = _TensorCache(15_500)  # three of them
    for key in "abcabdab":
        get(key)
    assert made == ["a", "b", "c", "d"]
    get("c")
    assert made[-1] == "c"
    _TensorCache(0).get("a", lambda: (torch.zeros(1),))


def test_an_index_has_one_cache_and_takes_it_along() -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab"]))
    one, two = Decisions(index), Decisions(index)
    one.mask_(torch.zeros(2), b"ab", [])
    assert len(two.cache) == 1
    assert len(Decisions(index, max_bytes=2**20).cache) == 0
    from charwise.healing import decision

    before = len(decision._caches)
    del one, two, index
    gc.collect()
    assert len(decision._caches) < before


def test_threads_share_the_core() -> None:
    model = embedded()
    decisions = Decisions(model.index, max_bytes=200_000)  # small: entries come and go
    texts = [token for token in model.index.sorted[::29] if len(token) > 1]
    logits = torch.randn(model.vocabulary.width)
    expected = {}
    for text in texts:
        expected[text] = logits.clone()
        Decisions(model.index, max_bytes=0).mask_(expected[text], text, [])

    def work(seed: int) -> bool:
        rng = random.Random(seed)
        for text in rng.choices(texts, k=150):
            row = logits.clone()
            decisions.mask_(row, text, [])
            if not torch.equal(row, expected[text]):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert decisions.cache.bytes <= 200_000


def test_the_page_of_all_engines() -> None:
    page = Path(__file__).parents[2] / "docs" / "engines" / "index.md"
    [block] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["masked"]
    assert names["forced"]
    assert names["logits"].isneginf().any()


def test_serving_engines_do_not_pay_for_transformers() -> None:
    modules = ("decision", "sglang", "vllm", "tensorrt_llm")
    names = ", ".join(f"charwise.healing.{name}" for name in modules)
    code = f"import sys, {names}; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_a_draft_that_ends_where_nothing_follows_is_let_go():
    """Of `abc` the draft wrote `a`, but only `ab` has a token that can follow."""
    decisions = Decisions(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"])))
    assert decisions.left(b"abc", [0]) is None
    row = torch.zeros(3)
    assert not decisions.mask_(row, b"abc", [0])
    assert row.tolist() == [0.0, 0.0, 0.0]
    assert decisions.mask_(row, b"abc", [])
    assert (~row.isneginf()).nonzero().flatten().tolist() == [1]
    with pytest.raises(VocabularyError, match="spells b'cb'"):
        decisions.mask_(row, b"cb", [])
