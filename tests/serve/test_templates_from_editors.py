"""Templates that editors write into a prompt: all families and orders, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import charwise
from charwise import CharLM
from charwise.healing.fim import Template
from charwise.serve.prompt import _warn_of_unread, parse_prompt
from charwise.serve.task import Task
from charwise.tokens.sentinels import SPELLINGS, Spelling
from sentinels import saved_with
from serving import Running, running

BEFORE = "import os\n\n\ndef names(path):\n    return [n for n in os.listd"
AFTER = "(path)]\n\n\nprint(names('.'))\n"
FAMILIES = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)


def written(spelling: Spelling, order: str = "") -> str:
    """A template as editors write it, in the family's own order or another one."""
    p, s, m = spelling.in_text
    if order == "suffix first" or spelling.middle is None:
        return f"{s.lstrip()}{AFTER}{p}{BEFORE}{m}"
    return f"{p.rstrip()}{s}{AFTER}{m}{BEFORE}" if order else f"{p}{BEFORE}{s}{AFTER}{m}"


@FAMILIES
def test_every_order_and_start_is_read(spelling: Spelling, lm: CharLM) -> None:
    for order in ("", "suffix first", "middle before prefix"):
        for start in ("", "<s>", "<bos>", "<|endoftext|>"):
            parsed = parse_prompt(Task(start + written(spelling, order)), lm.vocabulary)
            both = (parsed.before.decode().removeprefix(" "), (parsed.after or b"").decode())
            assert both == (BEFORE, AFTER)


@FAMILIES
def test_the_end_of_the_prefix_is_completed(http: httpx.Client, spelling: Spelling) -> None:
    """Whatever template an editor was set to, as Zed is."""
    body = {"prompt": "<s>" + written(spelling), "max_tokens": 32, "stop": ["<|endoftext|>"]}
    answer = http.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"].startswith("ir")
    assert "(path)]" not in answer.json()["choices"][0]["text"]


@FAMILIES
def test_a_model_of_the_family_has_its_own_layout(
    spelling: Spelling, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As text and as ids: both sides come back, and the model reads its own sentinels."""
    folder = saved_with(tmp_path_factory.mktemp("model"), spelling.names)
    lm = charwise.load(folder)
    template = Template.of(lm.vocabulary)
    request = lm.infill_request(BEFORE, AFTER)
    special = [id for id in request.kept if lm.vocabulary.tokens[id] is None]
    marks = template.layout([], [], template.order(None))
    assert special == [*lm.vocabulary.bos_ids, *marks]
    whole = lm.infill_request(BEFORE, AFTER, left="off", right="off").kept
    if template.middle is not None:
        parsed = parse_prompt(Task(whole), lm.vocabulary)
        assert (parsed.before, parsed.after) == (BEFORE.encode(), AFTER.encode())


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("<|fim_prefix|>a<|fim_middle|>", ["<|fim_middle|>", "<|fim_prefix|>"]),
        ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c<|fim_middle|>", ["<|fim_middle|>"]),
        ("<｜fim▁hole｜>a", ["\\uff5cfim\\u2581hole"]),
        ("<|mask:0|>a", ["<|mask:0|>"]),
        ("x = 1 # <fim_suffix>", ["<fim_suffix>"]),
        (" ".join(f"<|z{n}|>" for n in range(99)), ["'<|z0|>', '<|z10|>'"]),
        ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", []),
        ("if a < b and c > d[0]:", []),
        ("<p>a</p> [INFO] List<int>", []),
    ],
)
def test_control_tokens_in_no_known_order_are_logged_once(
    lm: CharLM, caplog: pytest.LogCaptureFixture, prompt: str, names: list[str]
) -> None:
    _warn_of_unread.cache_clear()
    for _ in range(2):
        parse_prompt(Task(prompt), lm.vocabulary)
    logged = [one.getMessage() for one in caplog.records]
    assert len(logged) == bool(names)
    for message in logged:
        assert len(message) < 400
        assert all(name in message for name in names)


ZETA = "<[fim-suffix]>\nb\n<[fim-prefix]><filename>a.py\nx = 1\n"
EDITS = {
    "zeta2": f"{ZETA}<<<<<<< CURRENT\nimport nu<|user_cursor|>\n=======\n<[fim-middle]>",
    "zeta2.1": f"{ZETA}<|marker_1|>\nimport nu<|user_cursor|>\n<|marker_2|>\n<[fim-middle]>",
    "sweep": "<|file_sep|>original/b.py\nimport\n<|file_sep|>current/b.py\nimport nu\n"
    "<|file_sep|>updated/b.py\nimport nu",
}


@pytest.fixture(scope="module")
def editing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose model has the control tokens of both families."""
    names = ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", "<filename>", "<|file_sep|>"]
    folder = saved_with(tmp_path_factory.mktemp("model"), names)
    with running(charwise.load(folder), seconds=600.0) as one:
        yield one


@pytest.mark.parametrize("name", EDITS)
def test_a_prompt_for_an_edit_is_conditioned_on_as_it_is(
    editing: Running, running_server: Running, name: str
) -> None:
    body = {"prompt": EDITS[name], "max_tokens": 3, "seed": 1}
    answer = httpx.post(f"{editing.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    ids = {name: id for id, name in editing.lm.vocabulary.special.items()}
    text = EDITS[name]
    parts: list[Any] = [*editing.lm.vocabulary.bos_ids]
    while text:
        part = next((one for one in ids if text.startswith(one)), "")
        plain = text[: min((at for one in ids if (at := text.find(one)) >= 0), default=len(text))]
        parts.append(ids[part] if part else plain)
        text = text[len(part or plain) :]
    [expected] = editing.lm.complete(parts, max_new_bytes=40)
    assert expected.text.startswith(answer.json()["choices"][0]["text"])
    refused = httpx.post(f"{running_server.url}/v1/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
