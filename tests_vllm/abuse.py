"""What a server should survive: requests that are malformed, huge, without a key, or left.

    python tests_vllm/abuse.py                 # a server with the middleware
    python tests_vllm/abuse.py --plain         # one without it, to compare with

The script prints the worst latency of `/health`, asked every 10 ms by another process, while
requests of each kind come, eight at once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from server import MIDDLEWARE, NAMED, PROMPT, serving

KEY = "a key"
PATHS = ("/v1/completions", "/v1/chat/completions")

#: Values that the fields of a request cannot have.
WRONG: dict[str, list[Any]] = {
    "prompt": [None, "", [], {}, 7, [""], [[]], [["a"]], [-1], [[-1]], [10**9], [1.5], [True, "a"]],
    "max_tokens": [-1, -(10**9), 0.5, "many", [], {}, 10**6, 10**30, "9" * 5000],
    "min_tokens": [-1, 9, "few", {}, 10**12],
    "n": [0, -1, 1.5, "two", [], 300_000, 10**20],
    "stop": [7, [7], [""], {}, ["a"] * 5, [None]],
    "temperature": [-1, "warm", [], {}],
    "top_p": [-1, 2, "all"],
    "top_k": [-7, "all"],
    "logprobs": [-2, 10**6, "all"],
    "stream": ["perhaps", [], {}],
    "stream_options": [7, "usage", {"include_usage": True}],
    "vllm_xargs": [
        7,
        "auto",
        {"charwise_heal": "sometimes"},
        {"charwise_heal": -1},
        {"charwise_heal": {}},
        {"charwise_forced": "no"},
        {"charwise_forced": "20" * 4000},
        {"charwise_heel": "auto"},
    ],
    "seed": ["one", 10**30],
    "model": ["other", 7, []],
    "echo": ["perhaps", {}],
    "structured_outputs": [{"regex": "["}, {"json": "{"}, {"regex": "a", "choice": ["b"]}],
    "response_format": [7, {"type": "poem"}, {"type": "json_schema"}],
}

#: Bodies that are no request at all.
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"[" * 100_000,
    b'{"model": "tiny", "prompt": ' + b"[" * 100_000,
    b'{"model": "tiny", "prompt": ' + b"[" * 400 + b"]" * 400 + b"}",
    b'{"model": "tiny", "prompt": ' + b'{"a": ' * 50_000,
    b'{"model": "tiny", "prompt": "\xff\xfe"}',
    b'{"model": "tiny", "prompt": "a\\ud800"}',
    b'{"model": "tiny", "prompt": "a", "stop": "\\udfff"}',
    b'{"model": "tiny", "prompt": "a", "user": "\\ud800"}',
    b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    b"\x00\x01\x02",
    b'{"model": "tiny", "prompt": "a", "max_tokens": 8',
    b'{"model": "tiny", "prompt": "a", "max_tokens": }',
    b'{"model": "tiny", "prompt": [' + b" " * 2**20 + b"[-1]]}",
    b'{"continue_final_message": true',
    b'{"model": "tiny", "continue_final_message": true, "add_generation_prompt": false, '
    b'"messages": [{"role": "assistant", "content": "a"}], "max_completion_tokens": "many"}',
    b'{"continue_final_message": true, "messages": ' + b"[" * 100_000,
    b'{"continue_final_message": true, "messages": [{"role": "assistant", "content": "\\ud800"}]}',
    b'{"continue_final_message": true, "messages": 7}',
    b'{"continue_final_message": true, "messages": [], "vllm_xargs": {"charwise_heal": 1}}',
]


def body(**fields: Any) -> bytes:
    """A completion request with these fields."""
    return json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 8, **fields}).encode()


def malformed() -> list[bytes]:
    """A hundred bodies and more, none of which is a request."""
    return [body(**{name: value}) for name, values in WRONG.items() for value in values] + BODIES


def huge() -> list[bytes]:
    """Bodies that ask for far too much."""
    return [
        body(prompt="a b " * 1_250_000),
        body(n=300_000),
        body(prompt="a " * 20_000),  # as many characters as its window could hold
        body(prompt=[5] * 500_000),
        body(prompt=["a b " * 100] * 1_500),
        body(prompt=["x = 1\n" * 2_000] * 400),
        body(stop=["a" * 10] * 100_000),
        body(prompt="a " * 5_000_000),  # longer than what is read
        body(user="u" * 4_000_000, max_tokens=0.5),
    ]


def many() -> list[bytes]:
    """A list of prompts that a server takes, each of which is healed."""
    return [body(prompt=["for i in rang"] * 400, max_tokens=1)]


def send(url: httpx.URL, path: str, content: bytes, key: str | None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=300)
    try:
        connection.request("POST", path, content, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def leave(url: httpx.URL, content: bytes, key: str, after: float, share: float = 1.0) -> None:
    """Send a share of a request, and hang up after some seconds."""
    head = (
        f"POST {PATHS[0]} HTTP/1.1\r\nhost: {url.host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
    ).encode()
    with socket.create_connection((url.host, url.port or 80)) as connection:
        connection.sendall(head + content[: int(share * len(content))])
        time.sleep(after)


def departures(url: httpx.URL, key: str) -> list[Callable[[], None]]:
    """Clients that leave: in the middle of a body, before the answer, in its middle."""
    long = {"max_tokens": 300, "ignore_eos": True}
    exactly = {"vllm_xargs": {"charwise_heal": "exact"}}
    return [
        lambda after=after, share=share, fields=fields: leave(
            url, body(**long, **fields), key, after, share
        )
        for fields in ({}, {"stream": True}, {"prompt": [PROMPT] * 8}, {"n": 4}, exactly)
        for after, share in ((0.0, 0.5), (0.0, 1.0), (0.05, 1.0), (0.5, 1.0))
    ]


def watch(host: str, port: int, ready: Any, stop: Any, told: Any) -> None:
    """Ask `/health` every 10 ms until told to stop; tells latencies, and statuses but 200."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    latencies, bad = [], []
    ready.set()
    while not stop.is_set():
        begun = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        latencies.append(time.perf_counter() - begun)
        if response.status != 200:
            bad.append(response.status)
        time.sleep(0.01)
    told.put((latencies, bad))


class Watched:
    """`/health`, watched from another process: `latencies` in seconds, `bad` statuses."""

    def __init__(self, url: httpx.URL) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, self._stop, self._told = context.Event(), context.Event(), context.Queue()
        arguments = (url.host, url.port, self._ready, self._stop, self._told)
        self._process = context.Process(target=watch, args=arguments)

    def __enter__(self) -> Watched:
        self._process.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.latencies, self.bad = self._told.get()
        self._process.join()


def kinds(url: httpx.URL) -> Iterator[tuple[str, list[Callable[[], Any]]]]:
    """Names of kinds of requests, and calls that make them."""

    def sending(bodies: list[bytes], key: str | None, paths: tuple[str, ...] = PATHS[:1]) -> Any:
        return [
            lambda path=path, content=content: send(url, path, content, key)
            for content in bodies
            for path in paths
        ]

    yield "nothing else", [lambda: time.sleep(2)]
    yield "a completion of one token, 50 times", sending([body(max_tokens=1)] * 50, KEY)
    yield "malformed", sending(malformed(), KEY, PATHS)
    yield "huge", sending(huge(), KEY)
    yield "huge, without a key", sending(huge(), None)
    yield "clients that leave", departures(url, KEY)
    yield "a list of 400 prompts", sending(many(), KEY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plain", action="store_true", help="without the middleware")
    flags = (*NAMED, *(() if parser.parse_args().plain else MIDDLEWARE), "--api-key", KEY)
    with serving(*flags) as (client, _), ThreadPoolExecutor(8) as pool:
        url = client.base_url
        for name, calls in kinds(url):
            with Watched(url) as health:
                begun = time.perf_counter()
                found = [future.result() for future in [pool.submit(call) for call in calls]]
                seconds = time.perf_counter() - begun
            statuses = sorted({each[0] for each in found if isinstance(each, tuple)})
            worst = sorted(health.latencies)
            print(
                f"{name:36s} {len(calls):4d} calls {seconds:6.1f} s   /health worst "
                f"{1000 * worst[-1]:6.0f} ms, median {1000 * worst[len(worst) // 2]:4.0f} ms   "
                f"statuses {statuses}",
                flush=True,
            )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
