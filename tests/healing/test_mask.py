"""The decision core, and the contract that it shares with every adapter."""

from __future__ import annotations

import gc
import random
import tempfile
import weakref
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters import ADAPTERS, Served, bits, byte_level, embedded, reproduce, same
from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing import allowed_next
from charwise.healing.mask import Mask
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, t) for n in ADAPTERS for t in DTYPES if n != "llama.cpp" or t == torch.float32],
)
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
    """A batch in which rows have many tokens, few tokens, the same ones, or all of them."""
    index = data.index(name)
    texts = [b" ", b"a", b"", b"\n", b"\xe4", b" the", b"a", b"    return self.", b"\xff"]
    for dtype in DTYPES[:2]:
        rows = torch.randn(len(texts), index.vocabulary.width).to(dtype)
        expected = torch.full_like(rows, -torch.inf)
        for row, text in enumerate(texts):
            ids = torch.tensor(allowed_next(text, index)) if text else slice(None)
            expected[row, ids] = rows[row, ids]
        assert Mask(index).apply_(rows, texts, [[]] * len(texts))
        assert torch.equal(bits(rows), bits(expected))


def test_bad_input() -> None:
    mask = Mask(letters().index)
    with pytest.raises(VocabularyError, match="b'xyz'"):
        mask.check(b"xyz")
    with pytest.raises(SettingError, match="3 columns"):
        mask.apply_(torch.zeros(1, 3), [b"a"], [[]])


def test_masks_of_an_index_share_their_tensors_which_go_with_it() -> None:
    index = SortedVocabulary(embedded().vocabulary)
    for _ in range(2):
        assert Mask(index).apply_(torch.zeros(1, index.vocabulary.width), [b" "], [[]])
    assert Mask(index)._bits.cache_info().hits == 1  # type: ignore[attr-defined]
    alive = weakref.ref(index)
    del index
    gc.collect()
    assert alive() is None


def test_a_draft_that_ends_where_nothing_follows_is_let_go() -> None:
    """Of `abc` the draft wrote `a`, but only `ab` has a token that can follow."""
    mask = Mask(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"])))
    assert mask.remaining(b"abc", [0]) is None
    rows = torch.zeros(1, 3)
    assert not mask.apply_(rows, [b"abc"], [[0]])
    assert rows.tolist() == [[0.0, 0.0, 0.0]]
    assert mask.apply_(rows, [b"abc"], [[]])
    assert (~rows[0].isneginf()).nonzero().flatten().tolist() == [1]
    with pytest.raises(VocabularyError, match="spells b'cb'"):
        mask.apply_(rows, [b"cb"], [[]])
