"""Files with CRLF, fields that nothing reads and lists of prompts, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from charwise import CharLM
from charwise.tokens.line_ends import write

BEFORE = "import os\n\n\ndef names(path):\n    return os.listd"
AFTER = "(path)\n\n\nprint(names('.'))\n"


def body_of(path: str, before: str, after: str) -> dict[str, Any]:
    """A request for what is between two texts, or after one, in each dialect."""
    if path == "/v1/completions":
        return {"prompt": before, "suffix": after or None, "max_tokens": 24}
    if path == "/infill":
        return {"input_prefix": before, "input_suffix": after, "n_predict": 24}
    return {"prompt": before, "n_predict": 24}


def text_of(answer: httpx.Response) -> str:
    found = answer.json()
    if "choices" in found:
        return str(found["choices"][0]["text"])
    return str(found["content"])


PATHS = ["/v1/completions", "/infill", "/completion"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("after", ["", AFTER])
def test_a_file_with_crlf_is_answered_as_one_without(
    http: httpx.Client, path: str, after: str
) -> None:
    before = BEFORE + "ir(path)\n"
    extra = {"temperature": 0.0}
    expected = text_of(http.post(path, json=body_of(path, before, after) | extra))
    sent = body_of(path, write(before, "\r\n"), write(after, "\r\n")) | extra
    assert text_of(http.post(path, json=sent)) == write(expected, "\r\n")
    if not after:
        assert "\n" in expected


def test_stops_counts_and_offsets_are_those_of_the_file(http: httpx.Client) -> None:
    before = write("import os\n\n\ndef f(path):\n", "\r\n")
    asked = {"prompt": before, "max_tokens": 24, "logprobs": 2}
    choice = http.post("/v1/completions", json=asked).json()["choices"][0]
    text, told = choice["text"], choice["logprobs"]
    assert "\r\n" in text
    assert "".join(told["tokens"]) == text
    for offset, token in zip(told["text_offset"], told["tokens"], strict=True):
        assert text[offset:].startswith(token)
    for stop in ("\n", "\r\n"):
        found = http.post("/completion", json={"prompt": before, "stop": [stop]}).json()
        assert (found["content"], found["stopping_word"]) == (text.split("\r\n")[0], stop)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_stream_has_the_ends_of_the_file(http: httpx.Client, end: str) -> None:
    sent = {"prompt": write(BEFORE + "ir(path)\n", end), "max_tokens": 24, "seed": 1}
    whole = text_of(http.post("/v1/completions", json=sent))
    text = ""
    with http.stream("POST", "/v1/completions", json=sent | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += httpx.Response(200, text=line[6:]).json()["choices"][0]["text"]
    assert text == whole
    assert end in text


def test_a_list_of_prompts_is_answered_one_by_one(http: httpx.Client, lm: CharLM) -> None:
    prompts = ["import nump", "import o"]
    asked = {"n_predict": 3}
    found = http.post("/completion", json=asked | {"prompt": prompts}).json()
    each = [http.post("/completion", json=asked | {"prompt": one}).json() for one in prompts]
    assert [one["content"] for one in found] == [one["content"] for one in each]
    assert [one["index"] for one in found] == [0, 1]
    mixed = http.post(
        "/completion", json=asked | {"prompt": ["import", *lm.vocabulary.encode(" nump")]}
    )
    assert mixed.json()["content"] == each[0]["content"]
    streamed = {0: "", 1: ""}
    with http.stream("POST", "/completion", json=asked | {"prompt": prompts, "stream": True}) as it:
        for line in it.iter_lines():
            if line.startswith("data: "):
                part = httpx.Response(200, text=line[6:]).json()
                streamed[part["index"]] += part["content"]
    assert list(streamed.values()) == [one["content"] for one in each]


def test_other_files_are_read_before_the_prefix(http: httpx.Client) -> None:
    """The embedded model has no control token for them, so they are text."""
    extra = [{"filename": "a.py", "text": "LIMIT = 5"}, {"text": "import os\r\n"}]
    sent = {"prompt": "", "input_suffix": AFTER, "n_predict": 8, "n_probs": 1}
    found = http.post("/infill", json=sent | {"input_prefix": BEFORE, "input_extra": extra}).json()
    whole = "LIMIT = 5\nimport os\n" + BEFORE
    expected = http.post("/infill", json=sent | {"input_prefix": whole}).json()
    alone = http.post("/infill", json=sent | {"input_prefix": BEFORE}).json()
    told = [
        [each["logprob"] for each in one["completion_probabilities"]]
        for one in (found, expected, alone)
    ]
    assert found["content"] == expected["content"]
    assert told[0] == pytest.approx(told[1], abs=1e-4)
    assert told[0] != pytest.approx(told[2], abs=1e-3)
