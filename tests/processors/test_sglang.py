"""SGLang's contract: its own calls, made here by a small engine of the same shape.

What runs here is the processor and its serialisation, on the CPU. No SGLang.
"""

from __future__ import annotations

import gc
import json
import pickle
import re
import subprocess
import sys
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from adapters import Served, bits, embedded, sglang_request
from charwise.errors import CharwiseError, EngineError, SettingError
from charwise.models import EMBEDDED
from charwise.processors import sglang as adapter
from charwise.processors.sglang import FORCED, HealingLogitProcessor, heal_request
from charwise.processors.sglang_plugin import ONLY, restrict

PROMPTS = ["    raise ValueErr", "import nump", "x = [", "for i in rang"]


class Abort:
    """What SGLang ends a request with."""

    def __init__(self, message: str, status_code: int, err_type: str) -> None:
        self.message, self.status_code, self.err_type = message, status_code, err_type


@pytest.fixture
def abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one class that the processor takes from SGLang."""
    module = ModuleType("sglang.srt.managers.schedule_batch")
    module.FINISH_ABORT = Abort  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


class Request:
    """One request in the engine. Processors see a weak reference to it in its parameters."""

    def __init__(self, body: dict[str, Any], tokenizer: Any) -> None:
        self.origin_input_ids = array("q", body["input_ids"])
        self.output_ids = array("q")
        self.tokenizer = tokenizer
        self.kv = SimpleNamespace(kv_committed_len=0)
        self.to_finish: Abort | None = None
        self.processor: str | None = body.get("custom_logit_processor")
        own = body.get("sampling_params", {}).get("custom_params")
        self.params = own if own is None else own | {"__req__": self}


class Engine:
    """The order of calls of the scheduler, with random logits and greedy sampling.

    Requests that share a processor are taken out of the batch together, for each row that they
    have: one, or one for each of their drafts. With `overlap`, a step is sampled before the token
    of the last one is appended. A prompt in several chunks is sampled after each of them.
    """

    def __init__(self, *, overlap: bool = False, drafts: int = 1, chunks: int = 1) -> None:
        self.overlap, self.drafts, self.chunks = overlap, drafts, chunks
        self.random = torch.Generator().manual_seed(7)

    def run(self, requests: list[Request], steps: int) -> None:
        pending: list[tuple[Request, int]] = []
        for step in range(-self.chunks + 1, steps):
            for request in requests:
                length = len(request.origin_input_ids)
                request.kv.kv_committed_len = length // 2 if step < 0 else length + step
            live = [request for request in requests if request.to_finish is None]
            rows = self.sample(live) if live else []
            if not self.overlap:
                self.append(list(zip(live, rows, strict=True)) if step >= 0 else [])
                continue
            self.append(pending)
            pending = list(zip(live, rows, strict=True)) if step >= 0 else []
        self.append(pending)

    def append(self, tokens: list[tuple[Request, int]]) -> None:
        for request, token in tokens:
            request.output_ids.append(token)

    def sample(self, requests: list[Request]) -> list[int]:
        width = embedded().vocabulary.width + 5
        rows = len(requests) * self.drafts
        logits = torch.randn(rows, width, generator=self.random).to(torch.bfloat16)
        logits[:, embedded().vocabulary.width :] = -torch.inf
        logits[:, embedded().vocabulary.end_ids] = -torch.inf
        together: dict[str, list[int]] = {}
        for row, request in enumerate(requests):
            if request.processor is not None:
                together.setdefault(request.processor, []).append(row)
        for text, members in together.items():
            process = pickle.loads(bytes.fromhex(json.loads(text)["callable"]))()
            offsets = torch.arange(self.drafts)
            indices = (torch.tensor(members)[:, None] * self.drafts + offsets).flatten()
            params = [requests[row].params for row in members for _ in range(self.drafts)]
            chosen = logits.index_select(0, indices)
            result = process(chosen, params)
            assert result.shape == chosen.shape
            logits.index_copy_(0, indices, result.to(logits.dtype))
        return [int(row.argmax()) for row in logits[:: self.drafts]]


def requests_for(prompts: list[str], rule: Any = 2) -> list[Request]:
    asked = [heal_request(prompt, embedded().index, rule=rule) for prompt in prompts]
    bodies = [json.loads(json.dumps(request.body)) for request in asked]
    return [Request(body, embedded().tokenizer) for body in bodies]


@pytest.mark.parametrize("rule", ["auto", 1, 3, "off"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_completions_start_with_the_exact_prompt(rule: Any, chunks: int) -> None:
    requests = requests_for(PROMPTS, rule)
    requests.insert(2, Request({"input_ids": [1, 2]}, embedded().tokenizer))
    other = {"input_ids": [1], "sampling_params": {"custom_params": {"theirs": 3}}}
    requests.append(
        Request(other | {"custom_logit_processor": requests[0].processor}, embedded().tokenizer)
    )
    Engine(chunks=chunks).run(requests, steps=30)
    vocabulary = embedded().vocabulary
    for prompt, request in zip(PROMPTS, [r for r in requests[:5] if r.params], strict=True):
        whole = vocabulary.decode([*request.origin_input_ids, *request.output_ids])
        assert whole.startswith(prompt.encode())
        assert len(request.output_ids) == 30
        reader = heal_request(prompt, embedded().index, rule=rule).reader
        assert reader.healed.forced == bytes.fromhex(request.params[FORCED])  # type: ignore[index]
        assert reader.text(request.output_ids)


def test_the_overlap_schedule_is_refused_and_others_go_on(abort: None) -> None:
    requests = requests_for(["    raise ValueErr", "x = ["], rule=2)
    requests.append(Request({"input_ids": [1, 2]}, embedded().tokenizer))
    Engine(overlap=True).run(requests, steps=12)
    for request in requests[:2]:
        assert request.to_finish is not None
        assert "--disable-overlap-schedule" in request.to_finish.message
        assert request.to_finish.status_code == 400
        assert len(request.output_ids) <= 2  # the step in which it was seen still ends
    assert requests[2].to_finish is None
    assert len(requests[2].output_ids) == 12


def test_draft_rows_are_refused(abort: None) -> None:
    requests = requests_for(["    raise ValueErr", "import nump"], rule=2)
    Engine(drafts=4).run(requests, steps=1)
    for request in requests:
        assert request.to_finish is not None
        assert "speculative" in request.to_finish.message
    # Not once the text is reproduced.
    params = sglang_request(embedded(), b"de", [1, 2, 3])
    logits = torch.zeros(4, embedded().vocabulary.width)
    HealingLogitProcessor()(logits, [params] * 4)
    assert params["__req__"].to_finish is None
    assert not logits.isneginf().any()


def test_bad_requests_end_alone(abort: None, monkeypatch: pytest.MonkeyPatch) -> None:
    good = sglang_request(embedded(), b" Val", [])
    no_tokenizer = sglang_request(embedded(), b" Val", [])
    no_tokenizer["__req__"].tokenizer = None
    wrong = {
        "in hex": sglang_request(embedded(), b"", []) | {FORCED: "xyz"},
        "is 12": sglang_request(embedded(), b"", []) | {FORCED: 12},
        "--skip-tokenizer-init": no_tokenizer,
    }
    logits = torch.zeros(4, embedded().vocabulary.width)
    HealingLogitProcessor()(logits, [*wrong.values(), good])
    for sentence, params in wrong.items():
        assert sentence in params["__req__"].to_finish.message
    assert good["__req__"].to_finish is None
    assert not logits[:3].isneginf().any()
    assert logits[3].isneginf().any()
    # A model whose vocabulary is another one's.
    params = sglang_request(embedded(), b" Val", [])
    HealingLogitProcessor()(torch.zeros(1, 40), [params])
    assert "40 columns" in params["__req__"].to_finish.message


def test_without_an_engine_errors_are_raised() -> None:
    with pytest.raises(EngineError, match="no request"):
        HealingLogitProcessor()(torch.zeros(1, 9), [{FORCED: "20"}])
    with pytest.raises(CharwiseError, match="in hex"):
        HealingLogitProcessor()(torch.zeros(1, 9), [{FORCED: "no"}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_parameters_change_nothing(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 30).to(dtype)
    for params in (None, [], [None, None], [{"theirs": 1}, None]):
        result = HealingLogitProcessor()(logits.clone(), params)  # type: ignore[arg-type]
        assert torch.equal(bits(result), bits(logits))


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_structured_output_is_refused_where_something_is_forced(kind: str) -> None:
    """SGLang's grammar would see the forced text, and mask what it forbids of it."""
    index = embedded().index
    with pytest.raises(SettingError, match=f"{kind} is about the new .*b' ValueErr'.*rule='off'"):
        heal_request("raise ValueErr", index, sampling_params={kind: "or"})
    for options in ({"rule": "off"}, {}):
        prompt = "raise ValueErr" if options else [embedded().index.vocabulary.end_ids[0]]
        body, _ = heal_request(prompt, index, sampling_params={kind: "or"}, **options)
        assert body["sampling_params"][kind] == "or"


def test_the_request() -> None:
    index = embedded().index
    given = {"max_new_tokens": 5, "custom_params": {"theirs": 1}, "stop": ["V", "\n"]}
    body, reader = heal_request("    raise ValueErr", index, sampling_params=given)
    assert json.loads(json.dumps(body)) == body
    assert given["custom_params"] == {"theirs": 1}
    assert body["sampling_params"]["max_new_tokens"] == 5 + len(" ValueErr")
    assert (reader.bounds.max_tokens, reader.bounds.stop) == (5, (b"V", b"\n"))
    assert body["sampling_params"]["stop"] == ["\n"]  # the server would find "V" in " ValueErr"
    assert body["sampling_params"]["custom_params"]["theirs"] == 1
    forced = bytes.fromhex(body["sampling_params"]["custom_params"][FORCED])
    text = index.vocabulary.decode(body["input_ids"]) + forced
    assert text == b"    raise ValueErr"
    with pytest.raises(SettingError, match=FORCED):
        heal_request("a", index, sampling_params={"custom_params": {FORCED: ""}})
    for wrong in ({"max_new_tokens": "5"}, {"max_new_tokens": 0}, {"stop": [""]}, {"stop": 5}):
        with pytest.raises(SettingError, match=r"max_new_tokens|stop"):
            heal_request("a", index, sampling_params=wrong)
    with pytest.raises(SettingError, match="beam search"):
        heal_request("a", index, sampling_params={"beam_width": 4})
    assert heal_request("a", index, sampling_params={"beam_width": 1}).body
    with pytest.raises(SettingError, match="give a dict"):
        heal_request("a", index, sampling_params="greedy")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="SortedVocabulary"):
        heal_request("a", index.vocabulary)  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["pickle", "dill"])
def test_the_class_travels_by_name(library: str) -> None:
    """SGLang unpacks it with dill in a process of its own, and makes one object of it."""
    pytest.importorskip(library)
    code = f"""
import json, sys, {library}
cls = {library}.loads(bytes.fromhex(json.loads(sys.argv[1])["callable"]))
import torch
print(cls.__name__, cls()(torch.zeros(1, 2), [None]).tolist())
"""
    command = [sys.executable, "-c", code, HealingLogitProcessor.to_str()]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "HealingLogitProcessor [[0.0, 0.0]]"


@pytest.fixture
def server_code(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """How SGLang unpacks what a client sends: a function of its module, looked up at each call."""
    module = ModuleType("sglang.srt.sampling.custom_logit_processor")
    exec(
        """
import json, pickle

def _cache_from_str(text):
    return pickle.loads(bytes.fromhex(json.loads(text)["callable"]))

class CustomLogitProcessor:
    @classmethod
    def from_str(cls, text):
        return _cache_from_str(text)()
""",
        vars(module),
    )
    for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class Touch:
    """Strange code: it makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_server_may_load_our_processor_only(
    server_code: ModuleType,
    abort: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    path = tmp_path / "made by a client"
    strange = json.dumps({"callable": pickle.dumps(Touch(path)).hex()})
    load = server_code.CustomLogitProcessor.from_str
    monkeypatch.delenv(ONLY, raising=False)
    restrict()
    with pytest.raises(TypeError):  # not asked for: the server does what it always did
        load(strange)
    assert path.exists()
    path.unlink()
    monkeypatch.setenv(ONLY, "1")
    restrict()
    assert type(load(HealingLogitProcessor.to_str())) is HealingLogitProcessor
    params = sglang_request(embedded(), b" Val", [])
    logits = torch.zeros(1, 9)
    assert load(strange)(logits, [params, None]) is logits
    assert not path.exists()
    assert "charwise's logit processor only" in params["__req__"].to_finish.message


def test_a_server_that_cannot_be_restricted_ends(
    server_code: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang goes on after an `Exception` of a plug-in, and would run any code."""
    monkeypatch.setenv(ONLY, "1")
    del server_code._cache_from_str
    with pytest.raises(SystemExit, match=ONLY):
        restrict()


def test_the_page_on_sglang() -> None:
    """Its Python, with our engine in the place of the server."""
    page = Path(__file__).parents[2] / "docs" / "engines" / "sglang.md"
    first, second = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(first, names)
    request = Request(names["body"], embedded().tokenizer)
    Engine().run([request], steps=names["body"]["sampling_params"]["max_new_tokens"])
    names["answer"] = {"output_ids": list(request.output_ids)}
    exec(second, names)
    whole = embedded().vocabulary.decode([*request.origin_input_ids, *request.output_ids])
    assert whole.startswith(b"for i in rang" + names["completion"].encode()[:3])


def test_a_tokenizer_is_read_once_and_forgotten_with_it() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    model = Served(tokenizer, "")
    logits = torch.zeros(1, embedded().vocabulary.width)
    HealingLogitProcessor()(logits, [sglang_request(model, b" ", [])])
    known = adapter._decisions[tokenizer]
    HealingLogitProcessor()(logits, [sglang_request(model, b" ", [])])
    assert adapter._decisions[tokenizer] is known
    before = len(adapter._decisions)
    del tokenizer, model, known
    gc.collect()
    assert len(adapter._decisions) == before - 1
