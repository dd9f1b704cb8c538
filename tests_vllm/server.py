"""A vLLM server with the middleware, in a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from charwise.models import EMBEDDED
from conftest import ENGINE, ENVIRONMENT

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"

#: A chat template; the model in the package knows none.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)

#: Where no processor is named, V1 with asynchronous scheduling cannot heal.
NAMED = ("--logits-processors", "charwise.processors.vllm:HealingLogitsProcessor")

#: What vLLM serves without it is compared with what it serves with it.
MIDDLEWARE = ("--middleware", "charwise.processors.vllm.middleware.HealingMiddleware")


def start_server(
    *more: str, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], int]:
    """A server process, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags: list[str] = []
    for name, value in ENGINE.items():
        if name in ("distributed_executor_backend", "disable_log_stats"):
            continue
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [flag, str(value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", EMBEDDED]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.Popen(
        [*command, *flags, *more],
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ), port


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines of a process, until one contains the text, or the process ends."""
    lines: list[str] = []
    read_into(lines, process, text)
    return lines


def read_into(lines: list[str], process: subprocess.Popen[str], text: str = "\0") -> None:
    """Append the lines of a process, until one contains the text, or the process ends."""
    for line in process.stdout or ():
        lines.append(line)
        if text in line:
            break


@contextmanager
def serving(
    *more: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[httpx.Client, list[str]]]:
    """A client of a server that is ready, and the lines that the server writes."""
    process, port = start_server(*more, environment=environment)
    try:
        lines = read_until(process, "Application startup complete")
        assert process.poll() is None, "".join(lines[-40:])
        threading.Thread(target=read_into, args=(lines, process), daemon=True).start()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            yield client, lines
    finally:
        process.terminate()
        process.wait()


def ask(client: httpx.Client, prompt: Any = PROMPT, **fields: Any) -> httpx.Response:
    """A response to a completion request."""
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
    kind = {"content-type": "application/json"}  # vLLM reads no other
    return client.post("/v1/completions", content=json.dumps(body).encode(), headers=kind)


def post(client: httpx.Client, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    """The answer to a completion request that succeeds."""
    response = ask(client, prompt, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def stream(
    client: httpx.Client, prompt: Any = PROMPT, path: str = "/v1/completions", **fields: Any
) -> list[dict[str, Any]]:
    """The events of a stream."""
    body = {"model": "tiny", "temperature": 0, "max_tokens": 8, "stream": True}
    if path == "/v1/completions":
        body["prompt"] = prompt
    events = []
    with client.stream("POST", path, json=body | fields) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "x-charwise" in response.headers
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        events.append(json.loads(line.removeprefix("data: ")))
    return events


def told(events: list[dict[str, Any]]) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def text_of(answer: dict[str, Any]) -> str:
    """The text of the first choice."""
    return answer["choices"][0]["text"]
