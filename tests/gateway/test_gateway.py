"""The gateway before a real server: texts, members, usage, streams, and what goes through."""

import asyncio
import codecs
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import ModelError, SettingError
from charwise.gateway.app import connect
from charwise.gateway.relay import Relay
from charwise.gateway.server import recognize
from charwise.healing import allowed_next
from charwise.healing.continuation import Bounds
from charwise.healing.forced import HealedPrompt
from charwise.models import EMBEDDED
from listening import listening
from masked import greedy_text
from upstream import OWNERS, Upstream

V1, CHAT = "/v1/completions", "/v1/chat/completions"
RAISE = "def check(value):\n    if value < 0:\n        raise ValueErr"
PROMPTS = [
    *(RAISE, "for i in rang", "import nump", "# naïv", "if a <", "class Foo(Bas"),
    "x = [i for i in ran",
]
STREAMED = pytest.mark.parametrize("stream", [False, True])


class Pair(NamedTuple):
    """A gateway and the server behind it: clients of both, and the server's state."""

    client: httpx.Client
    plain: httpx.Client
    upstream: Upstream
    index: SortedVocabulary

    def post(self, path: str = V1, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "temperature": 0, "max_tokens": 4, **fields}
        return self.client.post(path, json=body)

    def healed(self, path: str = V1, **fields: Any) -> dict[str, Any]:
        response = self.post(path, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["x-charwise"].startswith("healed"), response.headers
        return response.json()

    def choices(self, path: str = V1, stream: bool = False, **fields: Any) -> list[dict[str, Any]]:
        """The choices of an answer, or their parts."""
        answers = (self.events if stream else lambda *a, **f: [self.healed(*a, **f)])(
            path, **fields
        )
        return [choice for answer in answers for choice in answer["choices"]]

    def texts(self, **fields: Any) -> list[str]:
        return [choice["text"] for choice in self.choices(**fields)]

    def events(self, path: str = V1, **fields: Any) -> list[dict[str, Any]]:
        response = self.post(path, stream=True, **fields)
        assert response.headers["x-charwise"].startswith("healed"), response.text
        lines = [line for line in response.text.splitlines() if line]
        if path.startswith("/v1"):
            assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def decode(self, ids: list[int]) -> str:
        return self.index.vocabulary.decode(ids).decode()

    def reference(self, prompt: str, tokens: int) -> str:
        """Greedy text under the mask of `allowed_next`, in which forced tokens do not count."""
        return reference_of(self, prompt, tokens)


@cache
def reference_of(pair: Pair, prompt: str, tokens: int) -> str:
    ids, bounds = pair.upstream.ids(prompt), Bounds(max_tokens=tokens)
    return greedy_text(pair.upstream.model, pair.index, ids, bounds, tokens)


@pytest.fixture(scope="session")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def index() -> SortedVocabulary:
    return SortedVocabulary(read_vocabulary("embedded"))


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
def pairs(model: Any, index: SortedVocabulary) -> Iterator[Any]:
    """Each kind of server once."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(running(model, index, kind)))


@pytest.fixture(params=["vllm", "sglang", "trtllm", "llama.cpp"])
def pair(request: pytest.FixtureRequest, pairs: Any) -> Pair:
    return reset(pairs(request.param))


@pytest.fixture
def vllm(pairs: Any) -> Pair:
    return reset(pairs("vllm"))


def reset(pair: Pair) -> Pair:
    pair.upstream.requests.clear()
    pair.upstream.delay, pair.upstream.forces, pair.upstream.departures = 0.0, True, 0
    pair.upstream.dies = pair.upstream.garbles = False
    return pair


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
    own = {"model": "tiny", "temperature": 0, "presence_penalty": 0.5, "user": "u", "best": 1}
    body = {"prompt": RAISE, "max_tokens": 4, "min_tokens": 2, **own}
    vllm.client.post(V1, json=body, headers={"authorization": "Bearer k"})
    (_, first, keys), (_, second, again) = vllm.upstream.requests
    assert first["structured_outputs"] == {"regex": " ValueErr(.|\\n)*"}
    assert first["presence_penalty"] == 0.5
    assert {name: second[name] for name in own} == own
    assert (second["max_tokens"], second["min_tokens"]) == (3, 1)
    assert vllm.decode(second["prompt"]) == RAISE + "or"
    assert keys["authorization"] == again["authorization"] == "Bearer k"


def test_a_list_of_prompts_is_split_and_usage_counts_new_tokens(pair: Pair) -> None:
    answer = pair.healed(prompt=PROMPTS[:3], max_tokens=3)
    texts = [(choice["index"], choice["text"]) for choice in answer["choices"]]
    assert texts == [(at, pair.reference(PROMPTS[at], 3)) for at in range(3)]
    own = sum(len(pair.upstream.ids(prompt)) for prompt in PROMPTS[:3])
    counts = {"prompt_tokens": own, "completion_tokens": 9, "total_tokens": own + 9}
    assert answer["usage"] == answer["usage"] | counts


def test_samples_have_members_and_seeds_of_their_own(pair: Pair) -> None:
    """Else the first token behind the member is drawn with the noise of the member's own."""
    texts = pair.texts(prompt="x = ra", n=8, temperature=1.5, seed=5, max_tokens=2)
    assert len(texts) == 8
    assert len(set(texts)) > 1
    bodies = [body for _, body, _ in pair.upstream.requests]
    at = next(n for n, body in enumerate(bodies) if body.get("max_tokens") in (1, 2))
    first, second = (
        [
            body["seed"] + copy
            for body in (each.get("sampling_params") or each for each in part)
            for copy in range(body.get("n") or 1)
            if body.get("seed") is not None
        ]
        for part in (bodies[:at], bodies[at:])
    )
    assert not set(first) & set(second)
    assert len(set(first)) == len(first)
    assert len({tuple(body["prompt"]) for body in bodies[at:]}) > 1  # the members differ


@pytest.mark.parametrize("most", [1, 2, 5])
def test_streams_tell_the_whole_answer(pair: Pair, most: int) -> None:
    whole = pair.healed(prompt=PROMPTS[:2], max_tokens=most)
    options = {"include_usage": True}
    output = pair.events(prompt=PROMPTS[:2], max_tokens=most, stream_options=options)
    parts = [choice for event in output for choice in event["choices"]]
    for index in range(2):
        own = [part for part in parts if part["index"] == index]
        assert "".join(part["text"] for part in own) == whole["choices"][index]["text"]
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == ["length"]
    assert output[-1]["usage"] == whole["usage"]


def test_token_ids_and_logprobs_begin_with_the_members(vllm: Pair) -> None:
    answer = vllm.healed(prompt=RAISE, max_tokens=1, return_token_ids=True)
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("or", "length")
    assert vllm.decode(choice["token_ids"]) == " ValueError"
    assert vllm.decode(choice["prompt_token_ids"]) + " ValueErr" == RAISE
    assert answer["usage"]["completion_tokens"] == 1
    [output] = vllm.choices(prompt=RAISE, logprobs=1, max_tokens=3)
    logprobs, tokens = output["logprobs"], output["logprobs"]["tokens"]
    assert "".join(tokens) == output["text"]
    assert tokens[0] == "or"
    assert logprobs["text_offset"] == [0, 2, 2 + len(tokens[1])]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 3
    streamed = vllm.choices(prompt=RAISE, logprobs=1, max_tokens=3, stream=True)
    assert [token for part in streamed for token in part["logprobs"]["tokens"]] == tokens


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        (["o"], "", "o"),  # in the member
        (["r(", "zz"], "o", "r("),  # begins in the member
        (["("], "or", "("),  # behind it
        (["rr", "Error"], None, None),  # begins in the prompt: no match
    ],
)
@STREAMED
def test_stop_strings_end_a_text(
    vllm: Pair, stop: list[str], text: str | None, found: Any, stream: bool
) -> None:
    text = vllm.reference(RAISE, 4) if text is None else text
    choices = vllm.choices(prompt=RAISE, stop=stop, stream=stream)
    assert "".join(one["text"] for one in choices) == text
    assert choices[-1]["finish_reason"] == ("length" if found is None else "stop")
    if found is not None:
        kept = vllm.texts(prompt=RAISE, stop=stop, include_stop_str_in_output=True)
        assert kept == [text + found]


@STREAMED
def test_a_stop_string_in_the_member_ends_the_work(vllm: Pair, stream: bool) -> None:
    """The server draws one token, which nobody sees; the usage counts the member's alone."""
    fields = {"prompt": RAISE, "stop": "o", "max_tokens": 40}
    if stream:
        *_, answer = vllm.events(**fields, stream_options={"include_usage": True})
    else:
        answer = vllm.healed(**fields, logprobs=1, return_token_ids=True)
        [choice] = answer["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 1
    assert answer["usage"]["completion_tokens"] == 1
    assert vllm.upstream.requests[-1][1]["max_tokens"] == 1


def test_numbers_as_texts_are_healed_and_a_byte_order_mark_is_read(vllm: Pair) -> None:
    texts = vllm.texts(prompt=RAISE, max_tokens="3", n="2", seed="5", min_tokens="3")
    fields = {"model": "tiny", "temperature": 0, "prompt": RAISE}
    body = json.dumps({**fields, "max_tokens": 3, "n": 2, "seed": 5, "min_tokens": 3})
    response = vllm.client.post(V1, content=codecs.BOM_UTF8 + body.encode())
    assert response.headers["x-charwise"].startswith("healed")
    assert [choice["text"] for choice in response.json()["choices"]] == texts


@STREAMED
def test_a_chat_continues_its_last_message(vllm: Pair, stream: bool) -> None:
    messages = [{"role": "user", "content": "hi\n"}, {"role": "assistant", "content": RAISE}]
    fields = {"messages": messages, "continue_final_message": True, "logprobs": True}
    fields |= {"add_generation_prompt": False, "max_tokens": 3}
    parts = vllm.choices(CHAT, stream=stream, **fields)
    text = "".join(one["delta" if stream else "message"]["content"] for one in parts)
    tokens = [one["token"] for part in parts for one in part["logprobs"]["content"]]
    assert text.startswith("or")
    assert "".join(tokens) == text
    assert vllm.upstream.requests[-1][1]["messages"] == messages


def test_llama_cpps_own_form(pairs: Any) -> None:
    pair = reset(pairs("llama.cpp"))
    body = {"prompt": RAISE, "n_predict": 3, "temperature": 0, "return_tokens": True}
    response = pair.client.post("/completion", json=body)
    answer = response.json()
    assert response.headers["x-charwise"] == "healed; removed-tokens=2; forced-bytes=9"
    assert answer["content"] == pair.reference(RAISE, 3)
    assert (answer["tokens_predicted"], len(answer["tokens"])) == (3, 3)
    assert answer["tokens_evaluated"] == len(pair.upstream.ids(RAISE))
    assert b'"content":"' in response.content  # llama.vim looks for it
    pair.healed("/completion", prompt="if a <", logit_bias=[[5, 1.0]])
    output = pair.events("/completion", **body)
    assert "".join(one["content"] for one in output) == answer["content"]
    assert output[-1]["tokens_predicted"] == 3
    sides = {"input_prefix": "def f():\n", "prompt": "    retur", "input_suffix": "\n"}
    extra = [{"filename": "a.py", "text": "x = 1\n"}]
    infill = pair.client.post("/infill", json={**sides, "n_predict": 3, "input_extra": extra})
    assert infill.headers["x-charwise"].startswith(("healed", "off; reason=template"))


#: What a client sends → why it is not healed; the body goes through as it came.
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
    "several": {"prompt": [RAISE] * 3, "n": 30, "max_tokens": 1},
    "refused": {"model": "other"},
    "stop": {"stop": [5]},
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_cannot_be_healed_goes_through_with_a_reason(vllm: Pair, reason: str) -> None:
    fields = {"prompt": RAISE, **UNFIT[reason]}
    response = vllm.post(**fields)
    assert response.headers["x-charwise"] == f"off; reason={reason}"
    fields.pop("token_healing", None)
    own = {"model": "tiny", "temperature": 0, "max_tokens": 4} | fields
    assert vllm.upstream.requests[-1][1] == own
    assert (response.status_code == 404) == (reason == "refused")


@pytest.mark.parametrize(
    "body",
    [b"[1", b"[]", b"\xff", b"[" * 5000, b'{"prompt": "\\ud800"}'],
    ids=lambda body: body[:9],
)
def test_what_is_no_request_goes_through_as_it_is(vllm: Pair, body: bytes) -> None:
    response = vllm.client.post(V1, content=body)
    assert (response.status_code, response.headers["x-charwise"]) == (500, "off; reason=malformed")
    assert response.content == vllm.plain.post(V1, content=body).content


@pytest.mark.parametrize("rule", ["sentence", 1.5, -1])
def test_a_wrong_rule_is_refused(vllm: Pair, rule: Any) -> None:
    response = vllm.post(prompt=RAISE, token_healing=rule)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "token_healing")
    assert response.headers["x-charwise"] == "off; reason=token_healing"


def test_a_server_that_stops_forcing_is_found_out(vllm: Pair) -> None:
    vllm.upstream.forces = False
    response = vllm.post(prompt="zzzq")
    assert (response.status_code, response.headers["x-charwise"]) == (200, "off; reason=not-forced")


def test_all_else_goes_through_untouched(vllm: Pair) -> None:
    body = bytes(range(256)) * 40_000
    response = vllm.client.post("/anything?q=1&r=%20", content=body)
    assert response.content == body
    assert response.headers["x-query"] == "q=1&r=%20"
    assert "x-charwise" not in response.headers
    assert vllm.client.get("/nowhere").status_code == 404
    assert vllm.client.post("/anything", content=bytes(2**26 + 1)).status_code == 413
    assert vllm.client.get("/v1/models").json() == vllm.plain.get("/v1/models").json()
    vllm.healed(prompt=RAISE)
    text = vllm.client.get("/metrics").text
    assert "up 1\n" in text
    assert 'charwise_gateway_requests_total{outcome="healed"}' in text


def test_control_tokens_stay_so_and_do_not_pass_for_forced_text(vllm: Pair) -> None:
    names = vllm.index.vocabulary.special
    name = next(name for name in names.values() if name)
    assert vllm.texts(prompt=f"{name}{PROMPTS[1]}")[0].startswith("e")
    assert names[vllm.upstream.requests[-1][1]["prompt"][0]] == name
    vllm.upstream.requests.clear()
    vllm.healed(prompt="if a <")
    banned = {names[int(id)] for id in vllm.upstream.requests[0][1]["logit_bias"]}
    assert banned == {name for name in names.values() if name.startswith("<")}


def test_a_client_that_leaves_ends_the_request_behind(vllm: Pair) -> None:
    vllm.upstream.delay = 0.2
    body = {"model": "tiny", "prompt": RAISE, "max_tokens": 500}
    with pytest.raises(httpx.ReadTimeout):
        vllm.client.post(V1, json=body, timeout=0.7)
    until = time.monotonic() + 60
    while not vllm.upstream.departures and time.monotonic() < until:
        time.sleep(0.05)
    assert vllm.upstream.departures == 1


def test_clients_that_stall_leave_and_send_nonsense_do_not_disturb_others(vllm: Pair) -> None:
    expected = {prompt: [vllm.reference(prompt, 4)] for prompt in PROMPTS}
    port = vllm.client.base_url.port
    body = json.dumps({"model": "tiny", "prompt": RAISE, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)

    def ask(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        if number % 4 == 0:
            nonsense = vllm.client.post(V1, content=b"{" * number)
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


# --- the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OWNERS)
def test_a_server_says_its_kind_tokenizer_and_window(pairs: Any, kind: str) -> None:
    async def ask(address: str) -> Any:
        relay = Relay(address)
        try:
            return await recognize(relay, "auto")
        finally:
            await relay.close()

    found, about = asyncio.run(ask(str(pairs(kind).plain.base_url)))
    assert (found.name, about) == (kind, {"model": "tiny", "tokenizer": "embedded", "window": 99})


def test_an_unfit_server_is_refused(model: Any, index: SortedVocabulary) -> None:
    other = SortedVocabulary(Vocabulary.from_bytes([bytes([byte]) for byte in range(256)]))

    def refused(error: Any, says: str, address: str, which: Any = index, **options: Any) -> None:
        with pytest.raises(error, match=says):
            asyncio.run(connect(address, lambda name: which, **options))

    refused(ModelError, "no server answers at http://127", "http://127.0.0.1:9")
    for wrong in ("localhost:8000", "http://[::1", "http://a:99999", "ftp://a:80"):
        refused(SettingError, "give http://HOST:PORT", wrong)
    for kind in ("vllm", "trtllm"):
        upstream = Upstream(model, index.vocabulary, kind)
        with listening(upstream.app) as address:
            refused(SettingError, "another tokenizer", address, other)
            upstream.forces = False
            refused(ModelError, "does not force a text", address)
            upstream.delay = 0.4
            refused(ModelError, "no server answers at http://127", address, seconds=0.2)


@pytest.mark.parametrize("canonical", [False, True])
def test_a_server_that_forces_one_tokenization_is_named(
    model: Any, index: SortedVocabulary, canonical: bool, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream(model, index.vocabulary)
    upstream.canonical = canonical
    with listening(upstream.app) as address:
        asyncio.run(connect(address, lambda name: index))
    assert ("one tokenization" in caplog.text) == canonical


# --- a server that fails -----------------------------------------------------------------------


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
    with listening(Upstream(model, index.vocabulary).app) as address:
        gateway = asyncio.run(connect(address, lambda name: index))
    with listening(gateway) as front:
        for path, prompt, reason in (
            (V1, RAISE, "off; reason=unanswered"),
            (V1, "x", "off; reason=nothing-to-heal"),
            ("/v1//completions", RAISE, "off; reason=endpoint"),
            ("/anything", RAISE, None),
        ):
            response = httpx.post(front + path, json={"prompt": prompt})
            assert response.status_code == 502
            assert "cannot be reached" in response.json()["error"]["message"]
            assert response.headers.get("x-charwise") == reason


def test_a_server_that_breaks_off_is_a_502_or_an_error_event(vllm: Pair) -> None:
    vllm.upstream.garbles = True
    for stream in (False, True):
        response = vllm.post(prompt=RAISE, stream=stream)
        assert "JSON" in response.text
        assert response.status_code == (200 if stream else 502)
        assert "x-charwise" in response.headers
    vllm.upstream.garbles, vllm.upstream.dies = False, True
    response = vllm.post(prompt=RAISE, stream=True)
    first, last = re.findall(r"^data: (.*)$", response.text, re.M)
    assert json.loads(first)["choices"]
    assert "cannot be reached" in json.loads(last)["error"]["message"]


def test_a_server_that_is_silent_is_a_504(vllm: Pair) -> None:
    vllm.upstream.delay = 3.0
    relay = Relay(str(vllm.plain.base_url), 0.2)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await relay(scope, receive, send, b'{"prompt": "a"}')

    with listening(app, lifespan="off") as front:
        response = httpx.post(f"{front}{V1}", json={"prompt": "a"}, timeout=300)
    assert response.status_code == 504
