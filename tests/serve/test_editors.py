"""Requests as editors send them: llama.vim, llama.vscode, Zed, Continue, minuet, Tabby."""

from __future__ import annotations

import json
from typing import Any

import httpx

from serving import Running

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
    found = answer.json()
    assert sorted(found) == sorted(llama_vim()["response_fields"])
    before = "x = 1\n" + LINES + LINE  # what other files hold comes first
    [expected] = running_server.lm.infill(before, "\n" + BELOW, max_new_bytes=24)
    assert found["content"].startswith(expected.text)
    assert expected.text
    assert found["truncated"] is False
    assert found["timings/predicted_n"] > 0


def test_what_did_not_fit_the_window_is_told(http: httpx.Client) -> None:
    answer = http.post("/infill", json=llama_vim(input_prefix=LINES * 300, t_max_predict_ms=5000))
    assert answer.json()["truncated"] is True


def test_llama_vim_warms_up(http: httpx.Client) -> None:
    body = llama_vim(
        input_prefix="", input_suffix="", prompt="", n_predict=0, samplers=[], temperature=0.0,
        t_max_prompt_ms=1, t_max_predict_ms=1, response_fields=[""],
    )  # fmt: skip
    answer = http.post("/infill", json=body)
    assert answer.json() == {}


def test_a_block_ends_where_its_indent_does(http: httpx.Client) -> None:
    body = llama_vim(prompt="    x = [", input_suffix="\n", t_max_predict_ms=8000)
    content = http.post("/infill", json=body).json()["content"]
    for line in content.split("\n")[1:]:
        assert not line.strip() or line.startswith("    ")


def test_llama_vscode(http: httpx.Client, running_server: Running) -> None:
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


def test_a_mention_of_a_template_is_text(http: httpx.Client, running_server: Running) -> None:
    prompt = "names = ['<fim_prefix>', '<fim_suff"
    body = {"prompt": prompt, "max_tokens": 4, "seed": 1}
    text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert text.startswith("ix")
    expected = running_server.lm.complete(prompt, max_new_bytes=len(text.encode()))[0]
    assert text == expected.text


def test_continue(http: httpx.Client) -> None:
    """`/completion` as a stream of events."""
    body = {"prompt": LINES + LINE, "n_predict": 12, "stream": True, "temperature": 0.01, "seed": 3}
    text, last = "", {}
    with http.stream("POST", "/completion", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                last = json.loads(line[6:])
                text += last["content"]
    assert last["stop"] is True
    assert 1 < last["tokens_predicted"] <= 12
    assert text.startswith("ir(")


def test_minuet(http: httpx.Client) -> None:
    """`/v1/completions` with a suffix, as a stream."""
    body = {"model": "m", "prompt": LINES + LINE, "suffix": BELOW, "max_tokens": 32, "stream": True}
    body |= {"stop": ["\n\n"], "top_p": 0.9}
    text = ""
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert text.startswith("ir")
    assert "(path)]" not in text


def test_tabby(http: httpx.Client) -> None:
    prompt = f"<fim_prefix>{LINES}{LINE}<fim_suffix>{BELOW}<fim_middle>"
    body = {"prompt": prompt, "n_predict": 24, "stop": ["\n\n"], "penalty_last_n": 0}
    assert http.post("/completion", json=body).json()["content"].startswith("ir")


def test_a_stop_is_named(http: httpx.Client) -> None:
    body = {
        "prompt": "import os\nimport sy",
        "stop": ["\n"],
        "n_predict": 40,
        "return_tokens": True,
    }
    found = http.post("/completion", json=body | {"n_probs": 2}).json()
    assert (found["content"], found["stop_type"], found["stopping_word"]) == ("s", "word", "\n")
    assert found["completion_probabilities"][0]["top_logprobs"][0]["logprob"] <= 0
    assert len(found["tokens"]) == found["tokens_predicted"]
