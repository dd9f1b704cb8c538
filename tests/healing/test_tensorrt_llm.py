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
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from adapters import bits, embedded
from charwise.errors import ModelError, SettingError, VocabularyError
from charwise.healing import allowed_next, remaining
from charwise.healing import tensorrt_llm as adapter
from charwise.healing.tensorrt_llm import (
    HealingBatchedLogitsProcessor,
    HealingLogitsProcessor,
    _decisions_of,
    heal_request,
)
from charwise.models import EMBEDDED

NAME = str(EMBEDDED)
PROMPTS = ["    raise ValueErr", "import nump", "x = [", "for i in rang"]


def llm(**settings: Any) -> SimpleNamespace:
    """What `heal_request` reads of a tensorrt_llm.LLM."""
    tokenizer = SimpleNamespace(tokenizer=embedded().tokenizer)
    known = {"disable_overlap_scheduler": True, "speculative_config": None} | settings
    return SimpleNamespace(args=SimpleNamespace(**known), tokenizer=tokenizer)


def params(**settings: Any) -> SimpleNamespace:
    """What `heal_request` reads and writes of SamplingParams."""
    return SimpleNamespace(**({"logits_processor": None, "max_tokens": 9} | settings))


class Engine:
    """The order of calls of the PyTorch backend, with random logits.

    A request that was paused comes back as a prompt with all its tokens; the backend takes that for
    an earlier piece of a prompt, and calls no processor for the token that follows.

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

    def generate_with_a_pause(
        self,
        ids: list[int],
        processors: Sequence[Callable[..., None]],
        steps: int,
        pause: int,
        unmasked: int | None = None,
    ) -> list[int]:
        """Ids that are added to a prompt by a request that is paused after `pause` of them.

        It ends with the first end token, which is not shown. `unmasked` is what is drawn where no
        processor was called; by default whatever the logits say.
        """
        ends = embedded().vocabulary.end_ids
        generated: list[int] = []
        while len(generated) < steps:
            if len(generated) == pause > 0:
                [row] = self.logits([[*ids, *generated]], [])
                id = int(row.argmax()) if unmasked is None else unmasked
            else:
                [row] = self.logits([[*ids, *generated]], processors)
                id = int(row.argmax())
            if id in ends:
                break
            generated.append(id)
        return generated

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
    vocabulary = embedded().vocabulary
    for seed, prompt in enumerate(PROMPTS):
        ids, given, reader = heal_request(llm(), prompt, params(), rule=rule)
        assert len(reader.healed.forced) or rule != 3
        sent = pickle.loads(pickle.dumps(given.logits_processor))
        engine = Engine(chunks=chunks, beams=beams, seed=seed)
        for generated in engine.generate(ids, [sent], steps=len(reader.healed.forced) + 3):
            assert vocabulary.decode([*ids, *generated]).startswith(prompt.encode())
            assert reader.text(generated)


@pytest.mark.parametrize("pause", [1, 2, 5, 9])
def test_a_paused_request_goes_on_or_ends_with_the_prompt(pause: int) -> None:
    """One token is not masked: where it fits, nothing is lost; else the completion is empty."""
    vocabulary = embedded().vocabulary
    seen = set()
    for seed in range(12):
        ids, given, reader = heal_request(llm(), "    raise ValueErr", params(), rule=2)
        processors = [given.logits_processor]
        engine = Engine(seed=seed)
        generated = engine.generate_with_a_pause(ids, processors, 14, pause)
        again = reader.continuation()
        again.add(generated)
        assert again.take(final=True) == reader.text(generated)
        if again.lost:
            assert len(generated) == pause + 1
            assert reader.text(generated) == ""
            assert reader.text([*generated, *vocabulary.end_ids[:1]]) == ""
        else:
            assert vocabulary.decode(generated).startswith(reader.healed.forced)
        seen.add(again.lost)
        left = remaining(reader.healed.forced, generated[:pause], vocabulary)
        if left:  # what fits
            fits = int(allowed_next(left, embedded().index)[-1])
            whole = Engine(seed=seed).generate_with_a_pause(ids, processors, 14, pause, fits)
            assert vocabulary.decode(whole).startswith(reader.healed.forced)
    assert True in seen or pause > 1


def test_a_lost_request_that_cannot_end_is_refused() -> None:
    """The end token may be forbidden: then the reader says so, and nobody gets a wrong text."""
    for more in ({"ignore_eos": True}, {"min_tokens": 5}, {"end_id": -1}):
        ids, given, reader = heal_request(llm(), "    raise ValueErr", params(**more), rule=2)
        wrong = embedded().vocabulary.encode("zz")[0]
        refused = 0
        for seed in range(8):
            engine = Engine(seed=seed)
            generated = engine.generate_with_a_pause(ids, [given.logits_processor], 9, 1, wrong)
            if remaining(reader.healed.forced, generated[:1], embedded().vocabulary):
                refused += 1
                with pytest.raises(VocabularyError, match="must go on with"):
                    reader.text(generated)
        assert refused


def test_a_completion_that_goes_on_after_it_was_lost_is_refused() -> None:
    """An engine that calls no processor at all writes more than one token that does not fit."""
    _, _, reader = heal_request(llm(), "    raise ValueErr", params(), rule=2)
    wrong = embedded().vocabulary.encode("zz")[0]
    assert reader.text([wrong]) == ""
    with pytest.raises(VocabularyError, match="more after a token that left it"):
        reader.text([wrong, wrong])


@pytest.mark.parametrize("shows_every_beam", [True, False])
def test_beams_need_an_engine_that_shows_each_of_them(
    shows_every_beam: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tmp_path / "_torch" / "pyexecutor"
    backend.mkdir(parents=True)
    helper = "_apply_logits_processors" if shows_every_beam else "_other"
    (backend / "model_engine.py").write_text(f"class A:\n    def {helper}(self): ...\n")
    engine = ModuleType("tensorrt_llm")
    engine.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "tensorrt_llm", engine)
    adapter._shows_every_beam.cache_clear()
    beams = params(use_beam_search=True, n=3)
    try:
        if shows_every_beam:
            assert heal_request(llm(), "import nump", beams).ids
        else:
            with pytest.raises(ModelError, match="one beam only"):
                heal_request(llm(), "import nump", beams)
            without = SimpleNamespace(args=SimpleNamespace(), tokenizer=llm().tokenizer)
            assert heal_request(without, "import nump", beams).ids  # the TensorRT backend
        assert heal_request(llm(), "import nump", params(use_beam_search=False)).ids
    finally:
        adapter._shows_every_beam.cache_clear()


def test_tokens_and_stop_strings_count_beyond_the_prompt() -> None:
    """The engine is asked for more tokens, and for no stop string that is in the prompt's end."""
    given = params(stop="V", max_tokens=3)
    ids, sent, reader = heal_request(llm(), "    raise ValueErr", given, rule=2)
    assert (given.max_tokens, given.stop) == (3, "V")
    assert (sent.max_tokens, sent.stop) == (3 + len(" ValueErr"), None)
    [generated] = Engine(seed=1).generate(ids, [sent.logits_processor], steps=12)
    new = reader.continuation()
    new.add(generated)
    assert new.counted <= 3 < len(generated)
    for wrong in ({"max_tokens": "3"}, {"max_tokens": 0}, {"stop": ""}, {"stop": 3}):
        with pytest.raises(SettingError, match=r"max_tokens|stop"):
            heal_request(llm(), "    raise ValueErr", params(**wrong))


def test_lagging_ids_are_refused_before_the_request() -> None:
    """The overlap scheduler is on unless it was turned off; other backends have no such setting."""
    with pytest.raises(ModelError, match=r"is no tensorrt_llm\.LLM"):
        heal_request(None, "import nump", params())
    with pytest.raises(ModelError, match="disable_overlap_scheduler=True"):
        heal_request(llm(disable_overlap_scheduler=False), "import nump", params())
    without = SimpleNamespace(args=SimpleNamespace(), tokenizer=llm().tokenizer)
    assert heal_request(without, "import nump", params()).ids
    with pytest.raises(ModelError, match="speculative_config"):
        heal_request(llm(speculative_config=object()), "import nump", params())


def test_why_lagging_ids_cannot_be_told_in_the_call() -> None:
    """A chunked prompt and a lagging engine make the same two first calls, of the same ids.

    What a lagging engine writes is seen at the latest when it is read.
    """
    ids, given, reader = heal_request(llm(), "    raise ValueErr", params(), rule=3)
    refused = 0
    for seed in range(12):
        [generated] = Engine(overlap=True, seed=seed).generate(
            ids, [given.logits_processor], steps=len(reader.healed.forced) + 2
        )
        vocabulary = embedded().vocabulary
        try:
            reader.continuation().add(generated)
        except VocabularyError:
            refused += 1
        else:  # the first token completed the text, or the second happened to fit
            assert vocabulary.decode(generated).startswith(reader.healed.forced)
    assert refused > 6


def test_other_processors_run_first_and_the_parameters_are_copied() -> None:
    def other(req_id: int, logits: Any, token_ids: Any, stream: Any, client: Any) -> None:
        logits.fill_(1.0)

    given = params(logits_processor=other)
    sent = heal_request(llm(), "import nump", given).sampling_params
    assert given.logits_processor is other
    assert sent.logits_processor[0] is other
    assert given.max_tokens == 9
    two = params(logits_processor=[other, other])
    assert len(heal_request(llm(), "import nump", two).sampling_params.logits_processor) == 3
    rows = torch.zeros(1, 1, embedded().vocabulary.width)
    for processor in sent.logits_processor:
        processor(1, rows, [[0]], None, None)
    assert rows.isneginf().any()


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
    row = torch.arange(width, dtype=torch.float16)
    _decisions_of(NAME).mask_(row, b" ValueErr", [])
    assert json.loads(run.stdout) == torch.nonzero(~row.isneginf()).flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_batched_form(dtype: torch.dtype) -> None:
    """Requests of one, two and three beams; only what was added is masked."""
    batched = HealingBatchedLogitsProcessor()
    width = embedded().vocabulary.width
    for client, prompt in enumerate(PROMPTS[:2]):
        _, sent, reader = heal_request(llm(), prompt, params(), rule=2)
        assert reader.healed.forced
        batched.add(client, sent.logits_processor)
    logits = [torch.randn(beams, 1, width).to(dtype) for beams in (1, 2, 3)]
    before = [tensor.clone() for tensor in logits]
    length = len(heal_request(llm(), PROMPTS[0], params(), rule=2).ids)
    ids = [[[0] * length] * beams for beams in (1, 2, 3)]
    assert batched([7, 8, 9], logits, ids, None, [0, 1, None]) is None
    assert logits[0].isneginf().any()
    assert torch.equal(bits(logits[2]), bits(before[2]))
    batched.discard(0)
    batched.discard(0)
    again = [tensor.clone() for tensor in before]
    batched([7, 8, 9], again, ids, None, [0, 1, 5])
    assert torch.equal(bits(again[0]), bits(before[0]))
    assert torch.equal(bits(again[1]), bits(logits[1]))


def test_bad_requests_fail_before_they_are_sent() -> None:
    with pytest.raises(SettingError, match="is bytes"):
        HealingLogitsProcessor(NAME, "text", 1)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="-1"):
        HealingLogitsProcessor(NAME, b"text", -1)
    with pytest.raises(SettingError, match="truncate_prompt_tokens"):
        heal_request(llm(), "import nump", params(truncate_prompt_tokens=5))


def test_what_goes_wrong_in_the_worker_hurts_no_other_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A model with another vocabulary; a tokenizer that the worker does not find."""
    processor = HealingLogitsProcessor(NAME, b"def", 1)
    lost = pickle.loads(pickle.dumps(processor))
    lost.tokenizer = "no/such/folder"
    for wrong in (processor, lost):
        logits = torch.zeros(1, 1, 30)
        with caplog.at_level(logging.ERROR):
            wrong(44, logits, [[0]], None, None)
        assert not logits.isneginf().any()
        assert "request 44 is not healed" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
