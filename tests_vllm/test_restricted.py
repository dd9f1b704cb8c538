"""Over HTTP: prompts that go on in a chat's last message, and output that a grammar restricts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server import MIDDLEWARE, NAMED, PROMPT, TEMPLATE, ask, post, serving, stream, text_of, told

CHAT = "/v1/chat/completions"
BEGUN = "def check(value):\n    if value < 0:\n        raise ValueErr"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(*NAMED, *MIDDLEWARE, "--chat-template", TEMPLATE) as (client, _):
        yield client


def chat(client: httpx.Client, begun: str = BEGUN, **fields: Any) -> httpx.Response:
    messages = [
        {"role": "user", "content": "Write a function."},
        {"role": "assistant", "content": begun},
    ]
    prefill = {"continue_final_message": True, "add_generation_prompt": False}
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 8}
    return client.post(CHAT, json=body | prefill | fields)


def content(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


OFF = {"vllm_xargs": {"charwise_heal": "off"}}


def test_a_prefilled_message_is_healed(client, reference):
    response = chat(client)
    assert response.headers["x-charwise"].startswith("healed; given-back=")
    assert content(response).startswith("or(")
    plain = chat(client, **OFF)
    assert plain.headers["x-charwise"] == "off; reason=asked"
    assert not content(plain).startswith("or(")
    answer, unhealed = response.json(), plain.json()
    assert answer["object"] == unhealed["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert set(answer) <= set(unhealed), set(answer) - set(unhealed)
    assert answer["usage"]["prompt_tokens"] == unhealed["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "length"


def test_it_is_what_the_rendered_prompt_gets_as_a_completion(client):
    prompt = f"<user>\nWrite a function.\n<assistant>\n{BEGUN}"
    for most in (1, 8, 40):
        assert content(chat(client, max_tokens=most)) == text_of(
            post(client, prompt, max_tokens=most)
        )
    assert content(chat(client, max_completion_tokens=3, max_tokens=None)) == text_of(
        post(client, prompt, max_tokens=3)
    )


def test_chat_streams_say_the_same(client):
    events = chat_events(client, stream_options={"include_usage": True})
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    texts = [
        choice["delta"].get("content") or "" for event in events for choice in event["choices"]
    ]
    whole = chat(client)
    assert "".join(texts) == content(whole)
    assert events[-1]["usage"]["completion_tokens"] == whole.json()["usage"]["completion_tokens"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"


def chat_events(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    messages = [
        {"role": "user", "content": "Write a function."},
        {"role": "assistant", "content": BEGUN},
    ]
    return stream(
        client,
        path=CHAT,
        messages=messages,
        continue_final_message=True,
        add_generation_prompt=False,
        **fields,
    )


def test_chat_with_several_choices_stops_and_logprobs(client):
    response = chat(client, n=3, temperature=1.0, logprobs=True, top_logprobs=2, max_tokens=20)
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    total = 0
    for choice in choices:
        items = choice["logprobs"]["content"]
        total += len(items)
        text = "".join(item["token"] for item in items)
        # A sample may end by itself: vLLM lists the end token, which is no part of the content.
        assert text.removesuffix("<|endoftext|>") == choice["message"]["content"]
    assert total == response.json()["usage"]["completion_tokens"]
    whole = content(chat(client, max_tokens=20))
    stopped = chat(client, max_tokens=20, stop=whole[2:4])
    assert content(stopped) == whole[: whole.index(whole[2:4])]
    assert stopped.json()["choices"][0]["finish_reason"] == "stop"


def test_other_chats_go_through(client):
    messages = [{"role": "user", "content": "Write a function."}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 2, "temperature": 0}
    response = client.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.headers["x-charwise"] == "off; reason=chat"
    asked = client.post(CHAT, json=body | {"vllm_xargs": {"charwise_heal": "auto"}})
    assert asked.status_code == 400
    assert "between two tokens" in asked.json()["error"]["message"]
    echoed = chat(client, echo=True)
    assert echoed.headers["x-charwise"] == "off; reason=echo"
    assert content(echoed).startswith(BEGUN)
    bad = chat(client, temperature=-1)
    assert (bad.status_code, bad.headers["x-charwise"]) == (400, "off; reason=refused")
    long = chat(client, "a b " * 100_000)
    assert (long.status_code, long.headers["x-charwise"]) == (400, "off; reason=too-much")
    nothing = client.post(CHAT, json=body | {"vllm_xargs": {"charwise_heal": None}})
    assert nothing.headers["x-charwise"] == "off; reason=chat"


def test_a_template_that_is_none_is_answered_with_the_header(client):
    """vLLM does not expect what it raises, and answers outside of all middleware."""
    for template in ("{% for", "{{ raise_exception('no') }}", "{{ 1 / 0 }}"):
        response = chat(client, chat_template=template)
        assert response.status_code >= 400
        assert "x-charwise" in response.headers, response.text


#: How the output is restricted, and what it must then be.
RESTRICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": (
        {"structured_outputs": {"regex": r"or\(['\"][a-z ]{3,8}['\"]\)"}},
        r"or\(.[a-z ]+.\)",
    ),
    "choice": ({"structured_outputs": {"choice": ["ors", "orange", "or.x"]}}, r"ors|orange|or\.x"),
    "grammar": (
        {"structured_outputs": {"grammar": 'root ::= "or" ("(" | "[") [a-z] [a-z]? "!"'}},
        r"or[(\[][a-z]{1,2}!",
    ),
    "json": ({"structured_outputs": {"json": {"enum": ["or", 17, None]}}}, '"or"|17|null'),
    "response_format": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"enum": ["or", "and"]}},
            }
        },
        '"(or|and)"',
    ),
    "structural_tag": (
        {
            "response_format": {
                "type": "structural_tag",
                "format": {"type": "const_string", "value": "or()"},
            }
        },
        r"or\(\)",
    ),
}


@pytest.mark.parametrize("kind", RESTRICTIONS)
def test_structured_output_begins_where_the_prompt_ends(client, kind):
    """Healed, the whole grammar holds for what the client gets, and the prompt is reproduced."""
    fields, pattern = RESTRICTIONS[kind]
    response = ask(client, PROMPT, max_tokens=80, return_token_ids=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["x-charwise"].startswith("healed; given-back=")
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["text"]), choice["text"]
    if kind in ("json", "response_format"):
        json.loads(choice["text"])
    events = stream(client, max_tokens=80, **fields)
    assert told(events) == {0: choice["text"]}


def test_a_grammar_that_is_none_is_refused_as_it_came(client):
    """In a stream too, where vLLM says so only once a token is due."""
    for constraint in ({"regex": "["}, {"grammar": "root ::= ["}):
        fields = {"structured_outputs": constraint, "max_tokens": 60}
        for streamed in (False, True):
            found, expected = (
                ask(client, stream=streamed, **fields),
                ask(client, stream=streamed, **fields, **OFF),
            )
            assert "ValueErr" not in found.text
            assert found.status_code == expected.status_code
            assert found.text.split('"message"')[1] == expected.text.split('"message"')[1]


def test_structured_chat_is_healed_too(client):
    fields, pattern = RESTRICTIONS["regex"]
    response = chat(client, max_tokens=40, **fields)
    assert response.headers["x-charwise"].startswith("healed")
    assert re.fullmatch(pattern, content(response))


def test_a_grammar_that_cannot_begin_with_the_text_is_told_of(client):
    """A schema that xgrammar does not know goes to another backend, which takes no literal."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}
    fields = {"structured_outputs": {"json": schema}, "max_tokens": 30}
    response = ask(client, **fields)
    assert response.headers["x-charwise"] == "off; reason=structured-output"
    asked = ask(client, **fields, vllm_xargs={"charwise_heal": "auto"})
    assert asked.status_code == 400
    assert "structured output" in asked.json()["error"]["message"]
    assert text_of(post(client)).startswith("or(")
