"""Every host of healing behind one function, and the contract that all of them keep.

A host here is `(model, forced, generated, logits [width]) -> [width]`: what an engine's call makes
of one row of logits. It makes the call as the engine does, for one request among others, and may
write `logits`. Hosts keep nothing between calls. To hold another one to the contract, add it to
`HOSTS`.
"""

import gc
import logging
import pickle
import random
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, VocabularyError
from charwise.healing import allowed_next
from charwise.healing.llama_cpp import HealingLogitsProcessor as LlamaCppProcessor
from charwise.healing.mask import Mask
from charwise.healing.tensorrt_llm import HealingLogitsProcessor as TensorRTProcessor
from charwise.healing.transformers import HealingLogitsProcessor
from charwise.models import EMBEDDED
from conftest import Data
from models import examples
from test_forced import naive_allowed

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class Served:
    """A model as an engine serves it: its tokenizer, in memory and in a folder."""

    def __init__(self, tokenizer: Any, folder: str | None = None) -> None:
        self.folder = folder or tempfile.mkdtemp()
        if folder is None:
            tokenizer.save_pretrained(self.folder)
        self.vocabulary = Vocabulary.from_transformers(tokenizer)
        #: Ids of a prompt; that they spell something must not matter.
        self.prompt = [self.vocabulary.end_ids[0], 0]

    @cached_property
    def index(self) -> SortedVocabulary:
        return SortedVocabulary(self.vocabulary)


@cache
def embedded() -> Served:
    """The embedded model, as far as it is a tokenizer."""
    return Served(AutoTokenizer.from_pretrained(EMBEDDED), str(EMBEDDED))


def byte_level(tokens: Sequence[bytes]) -> Served:
    """These tokens, and an end token after them."""
    alphabet = bytes_to_unicode()
    texts = ["".join(alphabet[byte] for byte in token) for token in tokens]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Served(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"))


@cache
def letters() -> Served:
    """No byte is sure to have a token, and two tokens are twins in what follows them."""
    return byte_level([b"a", b"b", b"ab", b"abc", b"ca", b"cab"])


Ids, Row = Sequence[int], torch.Tensor
Host = Callable[[Served, bytes, Ids, Row], Row]


def core(model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """Between a row that is not healed and one that is as far, before one that is behind."""
    Mask(model.index).check(forced)
    rows, texts = torch.stack([logits] * 4), [b"", forced, forced, forced]
    Mask(model.index).apply_(rows, texts, [[], generated, generated, []])
    assert torch.equal(bits(rows[0]), bits(logits))
    assert torch.equal(bits(rows[1]), bits(rows[2]))
    Mask(model.index).apply_(logits[None], [forced], [generated])  # alone
    assert torch.equal(bits(rows[1]), bits(logits))
    return rows[1]


def transformers(model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """Two beams of a prompt, after one that is not healed."""
    ids = torch.tensor([[*model.prompt, *generated]] * 4)
    process = HealingLogitsProcessor(model.index, [b"", forced], len(model.prompt))
    scores = process(ids, torch.stack([logits] * 4))
    assert torch.equal(bits(scores[0]), bits(logits))
    assert torch.equal(bits(scores[2]), bits(scores[3]))
    return scores[3]


def tensorrt_llm(model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """As the PyTorch backend calls it, after the pickling that takes it to the worker.

    Two beams of a request among others, of which the second may be behind the first.
    """
    processor = TensorRTProcessor(model.folder, forced, len(model.prompt))
    batch = torch.stack([logits] * 4)
    rows = batch[1:3].view(2, 1, -1)
    token_ids = [[*model.prompt, *generated], [*model.prompt, *generated[:-1]]]
    assert pickle.loads(pickle.dumps(processor))(5, rows, token_ids, None, None) is None
    assert torch.equal(bits(batch[0]), bits(logits))
    assert torch.equal(bits(batch[3]), bits(logits))
    alone = tensorrt_llm(model, forced, generated[:-1], logits) if generated else batch[1]
    assert torch.equal(bits(batch[2]), bits(alone))
    return batch[1]


def llama_cpp(model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """A column of records, as llama-cpp-python lays scores out; they are float32."""
    records = np.zeros(len(logits), dtype=[("id", np.int32), ("logit", np.float32)])
    records["logit"] = logits.float().numpy()
    process = LlamaCppProcessor(model.index, forced, len(model.prompt))
    scores = process(np.array([*model.prompt, *generated], np.int32), records["logit"])
    return torch.from_numpy(scores.copy()).to(logits.dtype)


HOSTS: dict[str, Host] = {
    "core": core,
    "transformers": transformers,
    "TensorRT-LLM": tensorrt_llm,
    "llama.cpp": llama_cpp,
}
EVERY_HOST = pytest.mark.parametrize("name", HOSTS)


# ---- the contract -------------------------------------------------------------------------------


def bits(row: torch.Tensor) -> torch.Tensor:
    """A row as integers, so that NaN equals NaN and 0 is not −0."""
    return row.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[row.itemsize])


def check(name: str, model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """A host's row, checked against the definition: allowed logits keep every bit."""
    tokens = model.vocabulary.tokens
    text = b"".join(tokens[id] or b"" for id in generated)
    row = HOSTS[name](model, forced, generated, logits.clone())
    expected = logits.clone()
    if forced.startswith(text) and text != forced and None not in [tokens[i] for i in generated]:
        outside = set(range(len(logits))) - naive_allowed(tokens, forced[len(text) :])
        expected[sorted(outside)] = -torch.inf
    assert row.dtype == logits.dtype
    assert torch.equal(bits(row), bits(expected)), (forced, list(generated))
    return row


def reproduce(name: str, model: Served, forced: bytes, seed: int) -> bytes:
    """Greedy generation with random logits, two tokens too far: rows and text are checked."""
    random = torch.Generator().manual_seed(seed)
    tokens, words = model.vocabulary.tokens, model.vocabulary.counted.nonzero()[0]
    generated: list[int] = []
    text, steps = b"", 0
    while not text.startswith(forced) or steps < 2:
        steps += text.startswith(forced)
        logits = torch.randn(model.vocabulary.width + 3, generator=random)
        row = check(name, model, forced, generated, logits)
        generated.append(int(words[int(row[words].argmax())]))
        text = b"".join(tokens[id] or b"" for id in generated)
        assert text.startswith(forced) or forced.startswith(text)
    return text


@st.composite
def served(draw: st.DrawFn) -> tuple[Served, bytes]:
    """A model with any vocabulary, and a text that its tokens begin to spell."""
    token = st.binary(min_size=1, max_size=4) | st.text("ab é", min_size=1, max_size=4).map(
        str.encode
    )
    vocabulary = draw(st.lists(token, min_size=1, max_size=14, unique=True))
    text = b"".join(draw(st.lists(st.sampled_from(vocabulary), max_size=4)))
    return byte_level(vocabulary), text[: draw(st.integers(0, len(text)))]


@examples(60)
@given(served(), st.integers(0, 2**31))
def test_random_logits_reproduce_the_text_in_every_host(
    case: tuple[Served, bytes], seed: int
) -> None:
    """Each step equals the definition, and so all hosts write the same tokens."""
    model, forced = case
    texts = {reproduce(name, model, forced, seed) for name in HOSTS}
    assert len(texts) == 1
    assert texts.pop().startswith(forced)


@EVERY_HOST
def test_random_logits_reproduce_the_text_with_a_real_vocabulary(name: str) -> None:
    model, text = embedded(), b"    raise ValueErr"
    for start in (0, 4, 10):
        assert reproduce(name, model, text[start:], seed=start).startswith(text[start:])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, t) for n in HOSTS for t in DTYPES if n != "llama.cpp" or t == torch.float32],
)
def test_every_float_type_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    """Also infinities and not-a-numbers: an allowed logit is untouched, any other is −inf."""
    for model, forced in ((letters(), b"abca"), (embedded(), b" "), (embedded(), b" Val")):
        logits = torch.randn(model.vocabulary.width).to(dtype)
        for start, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
            logits[start::7] = value
        check(name, model, forced, [], logits)


@EVERY_HOST
def test_calls_in_any_order_give_the_answer_of_their_ids(name: str) -> None:
    """Repeated for a chunked prompt, replayed after a preemption, asked about rejected drafts."""
    model, forced = letters(), b"abcab"
    ways = [[], [0], [0, 1], [3], [3, 2], [2], [2, 4], [2, 5], [3, 0], [3, 0, 1]]
    drafts = [[1], [0, 0], [5], [6], [0, 6], [3, 1, 1]]  # 6 is the end token
    logits = torch.randn(model.vocabulary.width)
    for generated in random.Random(3).choices([*ways, *drafts], k=60):
        row = check(name, model, forced, generated, logits)
        if generated in drafts:
            assert torch.equal(row, logits)


@pytest.mark.parametrize("host", ["transformers", "llama.cpp"])
def test_the_end_of_a_middle_is_held_once_the_forced_text_is_there(host: str) -> None:
    index = SortedVocabulary(Vocabulary.from_bytes([b"in", b"ind", b"d", None], end_ids=[3]))
    for generated, allowed in (([0], [2]), ([1], [0, 1, 2]), ([1, 2], [0, 1, 2, 3])):
        if host == "transformers":
            scores = torch.zeros(1, 4)
            process = HealingLogitsProcessor(index, [b"ind"], 1, [b"d"])
            row = process(torch.tensor([[0, *generated]]), scores)[0]
            assert torch.equal(scores, torch.zeros(1, 4))
        else:
            last = LlamaCppProcessor(index, b"ind", 1, b"d")
            row = torch.from_numpy(last(np.array([0, *generated]), np.zeros(4, np.float32)))
        assert row.isfinite().nonzero().flatten().tolist() == allowed


@EVERY_HOST
def test_a_text_that_nothing_spells_is_refused(name: str) -> None:
    with pytest.raises(VocabularyError, match="b'xyz'"):
        HOSTS[name](letters(), b"xyz", [], torch.zeros(7))


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


def test_masks_of_an_index_share_their_tensors_which_go_with_it() -> None:
    index = SortedVocabulary(embedded().vocabulary)
    for _ in range(2):
        assert Mask(index).apply_(torch.zeros(1, index.vocabulary.width), [b" "], [[]])
    assert Mask(index)._bits.cache_info().hits == 1  # type: ignore[attr-defined]
    alive = weakref.ref(index)
    del index
    gc.collect()
    assert alive() is None


def test_a_draft_that_ends_where_nothing_follows_is_free() -> None:
    """Of `abc` the draft wrote `a`, but only `ab` has a token that can follow."""
    mask = Mask(SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"c"])))
    assert mask.remaining(b"abc", [0]) is None
    rows = torch.zeros(1, 3)
    assert not mask.apply_(rows, [b"abc"], [[0]])
    assert rows.tolist() == [[0.0, 0.0, 0.0]]
    assert mask.apply_(rows, [b"abc"], [[]])
    assert rows.isfinite().tolist() == [[False, True, False]]


# ---- what is one host's own ---------------------------------------------------------------------


def test_transformers_keeps_finished_rows_and_takes_narrower_scores() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab", b"abc", None], end_ids=[4], width=5)
    index = SortedVocabulary(vocabulary)
    done, process = torch.zeros(2, 5), HealingLogitsProcessor(index, [b"ab", b""], 2)
    assert process(torch.tensor([[4, 4, 0, 1], [4, 4, 1, 1]]), done) is done
    assert process(torch.tensor([[4, 4, 3], [4, 4, 1]]), done) is done
    process = HealingLogitsProcessor(index, [b"ab"], 2)
    narrow = process(torch.tensor([[4, 4]]), torch.zeros(1, 4))
    assert narrow.isfinite().nonzero()[:, 1].tolist() == [0, 2, 3]  # no token is missing
    with pytest.raises(SettingError, match="3 columns"):
        process(torch.tensor([[4, 4]]), torch.zeros(1, 3))
    with pytest.raises(SettingError, match="3 rows of 2 ids, for 2 forced texts"):
        HealingLogitsProcessor(index, [b"a", b"b"], 2)(torch.full((3, 2), 4), torch.zeros(3, 5))
    for texts, endings in (([], []), ([b"a", b"a"], [b"b"])):
        with pytest.raises(SettingError, match="endings"):
            HealingLogitsProcessor(index, texts, 2, endings)


def test_tensorrt_llm_logs_what_goes_wrong_in_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """An exception would fail every request of the batch: the row is left alone."""
    with pytest.raises((VocabularyError, OSError)):
        TensorRTProcessor("no such tokenizer", b"a", 1)
    narrow, moved = (TensorRTProcessor(str(EMBEDDED), b" Val", 1) for _ in range(2))
    assert len(pickle.dumps(narrow)) < 200 + len(str(EMBEDDED))  # a worker gets a name
    moved.tokenizer = "no such tokenizer"
    for wrong in (narrow, moved):
        logits = torch.zeros(1, 1, 30)
        with caplog.at_level(logging.ERROR):
            wrong(44, logits, [[0]], None, None)
        assert not logits.isneginf().any()
        assert "request 44 is not healed" in caplog.records[-1].getMessage()
