"""`/v1/completions` with OpenAI's own client."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serving import Running, running

openai = pytest.importorskip("openai")

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"


@pytest.fixture(scope="module")
def client(running_server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running_server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def create(client: Any, **arguments: Any) -> Any:
    return client.completions.create(model="charwise", **arguments)


def test_a_completion_is_what_the_model_says(client: Any, running_server: Running) -> None:
    result = create(client, prompt=PROMPT, max_tokens=8)
    [choice] = result.choices
    assert choice.text.startswith("or(")
    raw = choice.text.encode()
    [expected] = running_server.lm.complete(PROMPT, max_new_bytes=len(raw))
    assert expected.raw == raw
    assert choice.finish_reason == "length"
    assert result.object == "text_completion"
    assert result.usage.completion_tokens == 8
    assert result.usage.prompt_tokens > 10
    assert result.usage.total_tokens == 8 + result.usage.prompt_tokens


def test_prompts_as_a_list_and_as_ids(client: Any, running_server: Running) -> None:
    vocabulary = running_server.lm.vocabulary
    prompts = ["import nump", "for i in rang"]
    ids = [vocabulary.encode(text) for text in prompts]
    query = {"max_tokens": 2, "seed": 1}
    texts, by_ids = (create(client, prompt=one, **query).choices for one in (prompts, ids))
    [one] = create(client, prompt=[*vocabulary.bos_ids, *ids[0]], **query).choices
    assert [choice.index for choice in texts] == [0, 1]
    assert [choice.text[0] for choice in texts] == ["y", "e"]
    assert [c.text for c in by_ids] == [c.text for c in texts]
    assert one.text == texts[0].text


def test_every_choice_of_a_stream_ends(client: Any) -> None:
    """Also one that the threshold keeps back, and one that there is not."""
    query = {"prompt": "import s", "n": 3, "max_tokens": 4, "stream": True}
    for more in ({"temperature": 1.0, "extra_body": {"threshold": 0.2}}, {}, {"logprobs": 1}):
        texts, reasons = dict.fromkeys(range(3), ""), dict[int, str]()
        for chunk in create(client, **query, **more):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.finish_reason:
                    reasons[choice.index] = choice.finish_reason
                    assert choice.charwise["text"] == texts[choice.index]
        assert set(reasons) == {0, 1, 2}


def test_logprobs_are_of_the_tokens(client: Any, running_server: Running) -> None:
    [choice] = create(client, prompt="import nump", max_tokens=4, logprobs=2, seed=1).choices
    result = choice.logprobs
    assert "".join(result.tokens) == choice.text
    assert result.text_offset == [
        sum(map(len, result.tokens[:n])) for n in range(len(result.tokens))
    ]
    [expected] = running_server.lm.complete("import nump", max_new_bytes=len(choice.text.encode()))
    assert math.isclose(choice.charwise["probability"], math.exp(expected.logprob), abs_tol=1e-5)
    first = running_server.lm.prefix_logprob("import numpy") - running_server.lm.prefix_logprob(
        "import nump"
    )  # all tokenizations; nearly all of "y" is a token that ends there
    assert math.isclose(result.token_logprobs[0], first, abs_tol=1e-2)
    for token, logprob, top in zip(
        result.tokens, result.token_logprobs, result.top_logprobs, strict=True
    ):
        assert top[token] == pytest.approx(logprob)
        assert max(top.values()) == pytest.approx(logprob)  # greedy


def test_echo_scores_the_prompt(client: Any, running_server: Running) -> None:
    """A text, and token ids, which keep their tokens."""
    text, vocabulary = "import os\nimport sys", running_server.lm.vocabulary
    ids = [*vocabulary.encode("import os\nimport s"), *vocabulary.encode("ys")]
    score, counts = running_server.lm.score(text), list[int]()
    for prompt in (text, ids):
        result = create(client, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        [choice] = result.choices
        assert choice.text == "".join(choice.logprobs.tokens) == text
        assert result.usage.completion_tokens == 0
        assert sum(choice.logprobs.token_logprobs) == pytest.approx(score.logprobs.sum(), abs=1e-4)
        counts.append(len(choice.logprobs.tokens))
    assert counts == [len(vocabulary.encode(text)), len(ids)]
    assert counts[0] < counts[1]
    [longer] = create(client, prompt=text, max_tokens=1, echo=True, logprobs=1, seed=1).choices
    assert len(longer.logprobs.tokens) == counts[0] + 1
    assert longer.text == text + longer.logprobs.tokens[-1]


def test_a_stream_is_the_answer_in_pieces(client: Any) -> None:
    query = {"prompt": PROMPT, "max_tokens": 12, "seed": 1}
    whole = create(client, **query)
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}, **query))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text
    assert len(chunks) > 5
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):  # not those cached
        assert getattr(chunks[-1].usage, count) == getattr(whole.usage, count)
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_of_several_prompts_and_candidates(client: Any) -> None:
    query = {"prompt": ["import nump", "x = "], "n": 2, "temperature": 1.0, "seed": 4}
    texts: dict[int, str] = {}
    for chunk in create(client, stream=True, max_tokens=5, **query):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    whole = create(client, max_tokens=5, **query)
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_under_the_threshold_nothing_is_offered(client: Any) -> None:
    sure = {"prompt": "import nump", "max_tokens": 1}
    unsure = {"prompt": "x = foo(", "max_tokens": 8}
    query = ((sure, 0.9), (unsure, 0.9), (unsure, 0.0))
    texts = [
        create(client, extra_body={"threshold": least}, **one).choices[0].text
        for one, least in query
    ]
    assert texts[:2] == ["y", ""]
    assert texts[2]


def test_models(client: Any) -> None:
    [model] = client.models.list().data
    assert model.id == "charwise"


def test_a_client_that_leaves_ends_its_work(running_server: Running) -> None:
    engine = running_server.engine.model

    async def leave() -> None:
        url = f"{running_server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model="charwise", prompt="x = [", max_tokens=900, stream=True, temperature=1.0
            )
            async for _ in stream:
                break
            await stream.close()
            task = asyncio.create_task(
                client.completions.create(model="charwise", prompt="y = [", max_tokens=900, seed=1)
            )
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def cancelled() -> int:
        return running_server.engine.counts["cancelled_total"]

    before = cancelled()
    asyncio.run(leave())
    calls = -1
    while calls != engine.counts["model_calls"]:  # until no more are made
        calls = engine.counts["model_calls"]
        time.sleep(0.5)
    assert calls < 900
    assert cancelled() > before
    assert not running_server.engine.waiting


def test_the_time_a_request_may_take_ends_it(running_server: Running) -> None:
    with (
        running(lm=running_server.lm, seconds=0.5) as quick,
        openai.OpenAI(base_url=f"{quick.url}/v1", api_key="none", max_retries=0) as client,
    ):
        result = create(client, prompt="x = [", max_tokens=900, temperature=1.0, seed=2, n=8)
    late = [choice for choice in result.choices if choice.charwise["finish"] == "time"]
    assert late
    assert {choice.finish_reason for choice in late} == {"length"}
    assert 0 < result.usage.completion_tokens < 900


def test_a_cut_prompt_is_named_and_counted_alike(client: Any, running_server: Running) -> None:
    """Before the window is full: some of it stays free for what follows."""
    vocabulary = running_server.lm.vocabulary
    ids = vocabulary.encode("x = 1\n" * 1000)
    for size, cut in ((1000, False), (2000, True)):
        text = vocabulary.decode(ids[:size]).decode()
        counts = set[int]()
        for _ in range(2):
            answer = create(client, prompt=text, max_tokens=1)
            details = answer.choices[0].charwise
            assert details["truncated"] is cut
            assert details["from_memory"] is False or not cut
            for streamed in (False, True):
                body = {"prompt": text, "max_tokens": 1, "stream": streamed}
                url = f"{running_server.url}/v1/completions"
                headers = httpx.post(url, json=body, timeout=60).headers
                assert ("is cut" in headers.get("x-charwise-warning", "")) is cut
            counts.add(answer.usage.prompt_tokens)
        assert len(counts) == 1
