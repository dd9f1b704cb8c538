"""A vLLM server with the middleware: clients send what they always sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest
from server import (
    MIDDLEWARE,
    NAMED,
    PROMPT,
    TEMPLATE,
    ask,
    post,
    read_until,
    serving,
    start_server,
    stream,
    text_of,
    told,
)

from charwise.healing import cut


def test_a_server_that_cannot_heal_does_not_start():
    """V1 with speculation does not call processors that come from entry points."""
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    process, _ = start_server(*MIDDLEWARE, "--speculative-config", json.dumps(speculation))
    try:
        lines = read_until(process, "\0")
        assert process.wait() != 0
        assert any("does not call logits processors" in line for line in lines), lines[-20:]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(*NAMED, *MIDDLEWARE, "--chat-template", TEMPLATE) as (client, _):
        yield client


def test_the_prompt_is_healed_and_not_repeated(client):
    answer = post(client)
    assert text_of(answer).startswith("or(")
    assert set(answer) >= {"id", "object", "created", "model", "choices", "usage"}
    assert answer["object"] == "text_completion"
    plain = post(client, vllm_xargs={"charwise_heal": "off"})
    assert not text_of(plain).startswith("or(")


def test_ids_decode_to_prompt_and_completion(client, reference, prompts, texts):
    vocabulary = reference.index.vocabulary
    for text in texts[:100]:
        [choice] = post(client, text, max_tokens=12, return_token_ids=True)["choices"]
        data = vocabulary.decode([*choice["prompt_token_ids"], *choice["token_ids"]])
        assert data.startswith(text.encode())
        assert data.decode("utf-8", "replace").startswith(text + choice["text"])
        healed = cut(reference.tokenizer(text).input_ids, reference.index)
        assert choice["prompt_token_ids"] == healed.kept
        gaps = reference.gaps(healed.kept, healed.forced, choice["token_ids"])
        assert max(gaps) < 2e-3


def test_streams_say_the_same(client, texts):
    for text in [PROMPT, *texts[:30]]:
        whole = post(client, text, max_tokens=12)
        events = stream(client, text, max_tokens=12)
        assert told(events) == {0: text_of(whole)}
        finishes = [e["choices"][0]["finish_reason"] for e in events]
        assert finishes[-1] == whole["choices"][0]["finish_reason"]
        assert finishes[:-1] == [None] * (len(events) - 1)
        assert not any(event["choices"][0].get("token_ids") for event in events)
        assert len({event["id"] for event in events}) == 1


def test_usage_is_that_of_the_request_as_it_was_sent(client, reference):
    ids = reference.tokenizer(PROMPT).input_ids
    usage = post(client, max_tokens=8)["usage"]
    assert usage["prompt_tokens"] == len(ids)
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == len(ids) + 8
    logprobs = post(client, max_tokens=8, logprobs=0)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 8
    events = stream(client, stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == usage
    assert not any(event.get("usage") for event in events[:-1])
    events = stream(client, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert events[-2]["usage"] == usage


def test_several_prompts_with_several_completions(client, reference, texts):
    batch = [PROMPT, "import sy", "for i in rang", texts[3]]
    answer = post(client, batch, n=3, temperature=1.0, return_token_ids=True)
    assert [choice["index"] for choice in answer["choices"]] == list(range(12))
    vocabulary = reference.index.vocabulary
    for choice in answer["choices"]:
        data = vocabulary.decode([*choice["prompt_token_ids"], *choice["token_ids"]])
        prompt = batch[choice["index"] // 3]
        assert data.startswith(prompt.encode())
        assert data.decode("utf-8", "replace").startswith(prompt + choice["text"])
    greedy = {i: text_of(post(client, prompt)) for i, prompt in enumerate(batch)}
    events = stream(client, batch, stream_options={"include_usage": True})
    assert told(events) == greedy
    assert len({event["id"] for event in events}) == 1
    assert sum(event["choices"] == [] for event in events) == 1
    whole = post(client, batch)
    assert whole["usage"] == events[-1]["usage"]
    assert {c["index"]: c["text"] for c in whole["choices"]} == greedy


def test_echo(client):
    alone = text_of(post(client))
    assert text_of(post(client, echo=True)) == PROMPT + alone
    assert told(stream(client, echo=True)) == {0: PROMPT + alone}


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_are_of_the_new_text(client, streamed):
    if streamed:
        choices = [e["choices"][0] for e in stream(client, logprobs=2)]
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        found = {name: [value for part in parts for value in part[name]] for name in parts[0]}
        text = "".join(choice["text"] for choice in choices)
    else:
        [choice] = post(client, logprobs=2)["choices"]
        found, text = choice["logprobs"], choice["text"]
    assert {len(values) for values in found.values()} == {len(found["tokens"])}
    assert found["text_offset"][0] == 0
    assert "".join(found["tokens"]) == text
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert text[offset:].startswith(token)
    for token, value, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[token] == value
    assert all(value <= 0 for value in found["token_logprobs"])


def test_logprobs_with_echo_are_of_everything(client):
    for choices in (
        post(client, echo=True, logprobs=1)["choices"],
        [e["choices"][0] for e in stream(client, echo=True, logprobs=1)],
    ):
        parts = [choice["logprobs"] for choice in choices]
        tokens = [token for part in parts for token in part["tokens"]]
        offsets = [offset for part in parts for offset in part["text_offset"]]
        text = "".join(choice["text"] for choice in choices)
        assert "".join(tokens) == text
        assert all(text[offset:].startswith(t) for t, offset in zip(tokens, offsets, strict=True))
        assert offsets[0] == 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stop", ["\n", ["neverthere", "\n"], "\n  ", "):", "):\n    "])
def test_stop_strings(client, stop, streamed):
    prompt = "class Node:\n    def get(self):\n        return 1\n\n    def put(self"
    xargs = {"charwise_heal": 6}  # much is given back, line breaks too
    unstopped = text_of(post(client, prompt, max_tokens=40, vllm_xargs=xargs))
    stops = [stop] if isinstance(stop, str) else stop
    at = min(unstopped.find(s) % 10**6 for s in stops)
    fields = {"max_tokens": 40, "stop": stop, "vllm_xargs": xargs}
    for include in (False, True):
        if streamed:
            events = stream(client, prompt, include_stop_str_in_output=include, **fields)
            text, last = told(events)[0], events[-1]["choices"][0]
        else:
            [last] = post(client, prompt, include_stop_str_in_output=include, **fields)["choices"]
            text = last["text"]
        assert at < len(unstopped), unstopped
        found = min((s for s in stops if s in unstopped), key=unstopped.find)
        assert text == unstopped[: at + len(found) * include]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", found)


def test_requests_that_cannot_be_healed_go_through(client, reference):
    ids = reference.tokenizer(PROMPT).input_ids
    plain = text_of(post(client, vllm_xargs={"charwise_heal": "off"}))
    assert text_of(post(client, ids)) == plain
    assert post(client, [ids, ids])["choices"][1]["text"] == plain
    assert text_of(post(client, prompt_logprobs=1)) == plain
    assert text_of(post(client, max_tokens=0, echo=True)) == PROMPT
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_ids_are_healed_if_asked(client, reference):
    ids = reference.tokenizer(PROMPT).input_ids
    asked = {"vllm_xargs": {"charwise_heal": "auto"}}
    assert text_of(post(client, ids, **asked)) == text_of(post(client))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_one_token_is_one_piece_of_new_text(client, most):
    whole = text_of(post(client, max_tokens=12, return_token_ids=True))
    for streamed in (False, True):
        if streamed:
            events = stream(client, max_tokens=most, stream_options={"include_usage": True})
            text, usage = told(events)[0], events[-1]["usage"]
            reason = events[-2]["choices"][0]["finish_reason"]
        else:
            answer = post(client, max_tokens=most)
            text, usage = text_of(answer), answer["usage"]
            reason = answer["choices"][0]["finish_reason"]
        assert text
        assert whole.startswith(text)
        assert usage["completion_tokens"] == most
        assert reason == "length"
    assert text_of(post(client, max_tokens=1)) == "or"
    for prompt in (PROMPT, "x = 1\n" * 40 + "for i in rang"):  # the second takes more tokens
        answer = post(client, prompt, max_tokens=most, logprobs=2, return_token_ids=True)
        logprobs = answer["choices"][0]["logprobs"]
        assert {len(values) for values in logprobs.values()} == {most}
        assert answer["usage"]["completion_tokens"] == most
        assert logprobs["tokens"][-1].endswith(text_of(answer)[logprobs["text_offset"][-1] :])
        assert len(answer["choices"][0]["token_ids"]) >= most


def test_numbers_that_vllm_takes_for_numbers_heal_too(client):
    assert text_of(post(client, max_tokens="8")) == text_of(post(client, max_tokens=8))
    assert text_of(post(client, max_tokens=8.0)) == text_of(post(client, max_tokens=8))


def test_what_vllm_takes_for_true_or_false_heals_too(client):
    response = ask(client, echo="Yes", stream="off", return_token_ids=0)
    assert response.headers["x-charwise"].startswith("healed")
    assert text_of(response.json()).startswith(PROMPT + "or(")
    for flag in ("true", 1, "ON"):
        assert told(stream(client, stream=flag, echo="no")) == {0: text_of(post(client))}


def test_null_says_nothing_of_healing(client):
    assert text_of(post(client, vllm_xargs={"charwise_heal": None})).startswith("or(")
    asked = {"vllm_xargs": {"charwise_heal": None}, "prompt_logprobs": 1}
    assert ask(client, **asked).headers["x-charwise"] == "off; reason=prompt_logprobs"


OFF = {"vllm_xargs": {"charwise_heal": "off"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1},
        {"max_tokens": 0.5},
        {"max_tokens": 600},
        {"min_tokens": 9},
        {"n": 300_000},
        {"n": 0},
        {"prompt": "x = 1\n" * 128},
        {"prompt": "a b " * 500_000},
        {"prompt": ["a"] * 1_025},
        {"prompt": [PROMPT, PROMPT * 100]},
        {"stop": ["a"] * 5},
        {"stop": [""]},
        {"max_tokens": "many"},
        {"logprobs": -2},
        {"stream_options": {"include_usage": True}},
        {"stream": "perhaps"},
        {"return_token_ids": "x"},
        {"echo": []},
        {"structured_outputs": {"regex": "["}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {"grammar": "root ::= ["}},
        {"structured_outputs": {"json": '{"type": '}},
        {"response_format": {"type": "poem"}},
    ],
    ids=lambda fields: f"{fields}"[:30],
)
def test_what_vllm_refuses_it_refuses_in_the_same_words(client, fields):
    found, expected = ask(client, **fields), ask(client, **fields | OFF)
    assert 400 <= found.status_code < 500, found.text
    assert found.status_code == expected.status_code
    assert found.json() == expected.json()


def test_room_for_less_than_is_asked_for(client, reference):
    """Healed or not, prompt and completion have the whole window."""
    prompt = "y = 2\nz = 3\n" + "for i in range(3):\n    x = 1\n" * 38 + "for i in rang"
    ids = reference.tokenizer(prompt).input_ids
    assert 505 <= len(ids) < 512
    for most in (60, 8, None):
        fields = {"max_tokens": most, "ignore_eos": True}
        expected = post(client, prompt, **fields, **OFF)["usage"]
        response = ask(client, prompt, **fields)
        assert response.headers["x-charwise"].startswith("healed")
        events = stream(client, prompt, stream_options={"include_usage": True}, **fields)
        for usage in (response.json()["usage"], events[-1]["usage"]):
            assert usage["total_tokens"] == 512
            assert usage == {name: expected[name] for name in usage}


def test_a_prompt_as_long_as_the_window(client, reference):
    exact = "x = 1\n" * 102 + " rang"
    assert len(reference.tokenizer(exact).input_ids) == 512
    found, expected = ask(client, exact), ask(client, exact, **OFF)
    assert found.status_code == expected.status_code
    if found.status_code == 400:
        assert found.json() == expected.json()
    else:
        assert text_of(found.json()) == text_of(expected.json())
        assert found.json()["usage"] == expected.json()["usage"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": "tiny", "prompt": ' + b'{"a":' * 50_000, "nested too deeply"),
        (b'{"model": "tiny", "prompt": "a\\ud800"}', "surrogate"),
        (b'{"model": "tiny", "prompt": "a", "user": "\\udfff"}', "surrogate"),
    ],
    ids=["lists", "objects", "prompt", "user"],
)
def test_what_servers_stumble_over_is_refused(client, content, message):
    response = client.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert text_of(post(client)).startswith("or(")  # the server goes on


BAD = {
    "unknown healing rule": {"vllm_xargs": {"charwise_heal": "sometimes"}},
    "unknown argument": {"vllm_xargs": {"charwise_heel": "auto"}},
    "prompt_logprobs is set": {"vllm_xargs": {"charwise_heal": "auto"}, "prompt_logprobs": 1},
    "hexadecimal": {"vllm_xargs": {"charwise_forced": "no"}},
    "inside a character": {"vllm_xargs": {"charwise_heal": "auto"}, "prompt": "cut"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_requests_get_400(client, reference, message):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, **BAD[message]}
    if body["prompt"] == "cut":
        body["prompt"] = reference.index.vocabulary.encode("日".encode()[:2])
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert error["code"] == 400
    assert text_of(post(client)).startswith("or(")  # the server goes on


def test_errors_of_vllm_stay_what_they_are(client):
    for body, status in (
        ({"model": "other", "prompt": PROMPT}, 404),
        ({"model": "tiny", "prompt": PROMPT, "temperature": -1}, 400),
        ({"model": "tiny", "prompt": PROMPT, "max_tokens": "many"}, 400),
        ({"model": "tiny", "prompt": [PROMPT, PROMPT * 100]}, 400),
        ({"model": "tiny"}, 400),
    ):
        response = client.post("/v1/completions", json=body)
        assert response.status_code == status, response.text
        assert response.json()["error"]["code"] == status
    response = client.post(
        "/v1/completions", content=b"{", headers={"content-type": "application/json"}
    )
    assert response.status_code == 400


def test_the_client_of_openai_needs_no_change(client):
    from openai import OpenAI

    openai = OpenAI(base_url=str(client.base_url.join("/v1")), api_key="none")
    answer = openai.completions.create(model="tiny", prompt=PROMPT, temperature=0, max_tokens=8)
    parts = openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=8, stream=True
    )
    assert answer.choices[0].text.startswith("or(")
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text


def test_clients_that_leave_do_no_harm(client):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        next(response.iter_lines())
    running = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
    for _ in range(200):  # each look takes the server a moment
        post(client, max_tokens=1)
        if float(running.search(client.get("/metrics").text)[1]) == 0:
            break
    else:
        pytest.fail("the request of a client that left still runs")
