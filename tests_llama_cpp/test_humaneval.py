"""HumanEval's prompts that end anywhere, on SmolLM2, through the gateway before llama.cpp's server.

`CHARWISE_PROMPTS` says how many of the 164 prompts, by default 20.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import convert
import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from charwise import heal_generate
from charwise.gateway.app import connect
from charwise.healing.transformers import index_of
from conftest import ROOT
from listening import listening
from test_gateway import running

FOLDER = ROOT / ".models" / "smollm2-135m"
TOKENS = 12


@pytest.mark.skipif(not FOLDER.is_dir(), reason="make smollm2")
def test_the_server_writes_the_texts_of_heal_generate(files: Path, data: Any, capsys: Any) -> None:
    count = int(os.environ.get("CHARWISE_PROMPTS", "20"))
    lines = (data.folder / "prompts" / "humaneval_random_span_light.jsonl").read_text("utf-8")
    prompts = [json.loads(line)["prompt"] for line in lines.splitlines()][:count]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    path = convert.write_model(files / "smollm2.gguf", model, FOLDER, pre="smollm")
    index, different = index_of(tokenizer, model), list[tuple[str, str, str]]()
    with running(path) as behind:
        gateway = asyncio.run(connect(behind, lambda name: index))
        with listening(gateway) as address, httpx.Client(base_url=address, timeout=300) as client:
            for prompt in prompts:
                body = {"prompt": prompt, "temperature": 0, "n_predict": TOKENS}
                answer = client.post("/completion", json=body)
                assert answer.status_code == 200, answer.text
                # The server begins with no start token, where `heal_generate` of a text does.
                content = {"content": prompt, "add_special": True}
                ids = httpx.post(f"{behind}/tokenize", json=content).json()["tokens"]
                [expected] = heal_generate(
                    model, tokenizer, ids, max_new_tokens=TOKENS, do_sample=False
                )
                if answer.json()["content"] != expected:
                    different.append((prompt[-20:], answer.json()["content"], expected))
    with capsys.disabled():
        print(f"\n{count - len(different)} of {count} texts are those of heal_generate")
    assert len(different) <= 0.1 * count, different  # ties
