"""TensorRT-LLM's contract: its own calls, made here by a small engine of the same shape.

What runs here is the processor, on the CPU. No TensorRT-LLM, no CUDA stream.
"""

from __future__ import annotations

import inspect
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from adapters import embedded
from charwise.errors import SettingError, VocabularyError
from charwise.healing import allowed_next, cut
from charwise.healing.tensorrt_llm import HealingLogitsProcessor
from charwise.models import EMBEDDED

NAME = str(EMBEDDED)
PROMPTS = ["    raise ValueErr", "import nump", "x = [", "for i in rang"]


class Engine:
    """The order of calls of the PyTorch backend, with random logits.

    Rows of requests whose prompts are processed come first, one each; then those that generate,
    one for each beam. A prompt in several chunks asks once for each chunk and throws away all but
    the last answer. With `overlap`, processors are called before the last token is appended.
    """

    def __init__(
        self, *, chunks: int = 1, beams: int = 1, overlap: bool = False, seed: int = 0
    ) -> None:
        self.chunks, self.beams, self.overlap = chunks, beams, overlap
        self.random = torch.Generator().manual_seed(seed)
        self.dtype = torch.bfloat16

    def generate(
        self, ids: list[int], processors: Sequence[Callable[..., None]], steps: int
    ) -> list[list[int]]:
        """Ids that each beam adds to a prompt, by drawing the likeliest tokens."""
        for _ in range(self.chunks):
            [row] = self.logits([ids], processors)
        best = row.topk(self.beams)
        alive = [
            int(id) for id, score in zip(best.indices, best.values, strict=True) if score > -1e9
        ]
        beams = [[*ids, id] for id in alive]
        for _ in range(steps - 1):
            shown = [beam[:-1] for beam in beams] if self.overlap else beams
            rows = self.logits(shown, processors)
            beams = [[*beam, int(row.argmax())] for beam, row in zip(beams, rows, strict=True)]
            beams = beams[1:] + beams[:1]  # beams change places
        return [beam[len(ids) :] for beam in beams]

    def logits(
        self, token_ids: list[list[int]], processors: Sequence[Callable[..., None]]
    ) -> torch.Tensor:
        width = embedded().vocabulary.width
        batch = torch.randn(len(token_ids) + 2, width + 11, generator=self.random).to(self.dtype)
        batch[:, [*embedded().vocabulary.end_ids, *range(width, width + 11)]] = -torch.inf
        rows = batch[1 : 1 + len(token_ids)].view(len(token_ids), 1, -1)
        for processor in processors:
            assert 4 <= len(inspect.signature(processor).parameters) <= 5
            assert processor(17, rows, token_ids, None, None) is None
        assert not batch[[0, -1], 1:9].isneginf().any()
        return batch[1:-1]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("rule", ["auto", 3, "off"])
def test_completions_start_with_the_exact_prompt(beams: int, chunks: int, rule: Any) -> None:
    for seed, prompt in enumerate(PROMPTS):
        ids, forced = cut(prompt, embedded().index, rule)
        assert forced or rule != 3
        sent = pickle.loads(pickle.dumps(HealingLogitsProcessor(NAME, forced, len(ids))))
        engine = Engine(chunks=chunks, beams=beams, seed=seed)
        for generated in engine.generate(ids, [sent], steps=len(forced) + 3):
            assert embedded().vocabulary.decode([*ids, *generated]).startswith(prompt.encode())


def test_a_lagging_engine_is_seen_in_what_it_writes() -> None:
    """The overlap scheduler calls processors before the last token is known."""
    ids, forced = cut("    raise ValueErr", embedded().index, 3)
    wrong = 0
    for seed in range(12):
        processor = HealingLogitsProcessor(NAME, forced, len(ids))
        engine = Engine(overlap=True, seed=seed)
        [generated] = engine.generate(ids, [processor], steps=len(forced) + 2)
        wrong += not embedded().vocabulary.decode(generated).startswith(forced)
    assert wrong > 6


@pytest.mark.slow
def test_it_is_sent_by_name_and_works_in_a_fresh_process() -> None:
    processor = HealingLogitsProcessor(NAME, b" ValueErr", prompt_length=2)
    data = pickle.dumps(processor)
    assert len(data) < 200 + len(NAME)
    code = """
import json, pickle, sys, torch
processor = pickle.loads(bytes.fromhex(sys.argv[1]))
logits = torch.arange(int(sys.argv[2]), dtype=torch.float16).reshape(1, 1, -1)
processor(1, logits, [[0, 0]], None, None)
print(json.dumps(torch.nonzero(~logits[0, 0].isneginf()).flatten().tolist()))
"""
    width = embedded().vocabulary.width
    command = [sys.executable, "-c", code, data.hex(), str(width)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == sorted(allowed_next(b" ValueErr", embedded().index).tolist())


def test_what_cannot_be_forced_and_what_goes_wrong_in_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception would fail every request of the batch: it is logged, and the row left alone."""
    with pytest.raises(SettingError, match="bytes"):
        HealingLogitsProcessor(NAME, "a", 1)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="prompt_length"):
        HealingLogitsProcessor(NAME, b"a", -1)
    with pytest.raises((VocabularyError, OSError)):
        HealingLogitsProcessor("no such tokenizer", b"a", 1)
    narrow = HealingLogitsProcessor(NAME, b" Val", 1)
    moved = HealingLogitsProcessor(NAME, b" Val", 1)
    moved.tokenizer = "no such tokenizer"
    for wrong in (narrow, moved):
        logits = torch.zeros(1, 1, 30)
        with caplog.at_level(logging.ERROR):
            wrong(44, logits, [[0]], None, None)
        assert not logits.isneginf().any()
        assert "request 44 is not healed" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
