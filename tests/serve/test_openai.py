"""`/v1/completions` with OpenAI's own client, and with lm-evaluation-harness' `local-completions`.

Log-probabilities are those of the texts that a reader sees.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given

from charwise.api.writer import _unspelled
from charwise.models import EMBEDDED
from charwise.serve.logprobs import alternatives
from models import Case, Model, cases, examples
from serving import Running

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(running_server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{running_server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def create(client: Any, **arguments: Any) -> Any:
    return client.completions.create(model="charwise", **arguments)


def test_a_completion_is_what_the_model_says(client: Any, running_server: Running) -> None:
    lm, prompt = running_server.lm, "import nump"
    answer = create(client, prompt=prompt, max_tokens=4, logprobs=2, seed=1)
    [choice], result = answer.choices, answer.choices[0].logprobs
    [expected] = lm.complete(prompt, max_new_bytes=len(choice.text.encode()))
    assert choice.text == "".join(result.tokens) == expected.text
    assert choice.text.startswith("y")
    assert math.isclose(choice.charwise["probability"], math.exp(expected.logprob), abs_tol=1e-5)
    # All tokenizations: nearly all of "y" is a token that ends there.
    first = lm.prefix_logprob("import numpy") - lm.prefix_logprob(prompt)
    assert math.isclose(result.token_logprobs[0], first, abs_tol=1e-2)
    assert result.token_logprobs == pytest.approx([max(t.values()) for t in result.top_logprobs])
    assert (answer.object, choice.finish_reason) == ("text_completion", "length")
    usage = answer.usage
    assert (usage.completion_tokens, usage.total_tokens) == (4, 4 + usage.prompt_tokens)
    assert [one.id for one in client.models.list().data] == ["charwise"]


S: dict[str, Any] = {"prompt": "import s", "n": 3, "max_tokens": 3, "temperature": 1.0}


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"prompt": "def f(x):\n    if x < 0:\n        raise ValueErr", "max_tokens": 12}, 1),
        ({"prompt": ["import nump", "x = "], "n": 2, "temperature": 1.0, "max_tokens": 5}, 4),
        # A choice that the threshold keeps back, all of them, and one that there is not.
        *[(S | {"extra_body": {"threshold": least}}, 3) for least in (0.02, 0.9999)],
        *[(S | {"temperature": 0.0} | more, 3) for more in ({}, {"logprobs": 1})],
        *[({"prompt": [128], "n": n, "max_tokens": 2}, n) for n in (1, 3)],  # half a character
    ],
)
def test_a_stream_is_the_answer_in_pieces_and_each_choice_ends(
    client: Any, query: Any, count: int
) -> None:
    whole = create(client, **query, seed=4)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = create(client, **query, **options, seed=4)
    texts, reasons = dict.fromkeys(range(count), ""), dict[int, str]()
    for choice in (one for chunk in chunks for one in chunk.choices):
        texts[choice.index] += choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
            assert choice.charwise["text"] == texts[choice.index]
    assert set(reasons) == set(texts)
    assert texts == dict.fromkeys(texts, "") | {one.index: one.text for one in whole.choices}
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert len(chunks) > 5 or query["max_tokens"] < 12
    threshold = query.get("extra_body", {}).get("threshold", 0.0)
    for one in whole.choices:
        assert not one.text or one.charwise["probability"] >= threshold
    assert any(texts.values()) == (threshold < 0.9)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):  # not those cached
        assert getattr(last.usage, name) == getattr(whole.usage, name)


def test_an_echo_scores_the_prompt(client: Any, running_server: Running) -> None:
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


def test_a_client_that_leaves_ends_its_work(client: Any, running_server: Running) -> None:
    """In a stream, and before a whole answer."""
    engine, query = running_server.engine, {"max_tokens": 900, "seed": 1}
    before, calls = engine.counts["cancelled_total"], engine.model.counts["model_calls"]
    with create(client, prompt="x = [", stream=True, **query) as stream:
        next(iter(stream))
    with pytest.raises(openai.APITimeoutError):
        create(client.with_options(timeout=0.3), prompt="y = [", **query)
    while engine.under_way or engine.waiting:
        time.sleep(0.02)
    assert engine.counts["cancelled_total"] == before + 2
    assert engine.model.counts["model_calls"] - calls < 900


@pytest.mark.parametrize(("size", "cut"), [(1000, False), (2000, True)])
def test_a_cut_prompt_is_named_and_counted_alike(
    http: httpx.Client, running_server: Running, size: int, cut: bool
) -> None:
    """Before the window is full: some of it stays free for what follows."""
    vocabulary, counts = running_server.lm.vocabulary, set[int]()
    text = vocabulary.decode(vocabulary.encode("x = 1\n" * 1000)[:size]).decode()
    for streamed in (False, True, False):
        answer = http.post(
            "/v1/completions", json={"prompt": text, "max_tokens": 1, "stream": streamed}
        )
        assert ("is cut" in answer.headers.get("x-charwise-warning", "")) is cut
        if not streamed:
            details = answer.json()["choices"][0]["charwise"]
            assert details["truncated"] is cut
            assert details["from_memory"] is False or not cut
            counts.add(answer.json()["usage"]["prompt_tokens"])
    assert len(counts) == 1


# What could stand at each place.

PROMPTS = [
    "x = ", "raise ValueErr", "self.assertEq", "import nump", "# 🍋", "x = [1, 2", "", "é = 'nai",
    "s = '🍋é\r\n", "<fim_prefix>a<fim_suffix>b<fim_middle>",
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("temperature", "echo"), [(0.0, False), (0.0, True), (1.0, False)])
def test_every_place_lists_texts_that_could_be_there(
    http: httpx.Client, prompt: str, temperature: float, echo: bool
) -> None:
    query = {"prompt": prompt, "max_tokens": 6, "logprobs": 3, "seed": 4, "stop": ["\n)", "o"]}
    query |= {"temperature": temperature, "echo": echo}
    choice = http.post("/v1/completions", json=query).json()["choices"][0]
    report = choice["logprobs"]
    raw = b"".join(map(_unspelled, report["tokens"]))
    assert raw == b"".join(map(bytes, report["bytes"]))
    assert raw.decode("utf-8", "replace") == choice["text"]
    assert not echo or choice["text"].startswith(prompt)
    for at, token in enumerate(report["tokens"]):
        top = report["top_logprobs"][at]
        assert top[token] == report["token_logprobs"][at]
        if echo:  # the prompt's list the rest as one
            continue
        assert all(-1000 < value <= 1e-9 for value in top.values())
        assert sum(map(math.exp, top.values())) <= 1 + 1e-5
        assert len(top) == 3 + (sum(value > top[token] for value in top.values()) == 3)


def first_texts(model: Model, prompt: bytes) -> dict[bytes, float]:
    """The text that the next token adds to a prompt: by all token strings that spell it."""
    masses: dict[bytes, float] = {}
    left: list[tuple[tuple[int, ...], bytes, float]] = [((), prompt, 1.0)]
    while left:
        tokens, rest, weight = left.pop()
        for id, p in enumerate(model.p(tokens)):
            token = model.vocabulary.tokens[id]
            if id in model.vocabulary.end_ids:
                if not rest:
                    masses[b""] = masses.get(b"", 0.0) + weight * p
            elif token and p > 0 and rest.startswith(token) and rest:
                left.append(((*tokens, id), rest[len(token) :], weight * p))
            elif token and token.startswith(rest):
                text = token[len(rest) :]
                masses[text] = masses.get(text, 0.0) + weight * p
    total = sum(masses.values())
    return {text: p / total for text, p in masses.items()} if total else {}


@given(cases())
@examples(150)
def test_alternatives_are_summed_as_by_brute_force(case: Case) -> None:
    model, prompt = case.model, case.text
    expected = first_texts(model, prompt)
    if not expected:  # nothing spells the prompt
        return
    state = model.exact().state(prompt)
    chosen = max(expected, key=expected.__getitem__)
    masses: Any = alternatives(state, None, chosen, 50)
    possible = {text: p for text, p in expected.items() if p > 1e-12}
    assert {text for text, p in masses if p > math.log(1e-12)} == set(possible)
    for text, value in masses:
        assert np.exp(value) == pytest.approx(expected[text], rel=1e-6, abs=1e-12)


# The harness tokenizes both parts of a pair together, and cuts: between tokens, where it was.

PAIRS = [
    ("import numpy", " as np"),
    ("for i in", " range(10):"),
    ("for i in", " banana"),
    ("def check(value):\n    if value < 0:\n        raise", " ValueError"),
    ("", "import os"),
]


@pytest.mark.slow
def test_the_harness_has_the_numbers_that_it_has_in_process(running_server: Running) -> None:
    for part in ("lm_eval", "tenacity", "aiohttp"):
        pytest.importorskip(part, reason="needs: pip install 'lm-eval[api]'")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from charwise.evaluation.lm_eval import CharwiseLM

    def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
        return [
            Instance(kind, {}, arguments=pair, idx=n, task_name="", doc_id=n)
            for n, pair in enumerate(arguments)
        ]

    harness = LocalCompletionsAPI(
        model="charwise",
        base_url=f"{running_server.url}/v1/completions",
        tokenizer=EMBEDDED,
        tokenizer_backend="huggingface",
        batch_size=2,
        max_length=1024,
    )
    pairs = instances("loglikelihood", *PAIRS)
    here = CharwiseLM(running_server.lm).loglikelihood(pairs, disable_tqdm=True)
    there = harness.loglikelihood(pairs, disable_tqdm=True)
    for pair, (logprob, greedy), remote in zip(PAIRS, here, there, strict=True):
        assert remote[0] == pytest.approx(logprob, abs=2e-3), pair
        assert remote[1] == greedy, pair
    assert {greedy for _, greedy in here} == {True, False}
    settings = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    prompts = instances("generate_until", ("import os\nimport sy", settings))
    assert harness.generate_until(prompts, disable_tqdm=True) == ["s"]
