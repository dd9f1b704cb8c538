"""Templates that editors write into a prompt: all families and orders, over HTTP."""

from __future__ import annotations

import re

import httpx
import pytest

import charwise
from charwise import CharLM
from charwise.healing.fim import Template
from charwise.serve.cache import Cache
from charwise.serve.dialect import _log_once
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import Task
from charwise.tokens.sentinels import SPELLINGS, Spelling
from sentinels import saved_with
from serving import answer, text_of

BEFORE = "import os\n\n\ndef names(path):\n    return [n for n in os.listd"
AFTER = "(path)]\n\n\nprint(names('.'))\n"
FAMILIES = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)


def template_text(spelling: Spelling, order: str = "") -> str:
    """A template as editors write it, in the family's own order or another one."""
    p, s, m = spelling.in_text
    if order == "suffix first" or spelling.middle is None:
        return f"{s.lstrip()}{AFTER}{p}{BEFORE}{m}"
    return f"{p.rstrip()}{s}{AFTER}{m}{BEFORE}" if order else f"{p}{BEFORE}{s}{AFTER}{m}"


@FAMILIES
def test_every_order_and_start_is_read(spelling: Spelling, lm: CharLM) -> None:
    for order in ("", "suffix first", "middle before prefix"):
        for start in ("", "<s>", "<bos>", "<|endoftext|>"):
            parsed = parse_prompt(Task(start + template_text(spelling, order)), lm.vocabulary)
            both = (parsed.before.decode().removeprefix(" "), (parsed.after or b"").decode())
            assert both == (BEFORE, AFTER)


@FAMILIES
def test_the_end_of_the_prefix_is_completed(http: httpx.Client, spelling: Spelling) -> None:
    """Whatever template an editor was set to, as Zed is."""
    body = {"prompt": "<s>" + template_text(spelling), "max_tokens": 32, "stop": ["<|endoftext|>"]}
    text = text_of(http, "/v1/completions", body)
    assert text.startswith("ir")
    assert "(path)]" not in text


@FAMILIES
def test_a_model_of_the_family_has_its_own_layout(
    spelling: Spelling, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = saved_with(tmp_path_factory.mktemp("model"), spelling.names)
    lm = charwise.load(folder)
    template = Template.of(lm.vocabulary)
    kept_ids = lm.infill_request(BEFORE, AFTER).kept
    special = [id for id in kept_ids if lm.vocabulary.tokens[id] is None]
    marks = template.layout([], [], template.order(None))
    assert special == [*lm.vocabulary.bos_ids, *marks]


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("<|fim_prefix|>a<|fim_middle|>", ["<|fim_middle|>", "<|fim_prefix|>"]),
        ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c<|fim_middle|>", ["<|fim_middle|>"]),
        ("<｜fim▁hole｜>a", ["\\uff5cfim\\u2581hole"]),
        ("<|mask:0|>a", ["<|mask:0|>"]),
        ("<AIX-SPAN-PRE>a<AIX-SPAN-POST>b<AIX-SPAN-MIDDLE>", ["<AIX-SPAN-PRE>", "<AIX-SPAN-POST>"]),
        ("x = 1 # <fim_suffix>", ["<fim_suffix>"]),
        (" ".join(f"<|z{n}|>" for n in range(99)), ["'<|z0|>', '<|z10|>'", "and 91 more"]),
        ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", []),
        (
            "<|fim_prefix|><fim_pad>a<|fim_suffix|><bos>b<|sep|><|fim_middle|>",
            ["<bos>", "<fim_pad>", "<|sep|>"],
        ),
        ("if a < b and c > d[0]:", []),
        ("<p>a</p> [INFO] List<int> <pre> <API-KEY> <POST>", []),
    ],
)
def test_control_tokens_in_no_known_order_are_named(
    http: httpx.Client, caplog: pytest.LogCaptureFixture, prompt: str, names: list[str]
) -> None:
    """In a header, whole or as a stream, in every dialect; and once in the log."""
    _log_once.cache_clear()
    for path in ("/v1/completions", "/completion"):
        for streamed in (False, True):
            body = {"prompt": prompt, "max_tokens": 1, "stream": streamed}
            warning = http.post(path, json=body).headers.get("x-charwise-warning", "")
            assert bool(warning) == bool(names)
            assert len(warning) < 400
            assert all(name in warning for name in names)
    assert len([one for one in caplog.records if "control tokens" in one.getMessage()]) == bool(
        names
    )


def test_control_tokens_in_a_suffix_are_named(http: httpx.Client) -> None:
    for path, field in (("/v1/completions", "suffix"), ("/infill", "input_suffix")):
        body = {"prompt": "a", field: "b <fim_pad>", "max_tokens": 1}
        assert "<fim_pad>" in http.post(path, json=body).headers["x-charwise-warning"]


ZETA = "<[fim-suffix]>\nb\n<[fim-prefix]><filename>a.py\nx = 1\n"
EDITS = {
    "zeta2": f"{ZETA}<<<<<<< CURRENT\nimport nu<|user_cursor|>\n=======\n<[fim-middle]>",
    "zeta2.1": f"{ZETA}<|marker_1|>\nimport nu<|user_cursor|>\n<|marker_2|>\n<[fim-middle]>",
    "sweep": "<|file_sep|>original/b.py\nimport\n<|file_sep|>current/b.py\nimport nu\n"
    "<|file_sep|>updated/b.py\nimport nu",
}


@pytest.fixture(scope="module")
def editing(tmp_path_factory: pytest.TempPathFactory) -> CharLM:
    """A model that has the control tokens of both families."""
    names = ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", "<filename>", "<|file_sep|>"]
    return charwise.load(saved_with(tmp_path_factory.mktemp("model"), names))


@pytest.mark.parametrize("name", EDITS)
def test_a_prompt_for_an_edit_is_conditioned_on_as_it_is(
    editing: CharLM, http: httpx.Client, name: str
) -> None:
    ids = {name: id for id, name in editing.vocabulary.special.items()}
    pieces = re.split(f"({'|'.join(map(re.escape, ids))})", EDITS[name])
    parts = [ids.get(piece, piece) for piece in pieces if piece]
    [expected] = editing.complete([*editing.vocabulary.bos_ids, *parts], max_new_bytes=40)
    [result] = answer(Cache(editing), Task(EDITS[name], max_tokens=3)).candidates
    assert result.text
    assert expected.text.startswith(result.text)
    refused = http.post("/v1/completions", json={"prompt": EDITS[name]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


# Prompts that write a repository out: its other files are what the model reads first.

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
OTHER = "limits.py\nLIMIT = 5\n"
HEAD, TAIL = "from limits import LIM", "\n\nprint(LIMIT)\n"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> CharLM:
    """The embedded model with Qwen's control tokens, which it was never trained with."""
    folder = tmp_path_factory.mktemp("model")
    return charwise.load(saved_with(folder, QWEN, special=False, seed=2))


def prompt_of(names: list[str], template: bool) -> str:
    before, between, last, repository, separator = names
    files = f"{repository}shop\n{separator}{OTHER}{separator}main.py\n"
    return f"{files}{before}{HEAD}{between}{TAIL}{last}" if template else files + HEAD


def opening_of(lm: CharLM, path: str) -> tuple[int, ...]:
    ids = {name: id for id, name in lm.vocabulary.special.items()}
    repository, separator = ids["<|repo_name|>"], ids["<|file_sep|>"]
    parts: list[str | bytes | int] = [*lm.vocabulary.bos_ids, repository, "shop\n", separator]
    parts += [OTHER, separator, *([path] if path else [])]
    return tuple(lm.vocabulary.encode_prompt(parts))


STARCODER = [*SPELLINGS[0].names, "<repo_name>", "<file_sep>"]


@pytest.mark.parametrize("names", [QWEN, STARCODER], ids=["own", "of another family"])
def test_other_files_stand_behind_the_models_own_tokens(qwen: CharLM, names: list[str]) -> None:
    sides = parse_prompt(Task(prompt_of(names, True)), qwen.vocabulary)
    assert sides.opening == opening_of(qwen, "main.py\n")
    assert (sides.before, sides.after) == (HEAD.encode(), TAIL.encode())
    assert sides.between
    parsed_prompt = parse_prompt(Task(prompt_of(names, False)), qwen.vocabulary)
    assert parsed_prompt.opening == opening_of(qwen, "")
    assert (parsed_prompt.before, parsed_prompt.after) == (b"main.py\n" + HEAD.encode(), b"")


def test_without_such_tokens_they_are_text(lm: CharLM) -> None:
    """Without the path of a file, where it has one: Continue writes snippets without."""
    _, suffix, last, _, separator = STARCODER
    before = f"{separator}x = 1\ny = 2\n{separator}a.py\nz = 3\n<fim_prefix>{HEAD}"
    parsed = parse_prompt(Task(f"{before}{suffix}{TAIL}{last}"), lm.vocabulary)
    assert parsed.before == b"x = 1\ny = 2\nz = 3\n" + HEAD.encode()
    sides = parse_prompt(Task(prompt_of(QWEN, True)), lm.vocabulary)
    assert sides.opening == ()
    assert sides.before == b"LIMIT = 5\n" + HEAD.encode()
    assert sides.after == TAIL.encode()


def test_a_completion_is_conditioned_on_them(qwen: CharLM) -> None:
    prompt = prompt_of(QWEN, False)
    [result] = answer(Cache(qwen), Task(prompt, max_tokens=8)).candidates
    [expected] = qwen.complete([*opening_of(qwen, ""), "main.py\n" + HEAD], max_new_bytes=40)
    assert expected.text.startswith(result.text)
    # Those that do not fit lose their beginning.
    long = Task(prompt_of(QWEN, True).replace(OTHER, OTHER * 2000), max_tokens=8)
    cut = answer(Cache(qwen), long, Template.of(qwen.vocabulary))
    assert cut.truncated
    assert cut.candidates[0].finish != "window"
