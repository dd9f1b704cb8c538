"""`charwise gateway` before the real server of llama.cpp, with real models in float32.

`CHARWISE_PROMPTS` says how many of HumanEval's 164 prompts that end anywhere, by default 20.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import convert
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("xllamacpp")

from charwise import SortedVocabulary, heal_generate
from charwise.engines.pretrained import read_vocabulary
from charwise.gateway.app import connect
from charwise.healing import allowed_next, remaining
from charwise.healing.prompt import heal_characters
from charwise.healing.transformers import index_of
from charwise.models import EMBEDDED
from conftest import ROOT
from listening import listening, started

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"
SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx = sys.argv[1], int(sys.argv[2]), 2048
params.n_parallel, params.cpuparams.n_threads, params.n_gpu_layers = 2, 1, 0
server = xllamacpp.Server(params)
time.sleep(3600)
"""
#: Logits of two engines that are closer than this are a tie: which token wins is left open.
TIE = 0.05


def running(path: Path) -> AbstractContextManager[str]:
    """The address of a server with this model."""
    return started([sys.executable, "-c", SERVER, str(path), "PORT"])


@contextmanager
def before(behind: str, index: SortedVocabulary) -> Iterator[httpx.Client]:
    """A client of a gateway before the server at this address."""
    gateway = asyncio.run(connect(behind, lambda name: index))
    with listening(gateway) as address, httpx.Client(base_url=address, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def behind(embedded_file: Path) -> Iterator[str]:
    with running(embedded_file) as address:
        yield address


@pytest.fixture(scope="module")
def index() -> SortedVocabulary:
    return SortedVocabulary(read_vocabulary("embedded"))


@pytest.fixture(scope="module")
def client(behind: str, index: SortedVocabulary) -> Iterator[httpx.Client]:
    with before(behind, index) as client:
        yield client


def post(client: httpx.Client, path: str = "/completion", **fields: Any) -> dict[str, Any]:
    response = client.post(path, json={"temperature": 0, "n_predict": 6, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["x-charwise"].startswith("healed"), response.headers
    return response.json()


def test_greedy_tokens_are_the_best_allowed_ones(
    client: httpx.Client, behind: str, index: SortedVocabulary
) -> None:
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    code = Path(sys.modules["charwise.healing.forced"].__file__).read_text("utf-8")
    rng = random.Random(0)
    for end in [rng.randrange(200, len(code)) for _ in range(24)]:
        prompt = code[end - 200 : end]
        body = {"content": prompt, "add_special": True, "parse_special": True}
        ids = httpx.post(f"{behind}/tokenize", json=body).json()["tokens"]
        healed = heal_characters(ids, index)
        if not healed.forced:
            continue
        text = post(client, prompt=prompt)["content"]
        # The best allowed token at each step; where two tie, the one that the text has.
        written, generated = healed.forced + text.encode(), b""
        sofar: list[int] = []
        while len(generated) < len(healed.forced):
            left = remaining(healed.forced, sofar, index.vocabulary)
            allowed = torch.from_numpy(allowed_next(left or b"", index).copy())
            with torch.inference_mode():
                row = model(torch.tensor([healed.kept + sofar])).logits[0, -1]
            best = float(row[allowed].max())
            ties = [int(id) for id in allowed if best - float(row[id]) < TIE]
            fits = [
                id for id in ties if written.startswith(generated + index.vocabulary.tokens[id])
            ]
            assert fits, (prompt[-20:], text)
            sofar.append(max(fits, key=lambda id: float(row[id])))
            generated = index.vocabulary.decode(sofar)


def test_openais_form_streams_and_samples(client: httpx.Client) -> None:
    whole = post(client, "/v1/completions", prompt=[PROMPT, "for i in rang"])
    assert whole["choices"][0]["text"].startswith("or")
    assert whole["choices"][1]["text"].startswith("e")
    assert whole["usage"]["completion_tokens"] == 12
    body = {"prompt": PROMPT, "temperature": 0, "n_predict": 6, "stream": True}
    for path, marks in (("/v1/completions", 1), ("/completion", 0)):
        with client.stream("POST", path, json=body) as response:
            lines = [line for line in response.iter_lines() if line]
        events = [json.loads(line[6:]) for line in lines[: len(lines) - marks]]
        parts = [
            event["content"] if path == "/completion" else event["choices"][0]["text"]
            for event in events
            if path == "/completion" or event["choices"]
        ]
        assert "".join(parts) == whole["choices"][0]["text"]
    texts = post(client, "/v1/completions", prompt="x = ra", n=4, temperature=1.0, seed=1)
    assert len(texts["choices"]) == 4


def test_infill_heals_the_prefix(client: httpx.Client) -> None:
    sides = {"input_prefix": "def f():\n", "prompt": "    for i in rang", "input_suffix": ":\n"}
    answer = post(client, "/infill", **sides, input_extra=[{"filename": "a.py", "text": "x = 1\n"}])
    assert answer["content"].startswith("e")


@pytest.mark.skipif(not (ROOT / ".models" / "smollm2-135m").is_dir(), reason="make smollm2")
def test_the_server_writes_the_texts_of_heal_generate(files: Path, data: Any, capsys: Any) -> None:
    count, tokens = int(os.environ.get("CHARWISE_PROMPTS", "20")), 12
    lines = (data.folder / "prompts" / "humaneval_random_span_light.jsonl").read_text("utf-8")
    prompts = [json.loads(line)["prompt"] for line in lines.splitlines()][:count]
    folder = ROOT / ".models" / "smollm2-135m"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    path = convert.write_model(files / "smollm2.gguf", model, folder, pre="smollm")
    different = list[tuple[str, str, str]]()
    with running(path) as behind, before(behind, index_of(tokenizer, model)) as client:
        for prompt in prompts:
            body = {"prompt": prompt, "temperature": 0, "n_predict": tokens}
            text = client.post("/completion", json=body).json()["content"]
            # The server begins with no start token, where `heal_generate` of a text does.
            content = {"content": prompt, "add_special": True}
            ids = httpx.post(f"{behind}/tokenize", json=content).json()["tokens"]
            ask = {"max_new_tokens": tokens, "do_sample": False}
            [expected] = heal_generate(model, tokenizer, ids, **ask)
            if text != expected:
                different.append((prompt[-20:], text, expected))
    with capsys.disabled():
        print(f"\n{count - len(different)} of {count} texts are those of heal_generate")
    assert len(different) <= 0.1 * count, different  # ties
