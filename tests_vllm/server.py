"""A vLLM server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from charwise.models import EMBEDDED
from conftest import ENGINE, ENVIRONMENT

#: A chat template; the model in the package knows none.
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


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
