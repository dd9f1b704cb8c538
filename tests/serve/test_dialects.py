"""What each dialect's fields ask for, requests as editors send them, and the same answer in all."""

import json
import re
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest

from charwise import CharLM
from charwise.api.request import MOST_TOKENS, CompletionRequest, Until
from charwise.constraints import choices, json_schema, regex
from charwise.constraints.constraint import END
from charwise.serve import llama_cpp, openai
from charwise.tokens.line_ends import unify
from serving import Running, events, text_of

V1, LLAMA, INFILL = "/v1/completions", "/completion", "/infill"
FILES = [{"filename": "a.py", "text": "x = 1"}]

#: Dialect, fields of a request, and what the task has.
FIELDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (V1, {}, {"max_tokens": 16, "n": 1, "temperature": 0, "until": None, "streamed": False}),
    (V1, {"max_tokens": 3, "n": 2}, {"max_tokens": 3, "n": 2}),
    (V1, {"max_tokens": 9, "max_completion_tokens": 1}, {"max_tokens": 1}),
    (V1, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    (V1, {"top_k": 4, "seed": 5}, {"top_k": 4, "seed": 5, "repeatable": False}),
    (V1, {"top_k": -1, "seed": -1}, {"top_k": 0, "seed": None}),
    (V1, {"seed": 2**32 - 1, "stop": "a"}, {"seed": None, "stop": (b"a",)}),
    (V1, {"stop": ["a", "b"]}, {"stop": (b"a", b"b")}),
    (V1, {"suffix": "s", "logprobs": 2}, {"suffix": "s", "top": 2, "echo": False}),
    (V1, {"logprobs": 2, "echo": True}, {"top": 2, "echo": True}),
    (V1, {"stream": True}, {"streamed": True}),
    (V1, {"stream": True, "logprobs": 1}, {"streamed": False}),  # in a chunk when it is whole
    (V1, {"until": "line", "n_indent": 4}, {"until": "line", "indent": 4}),
    (V1, {"threshold": 0.5, "max_bytes": 7}, {"threshold": 0.5, "max_bytes": 7}),
    (V1, {"prompt": "\ufeffa"}, {"prompt": "a"}),
    (V1, {"prompt": [5, 6]}, {"prompt": [5, 6]}),
    (V1, {"token_healing": True, "model": "m", "user": "u"}, {"must_fit": True}),
    (LLAMA, {}, {"max_tokens": MOST_TOKENS, "until": "block", "must_fit": False}),
    (LLAMA, {"n_predict": -1}, {"max_tokens": MOST_TOKENS, "until": "block"}),
    (LLAMA, {"n_predict": -1, "stop": ["a"]}, {"max_tokens": MOST_TOKENS, "until": None}),
    (LLAMA, {"n_predict": 4, "max_tokens": 5}, {"max_tokens": 4, "until": None}),
    (LLAMA, {"max_tokens": 5, "n_cmpl": 3}, {"max_tokens": 5, "n": 3}),
    (LLAMA, {"temperature": 0.5}, {"temperature": 0.5}),
    (LLAMA, {"temperature": 0.5, "samplers": ["top_k"]}, {"temperature": 0}),
    (LLAMA, {"temperature": 0.5, "samplers": ["temperature"]}, {"temperature": 0.5}),
    *[(LLAMA, {"top_p": odd}, {"top_p": 1.0}) for odd in (2.0, -1.0)],
    (LLAMA, {"stop": ["", "a"], "seed": 2**32 - 1}, {"stop": (b"a",), "seed": None}),
    (LLAMA, {"t_max_predict_ms": 250, "stream": True}, {"line_seconds": 0.25, "streamed": True}),
    (LLAMA, {"t_max_predict_ms": -1}, {"line_seconds": None}),
    (INFILL, {"input_prefix": "b\n", "input_suffix": "c"}, {"prompt": "b\na", "suffix": "c"}),
    (
        INFILL,
        {"input_extra": FILES},
        {"files": (("<|file_sep|>", "a.py\nx = 1\n"), ("<|file_sep|>", "")), "max_tokens": 128},
    ),
    (INFILL, {"n_predict": -1}, {"max_tokens": MOST_TOKENS}),
    (INFILL, {"n_predict": 500}, {"max_tokens": 500}),
]


@pytest.mark.parametrize(("path", "fields", "wanted"), FIELDS)
def test_the_fields_of_a_request_are_those_of_its_task(
    lm: CharLM, path: str, fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    body, engine = {"prompt": "a"} | fields, SimpleNamespace(lm=lm)
    if path == V1:
        request: Any = CompletionRequest.model_validate(body)
        [task] = openai._Completions(engine, "m", request).tasks  # type: ignore[arg-type]
    else:
        kind = llama_cpp._InfillBody if path == INFILL else llama_cpp._CompletionBody
        [task] = llama_cpp._Completions("m", kind.model_validate(body)).tasks
    for name, value in wanted.items():
        owner = task if hasattr(task, name) else task.options
        assert getattr(owner, name) == value, name


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
        result = http.post(V1, json=sent | {"prompt": prompt}).json()
        assert result["choices"][0]["text"] == lm.vocabulary.decode(drawn).decode()
        assert result["usage"]["prompt_tokens"] == 1 + len(ids)


def bodies(before: str, after: str = "", most: int = 24) -> list[tuple[str, dict[str, Any]]]:
    """Requests for what is between two texts, or after one, in each dialect."""
    sides = {"input_prefix": before[:4], "prompt": before[4:], "input_suffix": after}
    requests = [(INFILL, {**sides, "n_predict": most})]
    requests += [(V1, {"prompt": before, "suffix": after or None, "max_tokens": most})]
    return requests if after else [*requests, (LLAMA, {"prompt": before, "n_predict": most})]


LINES = "import os\n\n\ndef names(path):\n"
BEFORE = LINES + "    return os.listd"
AFTER = "(path)\n\n\nprint(names('.'))\n"


@pytest.mark.parametrize("after", ["", AFTER])
@pytest.mark.parametrize("more", [{}, {"temperature": 1.0, "seed": 3}, {"stop": ["("], "seed": 1}])
def test_every_dialect_has_the_same_answer(
    http: httpx.Client, after: str, more: dict[str, Any]
) -> None:
    """Whole and as a stream; and of a file with CRLF, in its own line ends."""
    texts = set[str]()
    for end in ("\n", "\r\n"):
        for path, body in bodies(unify(BEFORE + "ir(path)\n", end), unify(after, end)):
            for stream in (False, True):
                text = text_of(http, path, body | more | {"stream": stream})
                assert text == unify(text, end)
                texts.add(unify(text))
    [text] = texts
    assert after or "\n" in text


@pytest.mark.parametrize("until", get_args(Until))
def test_where_a_rule_ends_the_text_the_answer_says_so(http: httpx.Client, until: str) -> None:
    prompt = "def f(x):\n    return x\n\n\ndef g(x):\n    retur"
    [choice] = http.post(V1, json={"prompt": prompt, "until": until}).json()["choices"]
    assert (choice["charwise"]["finish"], choice["finish_reason"]) == (until, "stop")
    assert http.post(LLAMA, json={"prompt": prompt, "until": until}).json()["stop_type"] == "limit"


@pytest.mark.parametrize("limit", [{"stop": "e"}, {"max_bytes": 3}, {}])
def test_no_tokens_are_no_text(http: httpx.Client, limit: dict[str, Any]) -> None:
    for path, body in bodies("class A:\n    def __init__(self, na", most=0):
        reply = http.post(path, json=body | limit).json()
        if path == V1:
            assert (reply["choices"][0]["text"], reply["usage"]["completion_tokens"]) == ("", 0)
        else:
            assert (reply["content"], reply["tokens_predicted"]) == ("", 0)


def test_stops_counts_and_offsets_are_those_of_the_file(http: httpx.Client) -> None:
    before = unify("import os\n\n\ndef f(path):\n", "\r\n")
    query = {"prompt": before, "max_tokens": 24, "logprobs": 2}
    choice = http.post(V1, json=query).json()["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    assert "\r\n" in text
    assert "".join(logprobs["tokens"]) == text
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert text[offset:].startswith(token)
    for stop in ("\n", "\r\n"):
        reply = http.post(LLAMA, json={"prompt": before, "stop": [stop]}).json()
        assert (reply["content"], reply["stopping_word"]) == (text.split("\r\n")[0], stop)
        assert reply["stop_type"] == "word"


def test_prompts_as_a_list_and_as_ids(http: httpx.Client, running_server: Running) -> None:
    vocabulary, prompts = running_server.lm.vocabulary, ["import nump", "x = o"]
    ids = [vocabulary.encode(text) for text in prompts]
    for path, limit in ((V1, "max_tokens"), (LLAMA, "n_predict")):
        query = {limit: 3, "seed": 1}
        each = [text_of(http, path, query | {"prompt": one}) for one in prompts]
        for prompt in (ids[0], [*vocabulary.bos_ids, *ids[0]]):
            assert text_of(http, path, query | {"prompt": prompt}) == each[0]
        for several in (prompts, ids):
            body = query | {"prompt": several}
            reply = http.post(path, json=body).json()
            choices = reply["choices"] if path == V1 else reply
            names = ("index", "text" if path == V1 else "content")
            assert [tuple(map(one.get, names)) for one in choices] == list(enumerate(each))
            texts = ["", ""]
            for part in events(http.post(path, json=body | {"stream": True})):
                index, text = map(part.get("choices", [part])[0].get, names)
                texts[index] += text
            assert texts == each


def test_tokens_there_and_back(http: httpx.Client, running_server: Running) -> None:
    text = "def naïve(): return '日本'"

    def tokens(content: str, **options: bool) -> Any:
        return http.post("/tokenize", json={"content": content} | options).json()["tokens"]

    ids = tokens(text)
    assert ids == running_server.lm.vocabulary.encode(text)
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": text}
    pieces = [one["piece"] for one in tokens(text, with_pieces=True)]
    raw = b"".join(one.encode() if isinstance(one, str) else bytes(one) for one in pieces)
    assert raw.decode() == text
    assert tokens("", add_special=True) == list(running_server.lm.vocabulary.bos_ids)


# Editors.

#: The body of `llama#fim`.
SIDES = {"input_prefix": LINES, "prompt": "    return os.listd", "input_suffix": "\n" + AFTER}
LIMITS = {"n_predict": 128, "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 20_000}
SAMPLING = {"stop": [], "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"]}
OTHERS = {"input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}]}
VIM: dict[str, Any] = SIDES | LIMITS | SAMPLING | OTHERS | {"id_slot": 0, "cache_prompt": True}
READS = ["content", "truncated", "tokens_cached"] + [
    f"timings/{part}_{what}"
    for part in ("prompt", "predicted")
    for what in ("n", "ms", "per_token_ms", "per_second")
]


def test_llama_vim_reads_the_answer_and_warms_up(
    http: httpx.Client, running_server: Running
) -> None:
    answer = http.post(INFILL, json=VIM | {"response_fields": READS})
    assert '"content":"' in answer.text  # it looks for that, without a space
    reply = answer.json()
    assert sorted(reply) == sorted(READS)
    before = "x = 1\n" + BEFORE  # what other files hold comes first
    [expected] = running_server.lm.infill(before, "\n" + AFTER, max_new_bytes=24)
    assert expected.text
    assert reply["content"].startswith(expected.text)
    assert (reply["truncated"], reply["timings/predicted_n"] > 0) == (False, True)
    assert http.post(INFILL, json=VIM | {"input_prefix": LINES * 300}).json()["truncated"] is True
    least = dict.fromkeys(SIDES, "") | {"n_predict": 0, "samplers": [], "t_max_predict_ms": 1}
    assert http.post(INFILL, json=VIM | least | {"response_fields": [""]}).json() == {}


def test_llama_vscode_gets_candidates_from_infill(
    http: httpx.Client, running_server: Running
) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    window = running_server.lm.engine.window
    assert http.get("/props").json()["default_generation_settings"]["n_ctx"] == window
    body = VIM | {"n_cmpl": 3, "lora": [], "n_predict": 8, "input_extra": []}
    several = http.post(INFILL, json=body).json()
    texts = {one["content"] for one in several}
    assert len(texts) == len(several) > 1
    one = http.post(INFILL, json=body | {"n_cmpl": 1}).json()
    assert one["content"] in texts  # the likeliest a byte first
    assert one["timings"]["predicted_n"] == one["tokens_predicted"]


# Answers with a form, against the library's constraints.

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
AGE, WORD, YES_NO = r'\s*\{\s*"age"\s*:\s*\d\d?\s*\}', "[ab]{2,3}", ["yes", "no"]
GBNF = 'root ::= "yes" | "no"'


def outputs(**form: Any) -> dict[str, Any]:
    return {"structured_outputs": form}


@pytest.mark.parametrize(
    ("path", "form", "whole"),
    [
        (V1, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, AGE),
        (V1, {"response_format": {"type": "json_schema", "schema": SCHEMA}}, AGE),
        (V1, outputs(json="\ufeff" + json.dumps(SCHEMA)), AGE),  # its mark is no part of it
        (V1, outputs(regex=WORD), WORD),
        (V1, outputs(choice=YES_NO), "yes|no"),
        (V1, outputs(grammar="\ufeff" + GBNF), "yes|no"),
        (V1, outputs(grammar='start: "yes" | "no"'), "yes|no"),
        (LLAMA, {"grammar": GBNF}, "yes|no"),
        (LLAMA, {"json_schema": SCHEMA}, AGE),
        *[(LLAMA, {"json_schema": every}, r'(?s)\s*["\[{\-\dtfn].*') for every in ({}, True)],
    ],
)
def test_an_answer_has_its_form(
    http: httpx.Client, running_server: Running, path: str, form: dict[str, Any], whole: str
) -> None:
    """At a temperature too, unless a limit ended it where it could have gone on."""
    pytest.importorskip("llguidance", reason="needs: pip install 'charwise[constraints]'")
    body = {"prompt": "person = ", "max_tokens": 64, "seed": 3, **form}
    assert re.fullmatch(whole, text_of(http, path, body))
    text = text_of(http, path, body | {"temperature": 1})
    if "choice" in str(form):
        [expected] = running_server.lm.complete("person = ", choices=YES_NO)
        reply = http.post(path, json=body).json()["choices"][0]
        assert (reply["text"], reply["finish_reason"]) == (expected.text, "stop")
    constraint = {AGE: json_schema(SCHEMA), WORD: regex(WORD), "yes|no": choices(YES_NO)}
    assert constraint.get(whole, json_schema({})).after(text.encode()).allowed().any()


CHECKED: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^2021-02-(28|29|30)$", "format": "date"},
    {"items": {"enum": [0, 1]}, "type": "array", "uniqueItems": True, "minItems": 2, "maxItems": 2},
]


@pytest.mark.parametrize("schema", CHECKED)
@pytest.mark.parametrize(("temperature", "n"), [(0, 1), (0, 12), (1, 1), (1, 12)])
def test_json_that_fails_its_check_is_drawn_again(
    http: httpx.Client, schema: dict[str, Any], temperature: int, n: int
) -> None:
    """What llguidance alone allows is in no answer, and in no chunk of a stream."""
    body = {"prompt": "d = ", "max_tokens": 30, "temperature": temperature, "n": n}
    body |= {"seed": 2 + n // 12} | outputs(json=schema)
    whole = http.post(V1, json=body).json()["choices"]
    for one in whole:
        if one["charwise"]["finish"] not in ("length", "time"):  # which cut a text off
            assert json_schema(schema).after(one["text"]).allowed()[END], one
    chunks = events(http.post(V1, json=body | {"stream": True}))
    texts = [one["text"] for chunk in chunks for one in chunk["choices"] if one["text"]]
    assert texts == [one["text"] for one in whole]
