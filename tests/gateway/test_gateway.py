"""The gateway before a real server: texts, members, usage, streams, and what goes through."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import ModelError, SettingError
from charwise.gateway.app import connect
from charwise.gateway.relay import Relay
from charwise.gateway.server import recognize
from charwise.healing import allowed_next, cut, remaining
from charwise.healing.forced import HealedPrompt
from charwise.models import EMBEDDED
from listening import listening
from upstream import OWNERS, Upstream


class Pair(NamedTuple):
    """A gateway and the server behind it: clients of both, and the server's state."""

    client: httpx.Client
    plain: httpx.Client
    upstream: Upstream
    index: SortedVocabulary

    def post(self, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "temperature": 0, "max_tokens": 4, **fields}
        return self.client.post(path, json=body)

    def texts(self, **fields: Any) -> list[str]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        assert response.headers["x-charwise"].startswith("healed"), response.headers
        return [choice["text"] for choice in response.json()["choices"]]

    def reference(self, prompt: str, tokens: int) -> str:
        """Greedy text under the mask of `allowed_next`, in which forced tokens do not count."""
        ids = tuple(self.upstream.ids(prompt))
        return reference_of(self.upstream.model, self.index, ids, tokens)


@cache
def reference_of(model: Any, index: SortedVocabulary, prompt: tuple[int, ...], tokens: int) -> str:
    kept, forced = cut(list(prompt), index)
    ids: list[int] = []
    text = b""
    while tokens:
        with torch.inference_mode():
            row = model(torch.tensor([kept + ids])).logits[0, -1]
        rest = remaining(forced, ids, index.vocabulary)
        assert rest is not None
        allowed = torch.from_numpy(allowed_next(rest, index).copy())
        ids.append(int(allowed[row[allowed].argmax()]))
        beyond = index.vocabulary.decode(ids)[len(forced) :]
        tokens -= len(beyond) > len(text)
        text = beyond
    return text.decode("utf-8", "replace")


@contextmanager
def running(model: Any, index: SortedVocabulary, kind: str) -> Iterator[Pair]:
    upstream = Upstream(model, index.vocabulary, kind)
    with listening(upstream.app) as behind:
        gateway = asyncio.run(connect(behind, lambda name: index, seconds=300))
        with (
            listening(gateway) as front,
            httpx.Client(base_url=front, timeout=300) as client,
            httpx.Client(base_url=behind, timeout=300) as plain,
        ):
            yield Pair(client, plain, upstream, index)


@pytest.fixture(scope="session")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def index() -> SortedVocabulary:
    from charwise.engines.pretrained import read_vocabulary

    return SortedVocabulary(read_vocabulary("embedded"))


@pytest.fixture(scope="session")
def vllm(model: Any, index: SortedVocabulary) -> Iterator[Pair]:
    with running(model, index, "vllm") as pair:
        yield pair


@pytest.fixture(scope="session", params=["vllm", "sglang", "trtllm", "llama.cpp"])
def pair(request: pytest.FixtureRequest, model: Any, index: SortedVocabulary) -> Iterator[Pair]:
    with running(model, index, request.param) as pair:
        yield pair


@pytest.fixture(autouse=True)
def _reset(request: pytest.FixtureRequest) -> None:
    for name in ("vllm", "pair"):
        if name in request.fixturenames:
            upstream = request.getfixturevalue(name).upstream
            upstream.requests.clear()
            upstream.delay, upstream.forces, upstream.departures = 0.0, True, 0
            upstream.dies = upstream.garbles = False


PROMPTS = [
    "def check(value):\n    if value < 0:\n        raise ValueErr",
    "for i in rang",
    "import nump",
    "# naïv",
    "if a <",
    "class Foo(Bas",
    "x = [i for i in ran",
]


def events(pair: Pair, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "temperature": 0, "max_tokens": 4, "stream": True, **fields}
    with pair.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["x-charwise"].startswith("healed")
        lines = [line for line in response.iter_lines() if line]
    if path.startswith("/v1"):
        assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def choices_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for event in events for choice in event["choices"]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_texts_are_those_of_a_masked_reference(pair: Pair, prompt: str) -> None:
    assert pair.texts(prompt=prompt) == [pair.reference(prompt, 4)]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_the_expression_allows_what_healing_allows(index: SortedVocabulary, text: str) -> None:
    forced, vocabulary = text.encode(), index.vocabulary
    upstream = Upstream(None, vocabulary)
    matcher = upstream.matcher({"regex": HealedPrompt([0], forced, 1).regex()})
    expected = set()
    for id in allowed_next(forced, index).tolist():
        decoder = codecs.getincrementaldecoder("utf-8")()
        with suppress(UnicodeDecodeError):  # what follows the text is valid UTF-8
            decoder.decode(vocabulary.tokens[id])
            expected.add(id)
    assert set(np.flatnonzero(upstream.allowed(matcher)).tolist()) == expected


def test_the_second_request_is_the_clients_own_behind_the_member(vllm: Pair) -> None:
    vllm.texts(prompt=PROMPTS[0], presence_penalty=0.5, user="u", best=1)
    (_, first, _), (_, second, _) = vllm.upstream.requests
    assert first["structured_outputs"] == {"regex": " ValueErr(.|\\n)*"}
    assert first["presence_penalty"] == 0.5
    own = {"model": "tiny", "temperature": 0, "presence_penalty": 0.5, "user": "u", "best": 1}
    assert {name: second[name] for name in own} == own
    assert second["max_tokens"] == 3
    assert vllm.index.vocabulary.decode(second["prompt"]).decode() == PROMPTS[0] + "or"


def test_a_list_of_prompts_is_split_and_usage_counts_new_tokens(pair: Pair) -> None:
    answer = pair.post(prompt=PROMPTS[:3], max_tokens=3).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    for prompt, choice in zip(PROMPTS, answer["choices"], strict=False):
        assert choice["text"] == pair.reference(prompt, 3)
    own = [len(pair.upstream.ids(prompt)) for prompt in PROMPTS[:3]]
    assert answer["usage"]["prompt_tokens"] == sum(own)
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["total_tokens"] == sum(own) + 9


def test_each_draw_has_a_seed_of_its_own(pair: Pair) -> None:
    """Else the first token behind the member is drawn with the noise of the member's own."""
    before = len(pair.upstream.requests)
    pair.texts(prompt="x = ra", n=3, temperature=1.5, seed=5, max_tokens=4)
    bodies = [body for _, body, _ in pair.upstream.requests[before:]]
    seeds = [body.get("seed", (body.get("sampling_params") or {}).get("seed")) for body in bodies]
    used = [
        seed + copy
        for body, seed in zip(bodies, seeds, strict=True)
        if seed is not None
        for copy in range(body.get("n") or (body.get("sampling_params") or {}).get("n") or 1)
    ]
    assert len(used) >= 6
    assert len(set(used)) == len(used)


def test_samples_take_members_of_their_own(pair: Pair) -> None:
    texts = pair.texts(prompt="x = ra", n=8, temperature=1.5, seed=1, max_tokens=2)
    assert len(texts) == 8
    assert len(set(texts)) > 1
    firsts = [body for path, body, _ in pair.upstream.requests if "max_tokens" in body]
    prompts = {tuple(body["prompt"]) for body in firsts if "n" in body or body["max_tokens"] < 3}
    assert len(prompts) > 1  # the members differ


@pytest.mark.parametrize("most", [1, 2, 5])
def test_streams_tell_the_whole_answer(pair: Pair, most: int) -> None:
    whole = pair.post(prompt=PROMPTS[:2], max_tokens=most).json()
    options = {"include_usage": True}
    output = events(pair, prompt=PROMPTS[:2], max_tokens=most, stream_options=options)
    for index in range(2):
        parts = [one for one in choices_of(output) if one["index"] == index]
        assert "".join(one["text"] for one in parts) == whole["choices"][index]["text"]
        assert [one["finish_reason"] for one in parts if one["finish_reason"]] == ["length"]
    assert output[-1]["usage"] == whole["usage"]


def test_the_members_tokens_count_for_max_tokens(vllm: Pair) -> None:
    answer = vllm.post(prompt=PROMPTS[0], max_tokens=1, return_token_ids=True).json()
    assert answer["choices"][0]["text"] == "or"
    assert vllm.index.vocabulary.decode(answer["choices"][0]["token_ids"]) == b" ValueError"
    prompt = vllm.index.vocabulary.decode(answer["choices"][0]["prompt_token_ids"]).decode()
    assert PROMPTS[0] == prompt + " ValueErr"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        (["o"], "", "o"),  # in the member
        (["r(", "zz"], "o", "r("),  # begins in the member
        (["("], "or", "("),  # behind it
        (["rr", "Error"], None, None),  # begins in the prompt: no match
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(
    vllm: Pair, stop: list[str], text: str | None, found: Any, stream: bool
) -> None:
    if text is None:
        text = vllm.reference(PROMPTS[0], 4)
    if stream:
        choices = choices_of(events(vllm, prompt=PROMPTS[0], stop=stop))
    else:
        choices = vllm.post(prompt=PROMPTS[0], stop=stop).json()["choices"]
    assert "".join(one["text"] for one in choices) == text
    assert choices[-1]["finish_reason"] == ("length" if found is None else "stop")
    if found is not None:
        kept = vllm.texts(prompt=PROMPTS[0], stop=stop, include_stop_str_in_output=True)
        assert kept == [text + found]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_in_the_member_ends_the_work(vllm: Pair, stream: bool) -> None:
    """The server draws one token, which nobody sees; the usage counts the member's alone."""
    fields = {"prompt": PROMPTS[0], "stop": "o", "max_tokens": 40}
    if stream:
        *_, answer = events(vllm, **fields, stream_options={"include_usage": True})
    else:
        answer = vllm.post(**fields, logprobs=1, return_token_ids=True).json()
        [choice] = answer["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 1
    assert answer["usage"]["completion_tokens"] == 1
    assert vllm.upstream.requests[-1][1]["max_tokens"] == 1


def test_numbers_as_texts_are_healed_and_a_byte_order_mark_is_read(vllm: Pair) -> None:
    texts = vllm.texts(prompt=PROMPTS[0], max_tokens="3", n="2", seed="5", min_tokens="3")
    fields = {"model": "tiny", "temperature": 0, "prompt": PROMPTS[0]}
    body = json.dumps({**fields, "max_tokens": 3, "n": 2, "seed": 5, "min_tokens": 3})
    response = vllm.client.post("/v1/completions", content=codecs.BOM_UTF8 + body.encode())
    assert response.headers["x-charwise"].startswith("healed")
    assert [choice["text"] for choice in response.json()["choices"]] == texts


def test_logprobs_begin_with_the_members_token(vllm: Pair) -> None:
    output = vllm.post(prompt=PROMPTS[0], logprobs=1, max_tokens=3).json()["choices"][0]
    logprobs = output["logprobs"]
    assert "".join(logprobs["tokens"]) == output["text"]
    assert logprobs["tokens"][0] == "or"
    assert logprobs["text_offset"] == [0, 2, 2 + len(logprobs["tokens"][1])]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 3
    streamed = events(vllm, prompt=PROMPTS[0], logprobs=1, max_tokens=3)
    parts = [one["logprobs"]["tokens"] for one in choices_of(streamed)]
    assert [token for part in parts for token in part] == logprobs["tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_in_its_last_message(vllm: Pair, stream: bool) -> None:
    messages = [{"role": "user", "content": "hi\n"}, {"role": "assistant", "content": PROMPTS[0]}]
    fields = {"messages": messages, "continue_final_message": True, "logprobs": True}
    fields |= {"add_generation_prompt": False, "max_tokens": 3}
    if stream:
        output = choices_of(events(vllm, "/v1/chat/completions", **fields))
        text = "".join(one["delta"]["content"] for one in output)
        tokens = [one["token"] for each in output for one in each["logprobs"]["content"]]
    else:
        [choice] = vllm.post("/v1/chat/completions", **fields).json()["choices"]
        text = choice["message"]["content"]
        tokens = [one["token"] for one in choice["logprobs"]["content"]]
    assert text.startswith("or")
    assert "".join(tokens) == text
    assert vllm.upstream.requests[-1][1]["messages"] == messages


def test_llama_cpps_own_form(model: Any, index: SortedVocabulary) -> None:
    with running(model, index, "llama.cpp") as pair:
        body = {"prompt": PROMPTS[0], "n_predict": 3, "temperature": 0, "return_tokens": True}
        response = pair.client.post("/completion", json=body)
        answer = response.json()
        assert response.headers["x-charwise"] == "healed; removed-tokens=2; forced-bytes=9"
        assert answer["content"] == pair.reference(PROMPTS[0], 3)
        assert (answer["tokens_predicted"], len(answer["tokens"])) == (3, 3)
        assert answer["tokens_evaluated"] == len(pair.upstream.ids(PROMPTS[0]))
        assert b'"content":"' in response.content  # llama.vim looks for it
        biased = {**body, "prompt": "if a <", "logit_bias": [[5, 1.0]]}
        assert "healed" in pair.client.post("/completion", json=biased).headers["x-charwise"]
        output = events(pair, "/completion", **body)
        assert "".join(one["content"] for one in output) == answer["content"]
        assert output[-1]["tokens_predicted"] == 3
        sides = {"input_prefix": "def f():\n", "prompt": "    retur", "input_suffix": "\n"}
        extra = [{"filename": "a.py", "text": "x = 1\n"}]
        infill = pair.client.post("/infill", json={**sides, "n_predict": 3, "input_extra": extra})
        assert infill.headers["x-charwise"].startswith(("healed", "off; reason=template"))


#: What a client sends → the header of the answer; the body goes through as it came.
UNFIT = {
    "asked": {"token_healing": False},
    "nothing-to-heal": {"prompt": "x"},
    "prompt": {"prompt": [1, 2, 3]},
    "too-long": {"prompt": " " * 8000},
    "grammar": {"structured_outputs": {"regex": "[a-z]+"}},
    "suffix": {"suffix": "x"},
    "max_tokens": {"max_tokens": 0},
    "nul": {"prompt": "a\0", "token_healing": 1},
    "n": {"n": 65, "max_tokens": 1},
    "several": {"prompt": [PROMPTS[0]] * 3, "n": 30, "max_tokens": 1},
    "refused": {"model": "other"},
    "echo": {"echo": True},
    "stop": {"stop": [5]},
    "logit_bias": {"logit_bias": 5},
    "min_tokens": {"min_tokens": "x"},
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_cannot_be_healed_goes_through_with_a_reason(vllm: Pair, reason: str) -> None:
    fields = {"prompt": PROMPTS[0], **UNFIT[reason]}
    response = vllm.post(**fields)
    assert response.headers["x-charwise"] == f"off; reason={reason}"
    body = vllm.upstream.requests[-1][1]
    assert body == {"model": "tiny", "temperature": 0, "max_tokens": 4} | {
        name: value for name, value in fields.items() if name != "token_healing"
    }
    assert (response.status_code == 404) == (reason == "refused")


def test_a_server_that_stops_forcing_is_found_out(vllm: Pair) -> None:
    vllm.upstream.forces = False
    response = vllm.post(prompt="zzzq")
    assert response.headers["x-charwise"] == "off; reason=not-forced"
    assert response.status_code == 200


#: A request → the status and the field of the answer; None where the server itself answers.
BAD: list[tuple[Any, int, str | None]] = [
    ({"prompt": PROMPTS[0], "token_healing": "sentence"}, 400, "token_healing"),
    ({"prompt": PROMPTS[0], "token_healing": 1.5}, 400, "token_healing"),
    ({"prompt": PROMPTS[0], "token_healing": -1}, 400, "token_healing"),
    (b"[1", 500, None),
    (b"[]", 500, None),
    (b"\xff", 500, None),
    (b"[" * 5000, 500, None),
    (b'{"prompt": "\\ud800"}', 500, None),
]


@pytest.mark.parametrize(("body", "status", "field"), BAD)
def test_bad_input(vllm: Pair, body: Any, status: int, field: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = vllm.client.post("/v1/completions", content=content)
    assert response.status_code == status
    if field is not None:
        assert response.json()["error"]["param"] == field
        assert response.headers["x-charwise"] == "off; reason=token_healing"
    else:
        assert response.headers["x-charwise"] == "off; reason=malformed"
        assert response.content == vllm.plain.post("/v1/completions", content=content).content


def test_all_else_goes_through_untouched(vllm: Pair) -> None:
    body = bytes(range(256)) * 40_000
    response = vllm.client.post("/anything?q=1&r=%20", content=body)
    assert response.content == body
    assert response.headers["x-query"] == "q=1&r=%20"
    assert "x-charwise" not in response.headers
    assert vllm.client.get("/nowhere").status_code == 404
    assert vllm.client.post("/anything", content=bytes(2**26 + 1)).status_code == 413
    assert vllm.client.get("/v1/models").json() == vllm.plain.get("/v1/models").json()


def test_keys_reach_the_server_in_both_requests(vllm: Pair) -> None:
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 2}
    vllm.client.post("/v1/completions", json=body, headers={"authorization": "Bearer k"})
    assert [headers["authorization"] for _, _, headers in vllm.upstream.requests] == [
        "Bearer k"
    ] * 2


def test_metrics_count_outcomes(vllm: Pair) -> None:
    vllm.post(prompt=PROMPTS[0])
    text = vllm.client.get("/metrics").text
    assert "up 1\n" in text
    assert 'charwise_gateway_requests_total{outcome="healed"}' in text


def test_a_control_token_in_the_prompt_stays_one(vllm: Pair) -> None:
    name = next(name for name in vllm.index.vocabulary.special.values() if name)
    texts = vllm.texts(prompt=f"{name}{PROMPTS[1]}")
    assert texts[0].startswith("e")
    ids = {id for id, text in vllm.index.vocabulary.special.items() if text == name}
    assert vllm.upstream.requests[-1][1]["prompt"][0] in ids


def test_control_tokens_spelled_like_the_forced_text_are_banned(vllm: Pair) -> None:
    vllm.texts(prompt="if a <")
    names = vllm.index.vocabulary.special
    banned = {names[int(id)] for id in vllm.upstream.requests[0][1]["logit_bias"]}
    assert banned == {name for name in names.values() if name.startswith("<")}


def test_a_client_that_leaves_ends_the_request_behind(vllm: Pair) -> None:
    vllm.upstream.delay = 0.2
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 500}
    with pytest.raises(httpx.ReadTimeout):
        vllm.client.post("/v1/completions", json=body, timeout=0.7)
    until = time.monotonic() + 60
    while not vllm.upstream.departures and time.monotonic() < until:
        time.sleep(0.05)
    assert vllm.upstream.departures == 1


def test_many_clients_that_stall_leave_and_send_nonsense(vllm: Pair) -> None:
    expected = {prompt: [vllm.reference(prompt, 4)] for prompt in PROMPTS}
    port = vllm.client.base_url.port
    body = json.dumps({"model": "tiny", "prompt": PROMPTS[0], "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)

    def ask(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        if number % 4 == 0:
            nonsense = vllm.client.post("/v1/completions", content=b"{" * number)
            assert nonsense.headers["x-charwise"] == "off; reason=malformed"
        elif number % 4 == 1:  # it leaves, in its request or in the answer
            with socket.create_connection(("127.0.0.1", port)) as leaves:
                leaves.sendall((head + body)[: None if number % 8 == 1 else -5])
                if number % 8 == 1:
                    leaves.recv(1)
        else:
            assert vllm.texts(prompt=prompt) == expected[prompt]

    with socket.create_connection(("127.0.0.1", port)) as stalls, ThreadPoolExecutor(24) as pool:
        stalls.sendall(head + body[:5])  # until all others are answered
        list(pool.map(ask, range(24)))


@pytest.mark.parametrize("kind", OWNERS)
def test_it_learns_the_tokenizer_and_the_window(
    model: Any, index: SortedVocabulary, kind: str
) -> None:
    async def ask(address: str) -> Any:
        relay = Relay(address)
        try:
            return await recognize(relay, "auto")
        finally:
            await relay.close()

    with listening(Upstream(model, index.vocabulary, kind).app) as address:
        found, about = asyncio.run(ask(address))
    assert (found.name, about) == (kind, {"model": "tiny", "tokenizer": "embedded", "window": 99})


def test_it_refuses_to_start(model: Any, index: SortedVocabulary) -> None:
    other = SortedVocabulary(Vocabulary.from_bytes([bytes([byte]) for byte in range(256)]))
    with pytest.raises(ModelError, match="no server answers at http://127"):
        asyncio.run(connect("http://127.0.0.1:9", lambda name: index))
    for address in ("localhost:8000", "http://", "http://[::1", "http://a:99999", "ftp://a:80"):
        with pytest.raises(SettingError, match="give http://HOST:PORT"):
            asyncio.run(connect(address, lambda name: index))
    for kind in ("vllm", "trtllm"):
        upstream = Upstream(model, index.vocabulary, kind)
        with listening(upstream.app) as address:
            with pytest.raises(SettingError, match="another tokenizer"):
                asyncio.run(connect(address, lambda name: other))
            upstream.forces = False
            with pytest.raises(ModelError, match="does not force a text"):
                asyncio.run(connect(address, lambda name: index))
            upstream.delay = 0.4
            with pytest.raises(ModelError, match="no server answers at http://127"):
                asyncio.run(connect(address, lambda name: index, seconds=0.2))


@pytest.mark.parametrize("canonical", [False, True])
def test_a_server_that_forces_one_tokenization_is_named(
    model: Any, index: SortedVocabulary, canonical: bool, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream(model, index.vocabulary)
    upstream.canonical = canonical
    with listening(upstream.app) as address:
        asyncio.run(connect(address, lambda name: index))
    assert ("one tokenization" in caplog.text) == canonical


def test_a_connection_that_breaks_before_the_answer_is_replaced_once() -> None:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(number := len(connections))
        for request in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2 if head.startswith(b"POST") else 0)
            if request == 0 and number != 2:  # what is idle breaks, and so does the third
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                continue
            break
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            relay = Relay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert await relay.ask("/a", body={}) == (200, {})
            assert await relay.ask("/a", body={}) == (200, {})
            assert len(connections) == 2
            with pytest.raises(httpx.HTTPError):  # twice is too often
                await relay.ask("/a", body={})
            assert len(connections) == 3
            assert await relay.ask("/a") == (200, {})
            await relay.close()

    asyncio.run(ask())


def test_a_server_that_is_gone_is_a_502(model: Any, index: SortedVocabulary) -> None:
    upstream = Upstream(model, index.vocabulary)
    with listening(upstream.app) as address:
        gateway = asyncio.run(connect(address, lambda name: index))
    with listening(gateway) as front:
        for path, prompt, reason in (
            ("/v1/completions", PROMPTS[0], "off; reason=unanswered"),
            ("/v1/completions", "x", "off; reason=nothing-to-heal"),
            ("/v1//completions", PROMPTS[0], "off; reason=endpoint"),
            ("/anything", PROMPTS[0], None),
        ):
            response = httpx.post(front + path, json={"prompt": prompt})
            assert response.status_code == 502
            assert "cannot be reached" in response.json()["error"]["message"]
            assert response.headers.get("x-charwise") == reason


def test_a_server_that_answers_no_json_is_a_502(vllm: Pair) -> None:
    vllm.upstream.garbles = True
    for stream in (False, True):
        response = vllm.post(prompt=PROMPTS[0], stream=stream)
        assert "JSON" in response.text
        assert response.status_code == (200 if stream else 502)
        assert "x-charwise" in response.headers


def test_a_server_that_dies_in_a_stream_is_an_error_event(vllm: Pair) -> None:
    vllm.upstream.dies = True
    response = vllm.post(prompt=PROMPTS[0], stream=True)
    first, last = re.findall(r"^data: (.*)$", response.text, re.M)
    assert json.loads(first)["choices"]
    assert "cannot be reached" in json.loads(last)["error"]["message"]


def test_a_server_that_is_silent_is_a_504(vllm: Pair) -> None:
    vllm.upstream.delay = 3.0
    relay = Relay(str(vllm.plain.base_url), 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await relay(scope, receive, send, b'{"prompt": "a"}')

    with listening(app, lifespan="off") as front:
        response = httpx.post(f"{front}/v1/completions", json={"prompt": "a"}, timeout=300)
    assert response.status_code == 504
