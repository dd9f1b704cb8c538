"""The engine over a completions server: a real server of a real model, and all that goes wrong."""

from __future__ import annotations

import json
import socket
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

import charwise
from charwise.bounded.lm import BoundedLM
from charwise.bounded.results import NextBounds
from charwise.cli.app import app
from charwise.engines.completions.client import Client
from charwise.engines.completions.lm import CompletionsLM
from charwise.errors import (
    ContextLengthError,
    EngineError,
    ModelNotFoundError,
    ServerError,
    SettingError,
)
from charwise.partial_lm import PartialLM
from completions_server import serving
from top_k_lm import TopK

pytest.importorskip("httpx")

PROMPTS = ["", "def check(value):\n    raise ValueErr", "import nump", "x = 'naï"]


@pytest.fixture(scope="module")
def whole():
    return charwise.load()


@pytest.fixture(scope="module")
def served(whole):
    with serving(whole.engine) as (url, behaviour):
        yield url, behaviour


@pytest.fixture
def asked(served):
    """The completion requests of a test."""
    served[1].asked.clear()
    return served[1].asked


@cache
def truth_of(whole: charwise.CharLM, prompt: str):
    """All is told, and nearly all is visited."""
    return BoundedLM(TopK(whole.engine, whole.vocabulary.width)).next(
        prompt, tolerance=1e-5, max_contexts=100
    )


def connect(url: str, **how) -> BoundedLM:
    return charwise.connect(url, "embedded", **how)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_truth_is_inside(whole, served, prompt):
    truth, widths = truth_of(whole, prompt), []
    for k in (2, 20, 200):
        found = connect(served[0], top_logprobs=k).next(prompt, max_contexts=48)
        check(found, truth)
        widths.append((found.upper - found.lower).max())
    assert widths[2] <= widths[0] + 2e-3  # the tolerance of the search


@pytest.mark.parametrize("how", [{"prompts": False}, {"tokenize": False}])
def test_the_truth_is_inside_what_other_servers_tell(whole, how):
    with serving(whole.engine, **how) as (url, _):
        lm = connect(url)
        assert lm.engine.prices == ("prompts" not in how)
        check(lm.next("import nump", max_contexts=48), truth_of(whole, "import nump"))


def check(found: NextBounds, truth: NextBounds) -> None:
    assert (found.lower <= truth.upper).all()
    assert (truth.lower <= found.upper).all()
    assert ((found.lower <= found.probs) & (found.probs <= found.upper)).all()
    assert 0.5 * np.abs(found.probs - truth.probs).sum() <= found.error + truth.error
    assert found.exact_from == truth.exact_from


def test_the_same_as_the_engine_cut_down(whole, served):
    """What comes through a server is what is told without one, but for its rounding."""
    text = "import numpy as np"
    there, here = connect(served[0], top_logprobs=50), BoundedLM(TopK(whole.engine, 50))
    ours, theirs = here.score(text), there.score(text)
    assert np.exp(theirs.lower) == pytest.approx(np.exp(ours.lower), abs=1e-3)
    assert np.exp(theirs.upper) == pytest.approx(np.exp(ours.upper), abs=1e-3)
    assert (theirs.lower <= ours.upper).all()
    assert (ours.lower <= theirs.upper).all()
    drawn, other = (lm.complete("import nump", max_new_bytes=8) for lm in (there, here))
    assert (drawn.raw, drawn.token_ids, drawn.ended) == (other.raw, other.token_ids, other.ended)
    assert drawn.missing == pytest.approx(other.missing, abs=1e-3)


@pytest.mark.slow
def test_what_is_asked(served, asked):
    lm = connect(served[0])
    assert isinstance(lm.engine, PartialLM)
    assert len(asked) == 1  # what it can tell
    asked.clear()
    lm.next("x = 1\n" * 40 + "import nump")
    assert [len(request["prompt"]) for request in asked[:2]] == [1, 4]  # prices, then what is next
    assert asked[0]["prompt_logprobs"] == 0
    assert "prompt_logprobs" not in asked[1]
    asked.clear()
    path = tuple(range(1, 13))
    found = lm.engine.best([path[:n] for n in range(1, 13)], [True] * 12)
    [request] = asked  # one text, one request
    assert (request["prompt"], request["prompt_logprobs"]) == ([list(path)], 20)
    assert request["max_tokens"] == 1
    assert [best.last is None for best in found] == [True] + [False] * 11


def test_contexts_come_back_in_their_order(whole, served):
    engine = connect(served[0], top_logprobs=5).engine
    contexts = [(1, 5), (1,), (1, 5, 7), (2,), *[(3, n) for n in range(70)], (1, 9)]
    truth = TopK(whole.engine, 5).best(contexts, [True] * len(contexts))
    for found, true in zip(engine.best(contexts, [True] * len(contexts)), truth, strict=True):
        assert found.ids[:5].tolist() == true.ids.tolist()
        assert found.logprobs[:5] == pytest.approx(true.logprobs, abs=1e-4)
        assert found.most == pytest.approx(true.most, abs=1e-4)
        assert found.last == pytest.approx(true.last, abs=1e-4) if true.last else not found.last
    assert engine.best([], []) == []


@pytest.mark.parametrize(
    ("how", "options", "kind", "why"),
    [
        ({"key": "secret"}, {}, ServerError, r"401: Unauthorized.*CHARWISE_API_KEY"),
        ({"completions": False}, {}, ServerError, r"404.*chats alone has no completions"),
        ({"most": 10}, {}, ServerError, r"max allowed: 10.*--max-logprobs"),
        ({"by_id": False}, {}, ServerError, "does not tell `logprobs` of the next token, with ids"),
        ({"shift": 1}, {}, EngineError, "the tokenizer is not that of small"),
        ({"models": ("a", "b")}, {}, SettingError, "has several models: name one, model=…: a, b"),
        ({}, {"model": "large"}, SettingError, "has no model 'large': it has small"),
        ({"models": ()}, {}, ServerError, "does not tell a list of its models"),
        ({"body": "<html>"}, {}, ServerError, "something else than a JSON object"),
        ({"body": "{}"}, {}, ServerError, "does not tell a list of its models"),
        ({"failures": [500, 502, 503]}, {}, ServerError, "answers 503: busy"),
        ({}, {"top_logprobs": 0}, SettingError, "top_logprobs is 0"),
        ({}, {"rounding": -1.0}, SettingError, "rounding is -1"),
    ],
)
def test_servers_that_cannot_be_used(whole, monkeypatch, how, options, kind, why):
    monkeypatch.setattr("charwise.engines.completions.client._PAUSES", (0.0, 0.0))
    monkeypatch.delenv("CHARWISE_API_KEY", raising=False)
    with serving(whole.engine, **how) as (url, _), pytest.raises(kind, match=why):
        connect(url, **options)


def test_a_key_is_given_or_found(whole, monkeypatch):
    with serving(whole.engine, key="secret") as (url, _):
        assert connect(url, api_key="secret").engine.model == "small"
        monkeypatch.setenv("CHARWISE_API_KEY", "secret")
        assert connect(url).engine.model == "small"


def test_a_server_that_is_busy_is_asked_again(whole, monkeypatch):
    monkeypatch.setattr("charwise.engines.completions.client._PAUSES", (0.0, 0.0))
    with serving(whole.engine, failures=[503, 429]) as (url, behaviour):
        assert connect(url).engine.window == 511
        assert behaviour.paths[:3] == ["/v1/models"] * 3


def test_a_server_that_is_silent(whole):
    with serving(whole.engine, silence=1.0) as (url, _):
        client = Client(url, seconds=0.2)
        with pytest.raises(ServerError, match=r"said nothing for 0.2 s.*seconds=") as caught:
            client.ask("/completions", {"prompt": [[1]], "logprobs": 1})
        assert caught.value.status is None


def test_no_server(monkeypatch):
    monkeypatch.setattr("charwise.engines.completions.client._PAUSES", (0.0, 0.0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match="no server answers at"):
        connect(f"http://127.0.0.1:{port}/v1")


def test_a_tokenizer_that_is_not_there(served, tmp_path):
    with pytest.raises(ModelNotFoundError):
        charwise.connect(served[0], tmp_path)


def test_the_window_is_the_servers(whole):
    with serving(whole.engine, window=64) as (url, behaviour):
        lm = connect(url)
        assert lm.engine.window == 63
        nxt = lm.next("x = 1\n" * 60 + "import nump")  # its beginning is left out
        assert nxt.top(1)[0][0] == "y"
        assert max(len(ids) for each in behaviour.asked for ids in each["prompt"]) <= 63
        with pytest.raises(ContextLengthError, match="64 tokens is longer than the 63"):
            lm.engine.best([(1,) * 64], [False])
        with pytest.raises(ContextLengthError, match="do not fit the window of 63"):
            lm.covering("x = 1\n" * 60)
    with serving(whole.engine, window=None) as (url, _):
        assert connect(url).engine.window is None


@pytest.mark.slow
def test_on_the_command_line(served):
    def run(*arguments: str):
        prompt = ("bounds", "import nump", "--url", served[0], "--tokenizer", "embedded")
        return CliRunner().invoke(app, [*prompt, *arguments])

    told = json.loads(run("--json", "--top", "2").stdout)
    assert told["next"][0]["text"] == "y"
    assert 0.9 < told["next"][0]["lower"] <= told["next"][0]["upper"] <= 1
    bits = json.loads(run("--json", "--score").stdout)["bits_per_byte"]
    assert bits["least"] < bits["most"] < 3
    assert "at least" in run().stdout
    assert "bits a byte" in run("--score").stdout


def test_vocabulary_of_another_width(whole, served):
    narrow = charwise.Vocabulary.from_bytes([bytes([n]) for n in range(256)])
    with pytest.raises(EngineError, match="tokenizer is not that of"):
        CompletionsLM(Client(served[0]), narrow)
