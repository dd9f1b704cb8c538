"""What an operator sets and sees: the key, the environment, counters, the log, and abuse."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from abuse import KEY, PATHS, Watched, body, departures, huge, malformed, many, send
from server import MIDDLEWARE, NAMED, PROMPT, ask, serving

ASKED = {"vllm_xargs": {"charwise_heal": "auto"}}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[httpx.Client, list[str]]]:
    """A key of the command line, which wins over that of the environment; a log that tells all."""
    environment = {"VLLM_API_KEY": "another key", "VLLM_LOGGING_LEVEL": "DEBUG"}
    with serving(*NAMED, *MIDDLEWARE, "--api-key", KEY, environment=environment) as found:
        found[0].headers["authorization"] = f"Bearer {KEY}"
        yield found


@pytest.fixture
def client(served) -> httpx.Client:
    return served[0]


@pytest.fixture
def log(served) -> list[str]:
    return served[1]


def counters(client: httpx.Client) -> dict[str, float]:
    """Our counters in `/metrics`."""
    lines = client.get("/metrics").text.splitlines()
    found = [re.fullmatch(r"charwise:(\S+?)(\{.*\})? (\S+)", line) for line in lines]
    return {m[1] + (m[2] or ""): float(m[3]) for m in found if m and "created" not in m[1]}


def test_nothing_is_done_without_the_key(client):
    before = counters(client)
    for key in (None, "another key", "", KEY + "x"):
        for content in [body(), *huge()[:4]]:
            status, answer = send(client.base_url, PATHS[0], content, key)
            assert (status, json.loads(answer)) == (401, {"error": "Unauthorized"})
    assert counters(client) == before
    assert ask(client).headers["x-charwise"].startswith("healed")


def test_every_answer_tells_and_is_counted(client, log):
    before = counters(client)
    told = {
        "healed; given-back=2; forced=9": ask(client),
        "off; reason=asked": ask(client, vllm_xargs={"charwise_heal": "off"}),
        "off; reason=prompt_logprobs": ask(client, prompt_logprobs=1),
        "off; reason=refused": ask(client, vllm_xargs={"charwise_heal": "no"}),
        "off; reason=malformed": ask(client, max_tokens=-1),
        "off; reason=nothing-to-heal": ask(client, "<|endoftext|>"),
    }
    for header, response in told.items():
        assert response.headers["x-charwise"] == header
    several = ask(client, [PROMPT, PROMPT])
    assert several.headers["x-charwise"] == "healed; given-back=4; forced=18"
    after = counters(client)
    assert after["requests_healed_total"] == before["requests_healed_total"] + 2
    assert after["tokens_given_back_total"] == before["tokens_given_back_total"] + 6
    assert after["bytes_forced_total"] == before["bytes_forced_total"] + 27
    for reason in ("asked", "prompt_logprobs", "refused", "malformed", "nothing-to-heal"):
        name = f'requests_passed_total{{reason="{reason}"}}'
        assert after[name] == before.get(name, 0) + 1
    assert after["seconds_count"] == before["seconds_count"] + 7
    assert any("charwise: healed; given-back=2; forced=9; " in line for line in log)


def test_abuse_ends_in_clear_refusals(client, log):
    """And `/health` is answered all the while: how fast, `abuse.py` prints."""
    url = client.base_url
    assert len(malformed()) >= 100
    with Watched(url) as health, ThreadPoolExecutor(8) as pool:
        bodies = [(path, each) for each in [*malformed(), *huge()] for path in PATHS]
        answers = list(pool.map(lambda each: send(url, *each, KEY), bodies))
        list(pool.map(lambda call: call(), departures(url, KEY)))
        [(status, _)] = list(pool.map(lambda each: send(url, PATHS[0], each, KEY), many()))
    assert status == 200
    pairs = zip(bodies, answers, strict=True)
    odd = [(*sent, found) for sent, found in pairs if not 400 <= found[0] < 500]
    assert not [
        (path, content[-200:], status, answer[:300]) for path, content, (status, answer) in odd
    ]
    assert all(json.loads(answer) for _, answer in answers)
    assert health.latencies
    assert not health.bad
    assert ask(client).headers["x-charwise"].startswith("healed")
    # vLLM itself writes a traceback of what it refuses in a stream; nothing else may.
    assert not [line for line in log if line.startswith("ERROR") or "never retrieved" in line]


def test_clients_that_leave_are_not_served_on(client, log):
    running = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
    before = len(log)
    for departure in departures(client.base_url, KEY):
        departure()
    for _ in range(200):
        if float(running.search(client.get("/metrics").text)[1]) == 0:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the request of a client that left still runs")
    assert not [line for line in log[before:] if "Traceback" in line or "ERROR" in line]


def test_healing_on_request_for_some_models_with_two_servers():
    """Settings of the environment; counters add up over the processes of the API server."""
    environment = {
        "CHARWISE_HEAL": "request",
        "CHARWISE_MODELS": "ti*, other",
        "CHARWISE_MOST_FORCED": "20",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    flags = (*NAMED, *MIDDLEWARE, "--served-model-name", "tiny", "grand", "--api-server-count", "2")
    with serving(*flags, environment=environment) as (client, _):
        assert ask(client).headers["x-charwise"] == "off; reason=not-asked"
        assert ask(client, model="grand").headers["x-charwise"] == "off; reason=setting"
        refused = ask(client, model="grand", **ASKED)
        assert (refused.status_code, refused.headers["x-charwise"]) == (400, "off; reason=refused")
        assert "switched off for the model 'grand'" in refused.json()["error"]["message"]
        for fields in ({"vllm_xargs": {"charwise_heal": 12}}, {"vllm_xargs": {
            "charwise_forced": "20" * 21
        }}):  # fmt: skip
            long = ask(client, **fields)
            assert long.status_code == 400
            assert "at most 20 may be" in long.json()["error"]["message"]
        for _ in range(6):  # a connection each, so that both processes have their share
            with httpx.Client(base_url=client.base_url, timeout=300) as other:
                assert ask(other, **ASKED).headers["x-charwise"].startswith("healed")
        assert counters(client)["requests_healed_total"] == 6


def test_settings_that_say_nothing_stop_the_server():
    from server import read_until, start_server

    process, _ = start_server(*MIDDLEWARE, environment={"CHARWISE_HEAL": "yes"})
    try:
        lines = read_until(process, "\0")
        assert process.wait() != 0
        assert any("CHARWISE_HEAL is 'yes'" in line for line in lines), lines[-20:]
    finally:
        process.kill()
        process.wait()
