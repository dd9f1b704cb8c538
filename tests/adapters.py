"""Every adapter behind one function, and the contract that all of them keep.

An adapter here is `(model, forced, generated, logits [width]) -> [width]`: what an engine's call
makes of one row of logits, among other requests. It may write `logits`, and keeps no state. To hold
another one to the contract, add it to `ADAPTERS`, or give it to `reproduce` and `same`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from charwise import SortedVocabulary, Vocabulary
from charwise.healing.llama_cpp import HealingLogitsProcessor as LlamaCppProcessor
from charwise.healing.mask import Mask
from charwise.healing.tensorrt_llm import HealingLogitsProcessor as TensorRTProcessor
from charwise.healing.transformers import HealingLogitsProcessor
from charwise.models import EMBEDDED


@dataclass
class Served:
    """A model as an engine serves it: its tokenizer, in memory and in a folder."""

    tokenizer: Any
    folder: str

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.from_transformers(self.tokenizer)

    @cached_property
    def index(self) -> SortedVocabulary:
        return SortedVocabulary(self.vocabulary)

    @cached_property
    def prompt(self) -> list[int]:
        """Ids of a prompt; that they spell something must not matter."""
        return [self.vocabulary.end_ids[0], 0]


@cache
def embedded() -> Served:
    """The embedded model, as far as it is a tokenizer."""
    return Served(AutoTokenizer.from_pretrained(EMBEDDED), str(EMBEDDED))


Ids, Row = Sequence[int], torch.Tensor
Adapter = Callable[[Served, bytes, Ids, Row], Row]


def byte_level(tokens: Sequence[bytes]) -> PreTrainedTokenizerFast:
    """A tokenizer with these tokens, and an end token after them."""
    alphabet = bytes_to_unicode()
    texts = ["".join(alphabet[byte] for byte in token) for token in tokens]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def core(model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """Between a row that is not healed and one that is as far, before one that is behind."""
    rows, texts = torch.stack([logits] * 4), [b"", forced, forced, forced]
    Mask(model.index).apply_(rows, texts, [[], generated, generated, []])
    assert torch.equal(bits(rows[0]), bits(logits))
    assert torch.equal(bits(rows[1]), bits(rows[2]))
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


ADAPTERS: dict[str, Adapter] = {
    "core": core,
    "transformers": transformers,
    "TensorRT-LLM": tensorrt_llm,
    "llama.cpp": llama_cpp,
}


# ---- the contract -------------------------------------------------------------------------------


def bits(row: Row) -> Row:
    """A row as integers, so that NaN equals NaN and 0 is not −0."""
    return row.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[row.itemsize])


def allowed(tokens: Sequence[bytes | None], rest: bytes) -> set[int]:
    """The ids that may come next, by trying every token; nothing of charwise is used."""

    def spells(rest: bytes) -> bool:
        ends = {0}
        for at in range(len(rest)):
            if at in ends:
                for token in tokens:
                    if token and token.startswith(rest[at:]):
                        return True
                    if token and rest.startswith(token, at):
                        ends.add(at + len(token))
        return not rest

    return {
        id
        for id, token in enumerate(tokens)
        if token
        and (token.startswith(rest) or (rest.startswith(token) and spells(rest[len(token) :])))
    }


def same(adapter: Adapter, model: Served, forced: bytes, generated: Ids, logits: Row) -> Row:
    """The adapter's row, checked against the reference: allowed logits keep every bit."""
    tokens = model.vocabulary.tokens
    text = b"".join(tokens[id] or b"" for id in generated)
    row = adapter(model, forced, generated, logits.clone())
    expected = logits.clone()
    if forced.startswith(text) and text != forced and None not in [tokens[i] for i in generated]:
        outside = set(range(len(logits))) - allowed(tokens, forced[len(text) :])
        expected[sorted(outside)] = -torch.inf
    assert row.dtype == logits.dtype
    assert torch.equal(bits(row), bits(expected)), (forced, list(generated))
    return row


def reproduce(adapter: Adapter, model: Served, forced: bytes, seed: int, more: int = 2) -> bytes:
    """Greedy generation with random logits: every row is checked, and so is the text."""
    random = torch.Generator().manual_seed(seed)
    tokens, words = model.vocabulary.tokens, model.vocabulary.counted.nonzero()[0]
    generated: list[int] = []
    text, steps = b"", 0
    while not text.startswith(forced) or steps < more:
        steps += text.startswith(forced)
        logits = torch.randn(model.vocabulary.width + 3, generator=random)
        row = same(adapter, model, forced, generated, logits)
        generated.append(int(words[int(row[words].argmax())]))
        text = b"".join(tokens[id] or b"" for id in generated)
        assert text.startswith(forced) or forced.startswith(text)
    return text
