"""Requests as editors send them: llama.vim, llama.vscode, Zed, Continue, minuet, Tabby."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from charwise.tokens.line_ends import unify
from serving import Running, text_of

LINES = "import os\n\n\ndef names(path):\n"
LINE = "    return [n for n in os.listd"
BELOW = "(path)]\n\n\nprint(names('.'))\n"


def llama_vim(**changes: Any) -> dict[str, Any]:
    """The body of `llama#fim`."""
    fields = ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms"]
    fields += ["timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms"]
    fields += ["timings/predicted_per_token_ms", "timings/predicted_per_second"]
    fields += ["truncated", "tokens_cached"]
    return {
        "id_slot": 0,
        "input_prefix": LINES,
        "input_suffix": "\n" + BELOW,
        "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}],
        "prompt": LINE,
        "n_predict": 128,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.90,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": False,
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 250,
        "response_fields": fields,
        **changes,
    }


def test_llama_vim_reads_the_answer(http: httpx.Client, running_server: Running) -> None:
    answer = http.post("/infill", json=llama_vim(t_max_predict_ms=20_000))
    assert answer.status_code == 200
    assert '"content":"' in answer.text  # it looks for that, without a space
    reply = answer.json()
    assert sorted(reply) == sorted(llama_vim()["response_fields"])
    before = "x = 1\n" + LINES + LINE  # what other files hold comes first
    [expected] = running_server.lm.infill(before, "\n" + BELOW, max_new_bytes=24)
    assert reply["content"].startswith(expected.text)
    assert expected.text
    assert reply["truncated"] is False
    assert reply["timings/predicted_n"] > 0


def test_what_did_not_fit_the_window_is_told(http: httpx.Client) -> None:
    answer = http.post("/infill", json=llama_vim(input_prefix=LINES * 300, t_max_predict_ms=5000))
    assert answer.json()["truncated"] is True


def test_llama_vim_warms_up(http: httpx.Client) -> None:
    body = llama_vim(
        input_prefix="", input_suffix="", prompt="", n_predict=0, samplers=[], temperature=0.0,
        t_max_prompt_ms=1, t_max_predict_ms=1, response_fields=[""],
    )  # fmt: skip
    assert http.post("/infill", json=body).json() == {}


def test_llama_vscode_gets_candidates_from_infill(
    http: httpx.Client, running_server: Running
) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    window = running_server.lm.engine.window
    assert http.get("/props").json()["default_generation_settings"]["n_ctx"] == window
    assert len(http.get("/v1/models").json()["data"]) == 1
    body = llama_vim(n_cmpl=3, lora=[], n_predict=8, t_max_predict_ms=20_000, input_extra=[])
    del body["response_fields"]
    several = http.post("/infill", json=body).json()
    assert len({one["content"] for one in several}) == len(several) > 1
    [one] = [http.post("/infill", json=body | {"n_cmpl": 1}).json()]
    assert one["content"] in {
        another["content"] for another in several
    }  # the likeliest a byte first
    assert one["timings"]["predicted_n"] == one["tokens_predicted"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        # Continue, minuet and Tabby.
        ("/completion", {"prompt": LINES + LINE, "n_predict": 12, "stream": True}),
        (
            "/v1/completions",
            {"prompt": LINES + LINE, "suffix": BELOW, "max_tokens": 32, "stream": True}
            | {"model": "m", "stop": ["\n\n"], "top_p": 0.9},
        ),
        (
            "/completion",
            {"prompt": f"<fim_prefix>{LINES}{LINE}<fim_suffix>{BELOW}<fim_middle>"}
            | {"n_predict": 24, "stop": ["\n\n"], "penalty_last_n": 0},
        ),
    ],
)
def test_other_editors(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    text = text_of(http, path, body)
    assert text.startswith("ir")
    assert "(path)]" not in text or "suffix" not in str(body)


def test_tokens_there_and_back(http: httpx.Client, running_server: Running) -> None:
    text = "def naïve(): return '日本'"
    ids = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert ids == running_server.lm.vocabulary.encode(text)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": text}
    pieces = http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    )
    assert raw.decode() == text
    special = http.post("/tokenize", json={"content": "", "add_special": True}).json()["tokens"]
    assert special == list(running_server.lm.vocabulary.bos_ids)


# Files with CRLF, lists of prompts, and other files.

BEFORE = "import os\n\n\ndef names(path):\n    return os.listd"
AFTER = "(path)\n\n\nprint(names('.'))\n"


def body_of(path: str, before: str, after: str) -> dict[str, Any]:
    """A request for what is between two texts, or after one, in each dialect."""
    if path == "/v1/completions":
        return {"prompt": before, "suffix": after or None, "max_tokens": 24}
    if path == "/infill":
        return {"input_prefix": before, "input_suffix": after, "n_predict": 24}
    return {"prompt": before, "n_predict": 24}


@pytest.mark.parametrize("path", ["/v1/completions", "/infill", "/completion"])
@pytest.mark.parametrize("after", ["", AFTER])
@pytest.mark.parametrize("stream", [False, True])
def test_a_file_with_crlf_is_answered_as_one_without(
    http: httpx.Client, path: str, after: str, stream: bool
) -> None:
    before = BEFORE + "ir(path)\n"
    expected = text_of(http, path, body_of(path, before, after))
    sent = body_of(path, unify(before, "\r\n"), unify(after, "\r\n")) | {"stream": stream}
    assert text_of(http, path, sent) == unify(expected, "\r\n")
    if not after:
        assert "\n" in expected


def test_stops_counts_and_offsets_are_those_of_the_file(http: httpx.Client) -> None:
    before = unify("import os\n\n\ndef f(path):\n", "\r\n")
    query = {"prompt": before, "max_tokens": 24, "logprobs": 2}
    choice = http.post("/v1/completions", json=query).json()["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    assert "\r\n" in text
    assert "".join(logprobs["tokens"]) == text
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert text[offset:].startswith(token)
    for stop in ("\n", "\r\n"):
        reply = http.post("/completion", json={"prompt": before, "stop": [stop]}).json()
        assert (reply["content"], reply["stopping_word"]) == (text.split("\r\n")[0], stop)
        assert reply["stop_type"] == "word"


def test_a_list_of_prompts_is_answered_one_by_one(http: httpx.Client) -> None:
    prompts = ["import nump", "import o"]
    query = {"n_predict": 3}
    reply = http.post("/completion", json=query | {"prompt": prompts}).json()
    each = [http.post("/completion", json=query | {"prompt": one}).json() for one in prompts]
    assert [one["content"] for one in reply] == [one["content"] for one in each]
    assert [one["index"] for one in reply] == [0, 1]
    streamed = {0: "", 1: ""}
    with http.stream("POST", "/completion", json=query | {"prompt": prompts, "stream": True}) as it:
        for line in it.iter_lines():
            if line.startswith("data: "):
                part = httpx.Response(200, text=line[6:]).json()
                streamed[part["index"]] += part["content"]
    assert list(streamed.values()) == [one["content"] for one in each]


def test_other_files_are_read_before_the_prefix(http: httpx.Client) -> None:
    """The embedded model has no control token for them, so they are text."""
    extra = [{"filename": "a.py", "text": "LIMIT = 5"}, {"text": "import os\r\n"}]
    sent = {"prompt": "", "input_suffix": AFTER, "n_predict": 8}
    reply = http.post("/infill", json=sent | {"input_prefix": BEFORE, "input_extra": extra}).json()
    whole = "LIMIT = 5\nimport os\n" + BEFORE
    expected = http.post("/infill", json=sent | {"input_prefix": whole}).json()
    alone = http.post("/infill", json=sent | {"input_prefix": BEFORE}).json()
    assert reply["content"] == expected["content"]
    assert reply["probability"] == pytest.approx(expected["probability"], rel=1e-4)
    assert reply["probability"] != pytest.approx(alone["probability"], rel=1e-3)
