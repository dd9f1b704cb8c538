"""The V2 model runner, with Triton's interpreter in place of a GPU: its tables, and whole engines.

Both engines here are in one process, with and without speculative decoding.
"""

from __future__ import annotations

import random

import interpreter  # noqa: F401 - before vLLM
import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - what the V2 runner needs on a CPU
from checks import check_greedy, check_room, check_sampling, generate
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vllm import LLM, SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState
from vllm.v1.worker.gpu.states import RequestState

from charwise import SortedVocabulary, Vocabulary
from charwise import heal_generate as transformers_heal_generate
from charwise.healing import allowed_next, remaining
from charwise.models import EMBEDDED
from charwise.processors.decision import Decisions
from charwise.processors.vllm import heal_generate, served, why_not
from charwise.processors.vllm.device_table import ForcedSlots
from charwise.processors.vllm.prompts import most_forced
from conftest import ENGINE, TIE

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@pytest.fixture(scope="session", params=["plain", "speculative"])
def llm(request):
    more = {} if request.param == "plain" else {"speculative_config": SPECULATION}
    return LLM(
        EMBEDDED, **ENGINE | {"num_gpu_blocks_override": 36, "max_num_batched_tokens": 128} | more
    )


@st.composite
def vocabularies(draw):
    """Tokens of 1 to 4 bytes over a small alphabet; not every byte need have a token."""
    alphabet = draw(st.sampled_from([b"ab", b"abc", b"a\xff\x00"]))
    token = st.lists(st.sampled_from(list(alphabet)), min_size=1, max_size=4).map(bytes)
    tokens = draw(st.lists(token, min_size=2, max_size=12))
    return Vocabulary.from_bytes([*tokens, None], end_ids=[len(tokens)], width=len(tokens) + 3)


class Batch:
    """vLLM's own request states and step layout, on the CPU."""

    def __init__(self, index: SortedVocabulary, slots: int, drafts: int) -> None:
        self.index = index
        self.rng = random.Random(0)
        self.states = RequestState(slots, 64, 64, drafts, index.vocabulary.width, "cpu")
        self.slots = ForcedSlots(
            index, LogitsProcRequestState.from_request_state(self.states), drafts
        )
        self.running: dict[str, tuple[bytes, int, list[int]]] = {}  # forced, prompt length, ids

    def add(self, name: str, forced: bytes, prompt: list[int], generated: list[int]) -> None:
        ids = [*prompt, *generated]
        self.states.add_request(name, len(prompt), ids, 0, 8)
        assert self.slots.set(self.states.req_id_to_index[name], forced) == bool(forced)
        self.running[name] = (forced, len(prompt), ids)

    def remove(self, name: str) -> None:
        self.states.remove_request(name)
        del self.running[name]

    def step(self, drafts: dict[str, list[int]]) -> tuple[torch.Tensor, list[tuple[str, int]]]:
        """Masked logits `[rows, width]`, and each row's request and number of drafts before it."""
        self.states.apply_staged_writes()
        self.slots.flush()
        names = list(self.running)
        self.rng.shuffle(names)
        rows = [(name, at) for name in names for at in range(1 + len(drafts[name]))]
        slot = self.states.req_id_to_index
        ids = {name: [self.running[name][2][-1], *drafts[name]] for name in names}
        mapping = np.array([slot[name] for name in names], np.int32)
        lengths = [len(self.running[name][2]) + len(drafts[name]) for name in names]
        context = LogitsContext(
            expanded_idx_mapping=torch.tensor([slot[name] for name, _ in rows], dtype=torch.int32),
            idx_mapping=torch.from_numpy(mapping),
            idx_mapping_np=mapping,
            expanded_local_pos=torch.tensor([at for _, at in rows], dtype=torch.int32),
            input_ids=torch.tensor([ids[name][at] for name, at in rows], dtype=torch.int32),
            pos=torch.tensor([len(self.running[name][2]) - 1 + at for name, at in rows]),
            seq_lens_upper_bound_np=np.array([*lengths, 0, 0], np.int32),
        )
        logits = torch.randn(len(rows), self.index.vocabulary.width)
        before = logits.clone()
        self.slots.mask_(logits, context)
        assert torch.equal(torch.where(logits == -torch.inf, before, logits), before)
        return logits, rows


def walk(data, decisions: Decisions, forced: bytes, steps: int) -> list[int]:
    """Tokens that a healed request may have generated."""
    ids: list[int] = []
    for _ in range(steps):
        left = decisions.left(forced, ids)
        choices = allowed_next(left, decisions.index) if left else decisions.index.ids
        ids.append(int(data.draw(st.sampled_from(choices.tolist()))))
    return ids


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to shrink in an interpreter takes minutes
)
@given(st.data())
def test_rows_allow_what_the_decision_core_allows(data):
    index = SortedVocabulary(data.draw(vocabularies()))
    decisions = Decisions(index)
    spelled = st.lists(st.sampled_from(index.sorted), max_size=4).map(b"".join)
    speculative = data.draw(st.booleans())
    batch = Batch(index, 5, 3 if speculative else 0)
    for number in range(data.draw(st.integers(2, 8))):
        while len(batch.running) > 3:  # its slot is used again
            batch.remove(data.draw(st.sampled_from(sorted(batch.running))))
        forced = data.draw(spelled)[: data.draw(st.sampled_from([0, 1, 2, 4, 12]))]
        if not index.spellable(forced):
            forced = b""
        prompt = data.draw(st.lists(st.integers(0, index.vocabulary.width - 1), min_size=1))[:5]
        generated = walk(data, decisions, forced, data.draw(st.sampled_from([0, 1, 2, 3, 9])))
        batch.add(f"request {number}", forced, prompt, generated)
        ids = st.lists(st.integers(0, index.vocabulary.width - 1), max_size=3)
        drafts = {name: data.draw(ids) if speculative else [] for name in batch.running}
        logits, rows = batch.step(drafts)
        for row, (name, at) in zip(logits, rows, strict=True):
            forced, length, committed = batch.running[name]
            so_far = [*committed[length:], *drafts[name][:at]]
            found = set(torch.nonzero(row > -torch.inf).flatten().tolist())
            left = remaining(forced, so_far, index.vocabulary)
            # A draft left the text, or can no longer reproduce it: this row is thrown away.
            if left is None or not index.spellable(left):
                assert found
            elif left:
                assert found == set(allowed_next(left, index).tolist())
            else:
                assert len(found) == index.vocabulary.width


def test_a_text_that_is_done_stays_done_beside_shorter_ones():
    index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b", b"ab"]))
    batch = Batch(index, 3, 3)
    batch.add("old", b"abab", [2], [0, 1] * 10)  # so long ago that the host knows it
    batch.add("new", b"b", [2], [])
    logits, rows = batch.step({"old": [0, 2], "new": [1]})
    allowed = {key: int((row > -torch.inf).sum()) for row, key in zip(logits, rows, strict=True)}
    assert allowed == {("old", 0): 3, ("old", 1): 3, ("old", 2): 3, ("new", 0): 1, ("new", 1): 3}


def test_device_memory_follows_the_texts_that_are_reproduced():
    tokens = [b"a", b"b", b"ab", b"abababab", b"aaaaaaaa"]
    index = SortedVocabulary(Vocabulary.from_bytes(tokens))
    batch = Batch(index, 40, 0)
    slots = batch.slots
    least = slots._table.shape[:2]
    longest = b"ab" * 128
    assert len(longest) == most_forced(index.vocabulary)
    for number in range(40):
        batch.add(f"long {number}", longest, [2], [])
    batch.step({name: [] for name in batch.running})
    assert slots._table.shape[:2] == (40, 256)
    for number in range(40):
        batch.remove(f"long {number}")
        batch.add(f"short {number}", b"ab", [2], [])
    batch.step({name: [] for name in batch.running})
    assert slots._table.shape[:2] == least


def test_a_text_that_is_too_long_takes_nothing():
    index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"b"]))
    slots = Batch(index, 4, 0).slots
    least = slots._table.shape
    assert not slots.set(1, b"a" * (most_forced(index.vocabulary) + 1))
    slots.flush()
    assert slots._table.shape == least


def test_this_is_the_v2_runner(llm):
    assert llm.llm_engine.vllm_config.use_v2_model_runner
    assert why_not(llm.llm_engine.vllm_config) is None


def test_greedy(llm, reference, prompts):
    check_greedy(llm, reference, prompts[:24], 8)


def test_sampling_with_several_completions_each(llm, prompts):
    check_sampling(llm, prompts[:3], 12)


def test_exact_healing_asks_for_named_tokens(llm, reference):
    texts = ["def f(x):\n    return isinst", "for i in rang"]
    found = heal_generate(llm, texts, SamplingParams(temperature=0, max_tokens=4), method="exact")
    expected = transformers_heal_generate(
        reference.model,
        reference.tokenizer,
        [[text] for text in texts],
        method="exact",
        max_new_tokens=8,
        do_sample=False,
    )
    for [one], other in zip(found, expected, strict=True):
        assert one
        assert other.startswith(one)


def test_chunked_prefill_and_preemption(llm, reference, texts):
    check_room(llm, reference, texts, 12, 60)


def test_drafts_inside_the_forced_text(llm, reference):
    """The prompt repeats itself, so that drafts are made, right ones and wrong ones."""
    if llm.llm_engine.vllm_config.speculative_config is None:
        pytest.skip("this engine does not speculate")
    model = served(llm.llm_engine.model_config)
    name = "read_configuration_of_neighbours"
    ends = [name[:-2], name[:14], name[:5] + "er_of_names", name[:18] + "_of_nei"]
    texts = [f"{name}({name})\n{name}()\n{name}\n" + end for end in ends]
    healed = [model.heal(text, 5) for text in texts]
    before = drafted(llm)
    found = generate(llm, healed, temperature=0, max_tokens=16)
    proposed, accepted = (now - then for now, then in zip(drafted(llm), before, strict=True))
    assert 0 < accepted < proposed
    for text, each, [ids] in zip(texts, healed, found, strict=True):
        assert model.vocabulary.decode([*each.kept, *ids]).startswith(text.encode())
        assert max(reference.gaps(each.kept, each.forced, ids)) < TIE


def drafted(llm) -> list[int]:
    """Draft tokens proposed and accepted so far."""
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if "spec" in metric.name
               and hasattr(metric, "value")}  # fmt: skip
    return [metrics[f"vllm:spec_decode_num_{what}_tokens"] for what in ("draft", "accepted")]
