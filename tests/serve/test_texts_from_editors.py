"""Files with CRLF, fields that nothing reads and lists of prompts, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from charwise.tokens.line_ends import write
from serving import text_of

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
    sent = body_of(path, write(before, "\r\n"), write(after, "\r\n")) | {"stream": stream}
    assert text_of(http, path, sent) == write(expected, "\r\n")
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


def test_a_list_of_prompts_is_answered_one_by_one(http: httpx.Client) -> None:
    prompts = ["import nump", "import o"]
    asked = {"n_predict": 3}
    found = http.post("/completion", json=asked | {"prompt": prompts}).json()
    each = [http.post("/completion", json=asked | {"prompt": one}).json() for one in prompts]
    assert [one["content"] for one in found] == [one["content"] for one in each]
    assert [one["index"] for one in found] == [0, 1]
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
    sent = {"prompt": "", "input_suffix": AFTER, "n_predict": 8}
    found = http.post("/infill", json=sent | {"input_prefix": BEFORE, "input_extra": extra}).json()
    whole = "LIMIT = 5\nimport os\n" + BEFORE
    expected = http.post("/infill", json=sent | {"input_prefix": whole}).json()
    alone = http.post("/infill", json=sent | {"input_prefix": BEFORE}).json()
    assert found["content"] == expected["content"]
    assert found["probability"] == pytest.approx(expected["probability"], rel=1e-4)
    assert found["probability"] != pytest.approx(alone["probability"], rel=1e-3)
