"""`charwise gateway` before a real vLLM server: greedy texts, streams, chats, control tokens."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from charwise.engines.pretrained import read_vocabulary
from charwise.gateway.app import connect
from charwise.healing.prompt import heal_characters
from charwise.models import EMBEDDED
from charwise.tokens.index import SortedVocabulary
from conftest import ENGINE, ENVIRONMENT, TIE, Reference, code_prompts
from listening import listening, started

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"
#: The model in the package knows none.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def command(*flags: str) -> list[str]:
    """The command of vLLM's server."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(EMBEDDED)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "PORT", *flags]
    for name, value in ENGINE.items():
        if name not in ("distributed_executor_backend", "disable_log_stats"):
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
    return command


@pytest.fixture(scope="module", params=["plain", "n-gram speculation"])
def client(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[httpx.Client]:
    template = tmp_path_factory.mktemp("chat") / "chat.jinja"
    template.write_text(TEMPLATE)
    flags = ["--chat-template", str(template)]
    if request.param != "plain":
        flags += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    with ExitStack() as stack:
        behind = stack.enter_context(started(command(*flags), **ENVIRONMENT))
        gateway = asyncio.run(connect(behind, lambda name: SortedVocabulary(read_vocabulary(name))))
        address = stack.enter_context(listening(gateway))
        yield stack.enter_context(httpx.Client(base_url=address, timeout=300))


def ask(client: httpx.Client, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "temperature": 0, "max_tokens": 8, **fields}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def test_greedy_tokens_are_the_best_allowed_ones(
    client: httpx.Client, reference: Reference
) -> None:
    tokenize = reference.tokenizer.backend_tokenizer.encode
    for prompt in code_prompts(24):
        response = ask(client, prompt=prompt, max_tokens=12, return_token_ids=True)
        [choice] = response.json()["choices"]
        healed = heal_characters(tokenize(prompt).ids, reference.index)
        if not healed.forced:
            assert response.headers["x-charwise"] == "off; reason=nothing-to-heal"
            continue
        assert response.headers["x-charwise"].startswith("healed")
        ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
        assert ids[: len(healed.kept)] == healed.kept
        gaps = reference.gaps(healed.kept, healed.forced, ids[len(healed.kept) :])
        assert max(gaps) < TIE
        written = reference.index.vocabulary.decode(ids[len(healed.kept) :])
        assert written == healed.forced + choice["text"].encode()


def test_streams_samples_logprobs_and_usage(client: httpx.Client) -> None:
    whole = ask(client, prompt=[PROMPT, "for i in rang"], logprobs=1).json()
    body = {"model": "tiny", "prompt": [PROMPT, "for i in rang"], "temperature": 0}
    body |= {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    for index in range(2):
        parts = [one for event in events for one in event["choices"] if one["index"] == index]
        assert "".join(one["text"] for one in parts) == whole["choices"][index]["text"]
        told = whole["choices"][index]["logprobs"]
        assert "".join(told["tokens"]) == whole["choices"][index]["text"]
        assert len(told["token_logprobs"]) == 8
    usage = {name: events[-1]["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    assert usage == {name: whole["usage"][name] for name in usage}
    assert usage["completion_tokens"] == 16
    texts = ask(client, prompt="x = ra", n=8, temperature=1.5, seed=1).json()["choices"]
    assert [one["index"] for one in texts] == list(range(8))


def test_a_chat_goes_on_in_its_last_message(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "import nump"}]
    fields = {"messages": messages, "add_generation_prompt": False, "logprobs": True}
    fields |= {"continue_final_message": True}
    response = ask(client, "/v1/chat/completions", **fields)
    assert response.headers["x-charwise"].startswith("healed")
    [choice] = response.json()["choices"]
    told = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert told == choice["message"]["content"]
    response = ask(client, "/v1/chat/completions", messages=messages[:1])
    assert response.headers["x-charwise"] == "off; reason=chat"


def test_control_tokens_do_not_pass_for_text(client: httpx.Client, reference: Reference) -> None:
    for prompt in ("if a <", "x = '<|", "print('<|fim"):
        response = ask(client, prompt=prompt, token_healing=1, return_token_ids=True)
        if response.headers["x-charwise"].startswith("healed"):
            [choice] = response.json()["choices"]
            ids = choice["prompt_token_ids"]
            assert all(reference.index.vocabulary.tokens[id] is not None for id in ids)


def test_the_server_says_itself_what_is_wrong(client: httpx.Client) -> None:
    for fields, status in (({"model": "other"}, 404), ({"temperature": -1}, 400)):
        response = client.post("/v1/completions", json={"model": "tiny", "prompt": PROMPT} | fields)
        assert response.status_code == status
        assert response.headers["x-charwise"] == "off; reason=refused"
