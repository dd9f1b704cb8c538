"""What each dialect's fields ask for, and the same answer in all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from charwise import CharLM
from charwise.api.request import MOST_TOKENS, CompletionRequest
from charwise.serve import llama_cpp, openai
from charwise.serve.task import Task
from serving import Running, text_of

#: Field of OpenAI's dialect → what the task has.
OPENAI: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": 16, "n": 1, "temperature": 0, "until": None, "streamed": False}),
    ({"max_tokens": 3, "n": 2}, {"max_tokens": 3, "n": 2}),
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"top_k": 4}, {"top_k": 4}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"seed": 5}, {"seed": 5, "repeatable": False}),
    ({"seed": -1}, {"seed": None}),
    ({"seed": 2**32 - 1}, {"seed": None}),
    ({"stop": "a"}, {"stop": (b"a",)}),
    ({"stop": ["a", "b"]}, {"stop": (b"a", b"b")}),
    ({"suffix": "s"}, {"suffix": "s"}),
    ({"logprobs": 2}, {"top": 2, "echo": False}),
    ({"logprobs": 2, "echo": True}, {"top": 2, "echo": True}),
    ({"stream": True}, {"streamed": True}),
    ({"stream": True, "logprobs": 1}, {"streamed": False}),  # in a chunk when it is whole
    ({"until": "line", "n_indent": 4}, {"until": "line", "indent": 4}),
    ({"threshold": 0.5, "max_bytes": 7}, {"threshold": 0.5, "max_bytes": 7}),
    ({"prompt": "\ufeffa"}, {"prompt": "a"}),
    ({"prompt": [5, 6]}, {"prompt": [5, 6]}),
    ({"token_healing": True, "model": "m", "user": "u"}, {"must_fit": True}),
]  # fmt: skip

#: The same of llama.cpp's, where it differs.
LLAMA: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_tokens": MOST_TOKENS, "until": "block", "must_fit": False}),
    ({"n_predict": -1}, {"max_tokens": MOST_TOKENS, "until": "block"}),
    ({"n_predict": -1, "stop": ["a"]}, {"max_tokens": MOST_TOKENS, "until": None}),
    ({"n_predict": 4, "max_tokens": 5}, {"max_tokens": 4, "until": None}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"n_cmpl": 3}, {"n": 3}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"temperature": 0.5, "samplers": ["top_k"]}, {"temperature": 0}),
    ({"temperature": 0.5, "samplers": ["temperature"]}, {"temperature": 0.5}),
    ({"top_p": 2.0}, {"top_p": 1.0}),
    ({"top_p": -1.0}, {"top_p": 1.0}),
    ({"stop": ["", "a"]}, {"stop": (b"a",)}),
    ({"seed": 2**32 - 1}, {"seed": None}),
    ({"t_max_predict_ms": 250}, {"line_seconds": 0.25}),
    ({"t_max_predict_ms": -1}, {"line_seconds": None}),
    ({"stream": True}, {"streamed": True}),
]


def check(task: Task, wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        owner = task if hasattr(task, name) else task.options
        assert getattr(owner, name) == value, name


@pytest.mark.parametrize(("body", "wanted"), OPENAI)
def test_the_fields_of_openai(lm: CharLM, body: dict[str, Any], wanted: dict[str, Any]) -> None:
    request = CompletionRequest.model_validate({"prompt": "a", **body})
    engine: Any = SimpleNamespace(lm=lm)
    [task] = openai._Completions(engine, "m", request).tasks
    check(task, wanted)


@pytest.mark.parametrize(("body", "wanted"), LLAMA)
def test_the_fields_of_llama_cpp(body: dict[str, Any], wanted: dict[str, Any]) -> None:
    request = llama_cpp._CompletionBody.model_validate({"prompt": "a", **body})
    [task] = llama_cpp._Completions("m", request).tasks
    check(task, wanted)


def test_the_fields_of_infill() -> None:
    extra = [{"filename": "a.py", "text": "x = 1"}]
    sides = {"input_prefix": "a\n", "prompt": "b", "input_suffix": "c", "input_extra": extra}
    [task] = llama_cpp._Completions("m", llama_cpp._InfillBody.model_validate(sides)).tasks
    files = (("<|file_sep|>", "a.py\nx = 1\n"), ("<|file_sep|>", ""))
    check(task, {"prompt": "a\nb", "suffix": "c", "files": files, "max_tokens": 128})
    for most, wanted in ((-1, MOST_TOKENS), (500, 500)):
        body = llama_cpp._InfillBody.model_validate(sides | {"n_predict": most})
        check(llama_cpp._Completions("m", body).tasks[0], {"max_tokens": wanted})


@pytest.mark.parametrize("text", ["import nump", "for i in ra", "raise ValueErr", "# 🍋 x = "])
def test_a_plain_prompt_is_continued_as_by_the_engine(
    http: httpx.Client, running_server: Running, text: str
) -> None:
    """A text, and its ids; also where more was typed after an answer that is remembered."""
    lm, sent = running_server.lm, {"max_tokens": 6, "token_healing": False}
    encode = lm.vocabulary.encode
    for prompt in (text, text + " ", [*encode(text[:3]), *encode(text[3:])]):
        ids, drawn = encode(prompt) if isinstance(prompt, str) else prompt, list[int]()
        for _ in range(6):
            row = lm.engine.tree([*lm.vocabulary.bos_ids, *ids, *drawn]).logprobs([0])[0]
            drawn.append(int(row.argmax()))
        result = http.post("/v1/completions", json=sent | {"prompt": prompt}).json()
        assert result["choices"][0]["text"] == lm.vocabulary.decode(drawn).decode()
        assert result["usage"]["prompt_tokens"] == 1 + len(ids)


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0, "seed": 3}, {"stop": ["("], "seed": 1}])
def test_every_dialect_has_the_same_answer(http: httpx.Client, asked: dict[str, Any]) -> None:
    """Whole and as a stream."""
    text, texts = "for i in rang", list[str]()
    for path, body in (
        ("/v1/completions", {"prompt": text, "max_tokens": 6}),
        ("/completion", {"prompt": text, "n_predict": 6}),
        ("/infill", {"input_prefix": text[:4], "prompt": text[4:], "n_predict": 6}),
    ):
        texts += [text_of(http, path, body | asked | {"stream": one}) for one in (False, True)]
    assert texts[0].startswith("e")
    assert set(texts) == {texts[0]}
