"""The proxy without a model: what it makes of requests, answers and prompts, and what it relays.

Against real servers it runs in tests_llama_cpp.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise.api.limits import HEALED_BODY, PROXY
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import CharwiseError, HealingError, SettingError
from charwise.processors.openai.upstream import Upstream
from charwise.processors.proxy.answer import NativeForm, TextAnswer
from charwise.processors.proxy.app import HealingProxy
from charwise.processors.proxy.cut import _literal, cut_text, forced_first
from charwise.processors.proxy.plan import SERVERS, plan
from charwise.processors.proxy.relay import Relay, has_tokenizer
from charwise.serve.app import application
from charwise.serve.server import Settings
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary
from listening import listening
from models import examples
from test_exchange import exchanged, text_of

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")

LLAMA_CPP = SERVERS["llama.cpp"]
PROMPT = "def check(value):\n    raise ValueErr"
EVENTS = "text/event-stream"


@cache
def index() -> SortedVocabulary:
    return SortedVocabulary(read_vocabulary("embedded"))


# Cutting


@examples(100)
@given(st.text(min_size=1, max_size=40), st.sampled_from(["auto", "word", 0, 1, 3]), st.booleans())
def test_a_cut_text_is_the_prompt(prompt: str, rule: Any, starts: bool) -> None:
    """Kept and forced are the prompt, and what is kept becomes the tokens that were kept."""
    vocabulary = index().vocabulary
    try:
        kept, forced, healed, _ = cut_text(prompt, index(), rule, starts=starts)
    except HealingError:
        return
    assert kept + forced == prompt
    assert kept or starts
    if not any(text in prompt for text in vocabulary.special.values()):
        start = list(vocabulary.bos_ids) if starts else []
        assert healed.kept == [*start, *(vocabulary.encode(kept) if kept else [])]
        assert healed.forced == forced.encode()


def test_only_what_follows_the_last_special_token_is_cut() -> None:
    [special] = list(index().vocabulary.special.values())[:1]
    assert cut_text(f"ab{special}", index()).forced == ""
    kept, forced, _, whole = cut_text(f"ValueErr{special}raise ValueErr", index())
    assert not whole
    assert kept == f"ValueErr{special}raise"
    assert forced == " ValueErr"


@pytest.mark.parametrize("line", ["    raise ValueErr\n", "word "])
def test_of_a_long_prompt_only_the_end_is_tokenized(line: str) -> None:
    end = "def f():\n    raise ValueErr"
    short = cut_text(line * 20 + end, index())
    long = cut_text(line * 5000 + end, index())
    assert long.forced == short.forced == " ValueErr"
    assert long.kept + long.forced == line * 5000 + end
    assert long.healed.given_back == short.healed.given_back
    assert len(long.healed.kept) < 9000
    assert (short.whole, long.whole) == (True, False)


def test_a_cut_inside_a_character_moves_before_it() -> None:
    tokens = [bytes([b]) for b in range(256)] + [b" na\xc3", b"\xaf", b"\xafv", b" "]
    vocabulary = Vocabulary.from_bytes(tokens)
    assert vocabulary.encode("a naï")[-1] == tokens.index(b"\xaf", 256)
    kept, forced, healed, _ = cut_text("a naï", SortedVocabulary(vocabulary), 1)
    assert (kept, forced, healed.forced) == ("a", " naï", " naï".encode())


def test_a_long_forced_text_is_refused() -> None:
    with pytest.raises(HealingError, match="would be forced"):
        cut_text("word " * 200, index(), 300)


# Grammars


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Val", '"Val"'),
        ('a"b\\', '"a\\u0022b\\u005C"'),
        ("\n\t", '"\\u000A\\u0009"'),
        ("日😀", '"\\u65E5\\U0001F600"'),
    ],
)
def test_literals(text: str, expected: str) -> None:
    assert _literal(text) == expected


def test_a_grammar_keeps_its_strings_and_gets_another_root() -> None:
    grammar = 'root ::= "root" [root"] root? # root\nitem-root ::= <root> | root{2,3}\n'
    lines = forced_first("x", grammar).splitlines()
    assert lines == [
        'root ::= "x" charwise-root',
        'charwise-root ::= "root" [root"] charwise-root? # root',
        "item-root ::= <root> | charwise-root{2,3}",
    ]
    for wrong in ("item ::= [a]", "root ::= charwise-root\ncharwise-root ::= [a]"):
        with pytest.raises(SettingError, match="root"):
            forced_first("x", wrong)


# Requests


@pytest.mark.parametrize("opening", ["[", "<", '"\\', '["'])
def test_a_grammar_of_openings_is_read_once(opening: str) -> None:
    """To look for the end of each, to the grammar's end, would take hours."""
    grammar = "root ::= [a] root? " + opening * 2**18
    assert forced_first("x", grammar).endswith("charwise-root? " + opening * 2**18)


def planned(request: dict[str, Any], server: Any = LLAMA_CPP, **more: Any) -> Any:
    options = {"native": False, "asked_only": False} | more
    return plan(request, index(), server, **options)


def test_what_the_server_behind_is_asked() -> None:
    request = {"prompt": PROMPT, "max_tokens": 5, "stop": ["V", "\n"], "temperature": 0.5}
    [answer] = planned(request | {"charwise_heal": "auto"})
    assert answer.call.body == {
        "prompt": "def check(value):\n    raise",
        "max_tokens": 5 + len(" ValueErr"),
        "temperature": 0.5,
        "grammar": 'root ::= " ValueErr" .*',
        "stop": ["\n"],  # it would find "V" in the forced text
        "stream": True,
    }
    [answer] = planned({"prompt": PROMPT, "n_predict": 3, "max_tokens": 9})
    assert answer.call.body["n_predict"] == 3 + len(" ValueErr")
    [answer] = planned({"prompt": PROMPT, "n_predict": 33})
    assert answer.call.body["n_predict"] == 33 + len(" ValueErr")
    [answer] = planned({"prompt": PROMPT})
    assert "max_tokens" not in answer.call.body  # all that there is room for
    [answer] = planned({"prompt": PROMPT}, SERVERS["llama-cpp-python"])
    assert answer.call.body["max_tokens"] == 16 + len(" ValueErr")
    assert "stream" not in answer.call.body
    both = {"prompt": [PROMPT, PROMPT], "stream": True}
    assert planned(both, SERVERS["llama-cpp-python"]) == "several"


def test_completions_are_counted_by_the_servers_own_name() -> None:
    """`llama-server` takes `n_cmpl` before `n`: an answer with fewer choices would lose some."""
    [answer] = planned({"prompt": PROMPT, "n": 2, "n_cmpl": 3})
    for number in range(3):
        assert not answer.ended
        choice = {"index": number, "text": " ValueError", "finish_reason": "stop"}
        answer.add({"choices": [choice]})
    assert answer.ended
    assert [choice["text"] for choice in answer.choices()] == ["or"] * 3
    for wrong in (-1, "many", 65):
        assert planned({"prompt": PROMPT, "n_cmpl": wrong}) == "too-many"
    python = SERVERS["llama-cpp-python"]
    [answer] = planned({"prompt": PROMPT, "n_cmpl": 3}, python)
    assert len(answer.choices()) == 1


def test_special_tokens_do_not_stand_for_the_forced_text() -> None:
    """llama.cpp's grammars know them by their spelling; in the answer they have none."""
    tokens: list[bytes | None] = [bytes([b]) for b in range(256)]
    vocabulary = Vocabulary(
        [*tokens, b"<a>", None, None, None],
        special={257: "<|start|>", 258: "<|end|>", 259: "[x]"},
        end_ids=[258],
    )
    own = SortedVocabulary(vocabulary)
    request = {"prompt": "ab <", "max_tokens": 2, "logit_bias": {"7": 1}}
    [answer] = plan(request, own, LLAMA_CPP, native=False, asked_only=False)
    assert answer.healed.forced == b"<"
    assert answer.call.body["logit_bias"] == {"7": 1, "257": -100}
    [answer] = plan(request | {"prompt": "ab <a"}, own, LLAMA_CPP, native=False, asked_only=False)
    assert answer.call.body["logit_bias"] == {"7": 1}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 2}, "logprobs"),
        ({"json_schema": {"type": "object"}}, "json_schema"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": PROXY.together + 1}, "too-many"),
        ({"n": "2"}, "too-many"),
        ({"grammar": {"root": 1}}, "grammar"),
        ({"grammar": "no rule"}, "cut"),
        ({"stop": ["a"] * 300}, "too-many"),
        ({"prompt": ["a(", "b"] * 40}, "too-many"),
    ],
)
def test_what_does_not_go_with_healing(more: dict[str, Any], reason: str) -> None:
    """It goes through unhealed, and is an error if healing was asked for."""
    request = {"prompt": PROMPT, "max_tokens": 4} | more
    assert planned(request) == reason
    with pytest.raises(CharwiseError):
        planned(request | {"charwise_heal": "auto"})
    assert planned(request | {"charwise_heal": "off"}) == "asked"
    assert planned(request, asked_only=True) == "not-asked"


def test_servers_that_cannot_heal() -> None:
    for name in ("ollama", "vllm", "unknown"):
        assert planned({"prompt": PROMPT}, SERVERS[name]) == SERVERS[name].why_not
        with pytest.raises(SettingError, match=name):
            planned({"prompt": PROMPT, "charwise_heal": "word"}, SERVERS[name])
    for server in SERVERS.values():
        with pytest.raises(SettingError, match="log-probabilities of named tokens"):
            planned({"prompt": PROMPT, "charwise_heal": "exact"}, server)
    python = SERVERS["llama-cpp-python"]
    assert planned({"prompt": PROMPT}, python, native=True) == "endpoint"
    assert planned({"prompt": [PROMPT, "a"]}, native=True) == "several"


# Answers


def answer_to(request: dict[str, Any], native: bool = False) -> TextAnswer:
    [answer] = planned({"prompt": PROMPT, "max_tokens": 30} | request, native=native)
    return answer


@examples(100)
@given(st.lists(st.integers(1, 6), max_size=8), st.sampled_from([None, "ok", "V", "\n"]))
def test_however_the_text_is_split_the_answer_is_the_same(
    sizes: list[int], stop: str | None
) -> None:
    new = 'or("naï ok")\n    pass'
    whole = " ValueErr" + new
    expected = new if stop is None or stop not in new else new[: new.index(stop)]
    answer = answer_to({"stream": True} | ({} if stop is None else {"stop": stop}))
    told = ""
    at = 0
    for size in [*sizes, len(whole)]:
        text, at = whole[at : at + size], at + size
        finish = "stop" if at >= len(whole) else None
        chunk = {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}
        for choice in answer.add(chunk):
            told += choice["text"]
            assert set(choice) <= {"index", "text", "logprobs", "finish_reason"}
        if answer.ended:
            break
    assert told == expected
    [choice] = answer.choices()
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")


def test_tokens_count_beyond_the_prompt() -> None:
    """The server writes as many more as were given back; what is too much is cut off."""
    answer = answer_to({"max_tokens": 2})
    chunk = {"index": 0, "text": ' ValueError("x") and more', "finish_reason": "length"}
    answer.add({"choices": [chunk], "usage": {"prompt_tokens": 10}})
    [choice] = answer.choices()
    ids = index().vocabulary.encode(" ValueErr" + choice["text"])
    assert ' ValueError("x") and more'.startswith(" ValueErr" + choice["text"])
    assert (choice["finish_reason"], answer.completion_tokens) == ("length", 2)
    assert len(index().vocabulary.encode(" ValueError")) + 1 == len(ids)
    assert answer.prompt_tokens == 10 + answer.healed.given_back


def test_a_server_that_does_not_reproduce_the_text_is_found_out() -> None:
    answer = answer_to({})
    with pytest.raises(HealingError, match="must go on with"):
        answer.add({"choices": [{"index": 0, "text": " Values", "finish_reason": None}]})


def test_answers_in_the_servers_own_form() -> None:
    answer = NativeForm(answer_to({"n_predict": 30, "stop": ["Err"]}, native=True))
    first = {"content": " ValueErr", "stop": False, "tokens_evaluated": 9}
    assert answer.add(0, first) is None
    told = answer.add(0, {"content": "or Err", "stop": False, "tokens_evaluated": 9})
    assert told is not None
    assert (told["content"], told["stop"], told["stopping_word"]) == ("or ", True, "Err")
    assert (told["stop_type"], answer.complete) == ("word", True)
    given_back = answer.answer.healed.given_back
    assert told["tokens_evaluated"] == 9 + given_back


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_the_servers_own_form_may_break_off(stream: bool) -> None:
    """What has come is not told as if it were all; what is no JSON object is an error."""

    def heard(*parts: bytes | Exception) -> tuple[bytes, Exception | None]:
        form = NativeForm(answer_to({"prompt": PROMPT, "stream": stream}, native=True))
        told, raised = exchanged(EVENTS.encode(), *parts, form=form)
        return text_of(told), raised

    begun = b'data: {"content": " ValueError", "stop": false}\n\n'
    assert str(heard(begun, ConnectionError("lost"))[1]) == "lost"
    assert b"no JSON object" in heard(begun, b"data: 7\n\n")[0]


# Through real sockets


async def body_of(receive: Any) -> bytes:
    """The whole body of a request."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


class Behind:
    """A server that says what it was asked, or streams until its client leaves."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = await body_of(receive)
        if scope["path"].startswith("/endless"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            listening = asyncio.ensure_future(receive())
            while not listening.done():
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.01)
            self.left.set()
            return
        if scope["path"] == "/silent":
            await asyncio.sleep(5)
        said = {
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
            "body": body.decode(),
        }
        headers = [(b"content-type", b"application/json"), (b"x-own", b"1"), (b"x-own", b"2")]
        status = 418 if scope["path"] == "/teapot" else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})


@contextmanager
def proxied(behind: Any, **options: Any) -> Iterator[httpx.Client]:
    with listening(behind) as upstream:
        seconds = options.pop("seconds", 60.0)
        app = HealingProxy(index(), Relay(upstream, seconds), **options)
        with listening(app) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client


def test_everything_else_goes_through_as_it_is() -> None:
    with proxied(Behind()) as client:
        for method, path in [
            ("GET", "/a%20b/ü?x=1&y=%2F"),
            ("PUT", "/v1/completions"),
            ("DELETE", "/"),
        ]:
            headers = {"authorization": "Bearer k", "x-mine": "a, b"}
            content = None if method == "GET" else b'{"prompt": "raise ValueErr"}'
            response = client.request(method, path, content=content, headers=headers)
            said = response.json()
            request = response.request
            assert said["method"] == method
            assert said["path"] + (f"?{said['query']}" if said["query"] else "") == str(
                request.url.raw_path, "ascii"
            )
            assert said["body"] == (content or b"").decode()
            kept = dict(request.headers)
            kept.pop("host"), kept.pop("connection")
            assert {name: said["headers"][name] for name in kept} == kept
            assert response.headers.get_list("x-own") == ["1", "2"]
            assert "x-charwise" not in response.headers
        assert client.get("/teapot").status_code == 418


def test_requests_that_cannot_be_healed_go_through_with_a_reason() -> None:
    """This server lists no models, so nobody knows what it takes."""
    with proxied(Behind()) as client:
        bodies = [
            (b'{"prompt": "raise ValueErr", "max_tokens": 3}', "unknown-server"),
            (b'{"prompt": "raise ValueErr", "charwise_heal": "off"}', "asked"),
            (b"no JSON", "malformed"),
            (b'{"stop": 7}', "malformed"),
            (b"[" * 5000, None),
            (b" " * (2**23 + 2**21), "size"),
        ]
        for body, reason in bodies:
            response = client.post("/v1/completions", content=body)
            if reason is None:
                assert response.status_code == 400
                continue
            assert response.headers["x-charwise"] == f"off; reason={reason}"
            said = response.json()["body"]
            if reason == "asked":
                assert json.loads(said) == {"prompt": "raise ValueErr"}
            else:
                assert said == body.decode()
        response = client.post(
            "/v1/completions", json={"prompt": "raise ValueErr", "charwise_heal": "auto"}
        )
        assert response.status_code == 400
        assert "unknown" in response.json()["error"]["message"]
    with proxied(Behind(), model="a") as client:
        response = client.post("/v1/completions", json={"prompt": "raise ValueErr", "model": "b"})
        assert response.headers["x-charwise"] == "off; reason=model"


class Completing:
    """A server that says it is llama.cpp, and answers completions with these bytes."""

    def __init__(self, body: bytes, kind: bytes = b"application/json") -> None:
        self.body, self.kind = body, kind
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        self.asked.append(json.loads(await body_of(receive)))
        headers = [(b"content-type", self.kind), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def events(*chunks: Any, end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks).encode()


def piece(text: Any, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "content": text}


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_a_stream_of_known_length_and_either_line_end_is_read(end: str) -> None:
    """What is handed on is shorter than what the server behind announced."""
    body = events(piece(" ValueErr"), piece("or", "stop"), end=end)
    behind = Completing(body, b"text/event-stream")
    with proxied(behind, server=LLAMA_CPP) as client:
        for stream in (True, False):
            request = {"prompt": PROMPT, "max_tokens": 5, "stream": stream}
            response = client.post("/v1/completions", json=request)
            assert response.status_code == 200
            if stream:
                told = [line[6:] for line in response.text.split("\n\n") if line]
                assert told[-1] == "[DONE]"
                texts = [json.loads(line)["choices"][0]["text"] for line in told[:-1]]
                assert "".join(texts) == "or"
            else:
                assert response.json()["choices"][0]["text"] == "or"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xff", "application/json"),
        (b'{"choices": [{"index": 0, "text": null}]}', "application/json"),
        (b'{"choices": [{"index": 0, "text": " ValueErr\\ud800"}]}', "application/json"),
        (b'{"choices": [{"index": 7, "text": " ValueError"}]}', "application/json"),
        (events(piece(" ValueErr")) + b"data: no JSON\n\n", EVENTS),
        (events(piece(" ValueErr"), {"choices": [5]}), EVENTS),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_answers_with_no_completion_is_found_out(
    body: bytes, kind: str, stream: bool
) -> None:
    with proxied(Completing(body, kind.encode()), server=LLAMA_CPP) as client:
        request = {"prompt": PROMPT, "max_tokens": 5, "stream": stream}
        response = client.post("/v1/completions", json=request)
        if stream:
            assert '"error"' in response.text
        else:
            assert response.status_code == 502
            assert response.headers["x-charwise"] == "off; reason=refused"
            assert "error" in response.json()


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_without_its_end_is_no_answer(path: str, stream: bool) -> None:
    """Neither a reason why a choice ended nor an end mark has come: the server broke off."""
    begun = events(piece(" ValueErr"), piece('or("'))
    with proxied(Completing(begun, EVENTS.encode()), server=LLAMA_CPP) as client:
        response = client.post(path, json={"prompt": PROMPT, "n_predict": 50, "stream": stream})
        if stream:
            told = [line for line in response.text.split("\n\n") if line]
            assert "or(" in told[0]
            error = json.loads(told[-1].removeprefix("data: "))["error"]
        else:
            assert response.status_code == 502
            error = response.json()["error"]
        assert (error["type"], error["code"]) == ("bad_gateway_error", 502)
        assert "before it was finished" in error["message"]


@pytest.mark.parametrize("kind", [EVENTS, "application/json"])
def test_an_answer_that_never_ends_is_given_up(kind: str) -> None:
    """Of an event without an end no more than a bound is read, and each byte once."""
    sent = 0

    class Endless(Completing):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            nonlocal sent
            await receive()
            headers = [(b"content-type", kind.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            listening = asyncio.ensure_future(receive())
            while not listening.done():
                await send(
                    {"type": "http.response.body", "body": b"data: x" * 999, "more_body": True}
                )
                sent += 7 * 999
                await asyncio.sleep(0)

    with proxied(Endless(b""), server=LLAMA_CPP) as client:
        for stream in (False, True):
            before = sent
            response = client.post(
                "/v1/completions", json={"prompt": PROMPT, "max_tokens": 5, "stream": stream}
            )
            assert response.status_code == (200 if stream else 502)
            assert f"more than {2 * HEALED_BODY} bytes" in response.text
            assert "[DONE]" not in response.text
            assert sent - before < 6 * HEALED_BODY


def test_an_event_in_very_many_pieces_is_read_once() -> None:
    """To search it from its beginning for every piece would take minutes."""
    text = " ValueError" + "x" * 2**20
    body = events(piece(text, "stop"))

    async def parts(call: Upstream) -> list[Any]:
        return [chunk async for chunk in call.chunks()]

    async def read() -> list[Any]:
        async def behind(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-type", EVENTS.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for at in range(0, len(body), 7):
                await send({"type": "http.response.body", "body": body[at : at + 7]})

        call = Upstream(b"")
        await call.run(behind, {"headers": []}, one_of_many=False)
        return await parts(call)

    [chunk] = asyncio.run(read())
    assert chunk["content"] == text


def test_what_leads_elsewhere_was_not_healed() -> None:
    class Moved(Completing):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"location", b"/elsewhere")]
            await send({"type": "http.response.start", "status": 302, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    with proxied(Moved(b""), server=LLAMA_CPP) as client:
        for path in ("/v1/completions", "/completion"):
            response = client.post(path, json={"prompt": PROMPT}, follow_redirects=False)
            assert response.status_code == 302
            assert response.headers["location"] == "/elsewhere"
            assert response.headers["x-charwise"] == "off; reason=refused"


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_one_token_asked_for_is_one_that_goes_beyond_the_prompt(cut: int) -> None:
    """However many the server takes to write the prompt's end again; then it is told to end."""
    text = ' ValueError("no") and much more'
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    behind = Completing(events(*map(piece, pieces)), EVENTS.encode())
    with proxied(behind, server=LLAMA_CPP) as client:
        for stream in (False, True):
            request = {"prompt": PROMPT, "max_tokens": 1, "stream": stream}
            request["stream_options"] = {"include_usage": True}
            response = client.post("/v1/completions", json=request)
            assert behind.asked[-1]["max_tokens"] == 1 + len(" ValueErr")
            if stream:
                told = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
                [choice] = [event["choices"][0] for event in told if event["choices"]]
                usage = told[-1]["usage"]
            else:
                [choice] = response.json()["choices"]
                usage = response.json()["usage"]
            assert choice["text"]
            assert 'or("no'.startswith(choice["text"])
            assert choice["finish_reason"] == "length"
            ids = index().vocabulary.encode(PROMPT)
            assert usage == {
                "prompt_tokens": len(ids),
                "completion_tokens": 1,
                "total_tokens": len(ids) + 1,
            }


def test_no_bound_is_one_that_llama_cpp_takes() -> None:
    behind = Completing(events(piece(" ValueErr"), piece("or", "stop")), EVENTS.encode())
    with proxied(behind, server=LLAMA_CPP) as client:
        for name in ("max_tokens", "n_predict"):
            response = client.post("/v1/completions", json={"prompt": PROMPT, name: -1})
            assert response.headers["x-charwise"].startswith("healed")
            assert behind.asked[-1][name] == -1
        response = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": -2})
        assert response.headers["x-charwise"] == "off; reason=malformed"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "raise \xed\xa0\x80"}',
        '{"prompt": "raise \\ud800"}'.encode("utf-16"),
        b'{"prompt": "raise \\ud800"}',
    ],
)
def test_half_a_surrogate_pair_is_refused_however_it_is_written(body: bytes) -> None:
    with proxied(Completing(b"{}"), server=LLAMA_CPP) as client:
        response = client.post("/v1/completions", content=body)
        assert response.status_code == 400
        assert "half of a surrogate pair" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path", [b"@127.0.0.2/", b"http://127.0.0.2/", b".example/", b"/" * 70_000]
)
def test_paths_that_lead_elsewhere_are_refused(path: bytes) -> None:
    """Behind `http://HOST:PORT`, "@elsewhere/" is another host, and HOST:PORT a user's name."""
    heard: list[dict[str, Any]] = []

    async def hear(message: dict[str, Any]) -> None:
        heard.append(message)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"a=b"}
        relay = Relay("http://127.0.0.1:9", 2.0)
        await relay({**scope, "path": path.decode(), "raw_path": path}, receive, hear)
        await relay.close()

    asyncio.run(ask())
    assert heard[0]["status"] == 400
    assert "path" in json.loads(heard[1]["body"])["error"]["message"]


def test_a_server_that_is_slow_to_say_what_it_is_keeps_nobody_else_waiting() -> None:
    class Slow(Behind):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.says = threading.Semaphore(0), threading.Event()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope.get("path") == "/v1/models":
                self.asked.release()
                await asyncio.to_thread(self.says.wait, 30)
            await super().__call__(scope, receive, send)

    behind = Slow()
    with proxied(behind, model="a") as client, ThreadPoolExecutor(3) as pool:

        def asked(model: str) -> str:
            body = {"prompt": "raise ValueErr", "model": model}
            return str(client.post("/v1/completions", json=body).headers["x-charwise"])

        waiting = [pool.submit(asked, "a") for _ in range(3)]
        assert all(behind.asked.acquire(timeout=20) for _ in waiting)
        assert asked("b") == "off; reason=model"
        assert not any(each.done() for each in waiting)
        behind.says.set()
        assert {each.result() for each in waiting} == {"off; reason=unknown-server"}


def test_a_client_that_leaves_ends_the_request_behind() -> None:
    behind = Behind()
    with proxied(behind) as client:
        with client.stream("POST", "/endless", content=b"abc") as response:
            next(response.iter_raw())
        assert behind.left.wait(20)


@pytest.mark.slow
def test_a_server_that_is_not_there_or_silent() -> None:
    with proxied(Behind(), seconds=0.3) as client:
        for response in (client.get("/silent"), client.post("/silent", content=b"{}")):
            error = response.json()["error"]
            assert response.status_code == error["code"] == 504
            assert error["type"] == "timeout_error"
            assert "did not answer in time" in error["message"]
    with listening(Behind()) as url:
        pass  # it has gone
    with listening(HealingProxy(index(), Relay(url, 2.0))) as proxy:
        for response in (
            httpx.get(proxy + "/health"),
            httpx.post(proxy + "/v1/completions", json={"prompt": "raise ValueErr"}),
        ):
            assert response.status_code == 502
            assert "cannot be reached" in response.json()["error"]["message"]
    with pytest.raises(SettingError, match="http://HOST"):
        Relay("localhost:80")


# The tokenizer of the server behind


class Tokenizing:
    """A llama-cpp-python, or a vLLM, as far as it tokenizes; with a tokenizer of its own."""

    def __init__(self, vocabulary: Vocabulary, path: str, field: str, start: list[int]) -> None:
        self.vocabulary, self.path, self.field, self.start = vocabulary, path, field, start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = await body_of(receive)
        if scope["path"] == self.path:
            ids = list(self.vocabulary.encode(json.loads(body)[self.field]))
            status, said = 200, {"tokens": [*self.start, *ids]}
        else:
            status, said = 404, {}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})


def compared(behind: Any, vocabulary: Vocabulary | None = None) -> bool:
    async def ask(url: str) -> bool:
        relay = Relay(url, 20.0)
        try:
            return await has_tokenizer(relay, vocabulary or index().vocabulary)
        finally:
            await relay.close()

    with listening(behind) as url:
        return asyncio.run(ask(url))


def test_the_tokenizer_of_the_server_is_compared() -> None:
    ours = index().vocabulary
    start = list(ours.bos_ids)
    assert compared(application(charwise.load(), Settings()))
    assert compared(Tokenizing(ours, "/tokenize", "prompt", []))
    assert compared(Tokenizing(ours, "/extras/tokenize", "input", start))
    assert not compared(Tokenizing(ours, "/elsewhere", "prompt", []))
    assert not compared(Completing(b"<html>"))


def test_another_tokenizer_is_refused_with_the_first_difference() -> None:
    other = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
    for ours, theirs in ((None, other), (other, index().vocabulary)):
        with pytest.raises(SettingError, match=r'another tokenizer: of "The quick.*--tokenizer'):
            compared(Tokenizing(theirs, "/tokenize", "content", []), ours)


def test_a_server_that_tells_its_other_tokenizer_later_is_not_healed() -> None:
    other = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
    behind = Tokenizing(other, "/tokenize", "content", [])
    with proxied(behind, server=LLAMA_CPP) as client:
        for heal, status in ((None, 404), ("auto", 400)):
            request = {"prompt": PROMPT, "charwise_heal": heal}
            response = client.post("/v1/completions", json=request)
            assert response.status_code == status
        assert "another tokenizer" in response.json()["error"]["message"]


# What operators see


def test_metrics_of_both_servers_and_a_line_for_each_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "charwise.proxy")
    with proxied(application(charwise.load(), Settings())) as client:
        for heal in ("off", None):
            request = {"prompt": PROMPT, "max_tokens": 2, "charwise_heal": heal}
            assert client.post("/v1/completions", json=request).status_code == 200
        text = client.get("/metrics").text
    assert "charwise_completion_seconds_count 2.0" in text  # of the server behind
    assert 'charwise:requests_passed_total{reason="asked"} 1.0' in text
    assert 'charwise:response_seconds_count{status="200"} 2.0' in text
    lines = [record.getMessage() for record in caplog.records]
    pattern = r"POST /v1/completions 200; off; reason=asked; first byte [\d.]+ ms, end [\d.]+ ms"
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_fields_that_are_not_read_go_through() -> None:
    choice = {"index": 0, "text": " ValueError", "finish_reason": "stop", "own": 1}
    answer = {"choices": [choice], "system_fingerprint": "b1", "timings": {"prompt_n": 3}}
    with proxied(Completing(json.dumps(answer).encode()), server=LLAMA_CPP) as client:
        told = client.post("/v1/completions", json={"prompt": PROMPT}).json()
    assert told["system_fingerprint"] == "b1"
    assert told["timings"] == {"prompt_n": 3}
    assert told["choices"] == [
        {"index": 0, "text": "or", "logprobs": None, "finish_reason": "stop", "own": 1}
    ]


def test_errors_name_the_server_behind_and_its_answer() -> None:
    with listening(Completing(b"<html>busy")) as behind:
        app = HealingProxy(index(), Relay(behind.replace("//", "//me:secret@"), 20.0),
                           server=LLAMA_CPP)  # fmt: skip
        with listening(app) as url:
            response = httpx.post(url + "/v1/completions", json={"prompt": PROMPT})
    assert response.status_code == 502
    message = response.json()["error"]["message"]
    assert behind in message
    assert "<html>busy" in message
    assert "secret" not in message


def test_either_place_says_where_to_cut() -> None:
    for more in ({"charwise_heal": 1}, {"vllm_xargs": {"charwise_heal": 1}}):
        [answer] = planned({"prompt": PROMPT, **more})
        assert answer.healed.given_back == 1
        assert "charwise_heal" not in json.dumps(answer.call.body)
    with pytest.raises(SettingError, match="once"):
        planned({"prompt": PROMPT, "charwise_heal": 1, "vllm_xargs": {"charwise_heal": 2}})
