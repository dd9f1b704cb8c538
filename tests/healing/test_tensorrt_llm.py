"""TensorRT-LLM's processor in its worker, on the CPU; `adapters` has the contract of its calls."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys

import pytest
import torch

from adapters import embedded
from charwise.errors import VocabularyError
from charwise.healing import allowed_next
from charwise.healing.tensorrt_llm import HealingLogitsProcessor
from charwise.models import EMBEDDED

NAME = str(EMBEDDED)


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
