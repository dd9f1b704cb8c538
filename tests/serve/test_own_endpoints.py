"""The server's own endpoints, which the page asks: every number is one of `CharLM`'s."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import charwise
from charwise import CharLM, heal_generate, healing
from charwise.models import EMBEDDED
from charwise.serve.app import Settings, application
from charwise.tokens.vocabulary import Vocabulary
from models import random_lm

TEXTS = [
    "def sweep(self):\n    self.sw",
    "raise ValueErr",
    "x = 1 ",
    "print('😀', \"東京\")\nx = na",
    "<script>alert(1)</script> & é",
]


@pytest.fixture(scope="module")
def page(lm: CharLM) -> Iterator[TestClient]:
    app = application(lm, Settings())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def ask(page: TestClient, what: str, **body: Any) -> Any:
    answer = page.post(f"/v1/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("text", TEXTS)
def test_the_next_characters_are_those_of_the_model(
    page: TestClient, lm: CharLM, text: str
) -> None:
    seen = ask(page, "next", prompt=text, top=9)
    chars, following = lm.next_chars(text, coverage=0.999), lm.next(text)
    close = max(1e-4, 2 * (seen["error"] + following.error))  # estimates, one of each
    for one in seen["chars"]:
        assert one["prob"] == pytest.approx(chars.probs.get(one["text"], one["prob"]), abs=close)
    for one in seen["bytes"]:
        if one["byte"] < 256:
            assert one["prob"] == pytest.approx(following.probs[one["byte"]], abs=close)


@pytest.mark.parametrize("text", TEXTS)
def test_members_spell_the_text_and_have_its_probability(
    page: TestClient, lm: CharLM, text: str
) -> None:
    covering, state = ask(page, "covering", prompt=text, top=60), lm.state(text)
    total = math.fsum(one["prob"] for one in covering["members"])
    assert 0.5 < total <= 1 + 1e-6
    for one in covering["members"]:
        spelled = lm.vocabulary.decode(one["ids"])
        assert spelled.startswith(state.raw[state.exact_from :])
        assert one["tokens"][-1].startswith(one["within"][:1])
        if one["text"] is not None:
            assert (text + one["text"]).encode().endswith(spelled)
    if text == "raise ValueErr":
        [best] = lm.covering(text).top(1)
        assert covering["members"][0]["ids"] == list(best.token_ids)
        share = math.exp(best.logprob - lm.prefix_logprob(text))
        assert covering["members"][0]["prob"] == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize("text", TEXTS)
def test_plain_and_healed_completions(page: TestClient, lm: CharLM, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    for rule in ("off", "auto"):
        [new] = heal_generate(
            lm.engine.model, tokenizer, [text], rule=rule, max_new_bytes=32, do_sample=False
        )
        assert ask(page, "steps", prompt=text, rule=rule)["text"] == new.split("\n\n")[0]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("per", ["char", "word"])
def test_surprisal_is_that_of_the_score(page: TestClient, lm: CharLM, text: str, per: str) -> None:
    result, score = ask(page, "score", text=text, per=per), lm.score(text)
    assert result["logprob"] == pytest.approx(score.logprobs.sum(), abs=1e-3)
    bits = math.fsum(one["surprisal"] for one in result["spans"])
    assert bits == pytest.approx(-score.logprobs.sum() / math.log(2), abs=1e-2)
    if per == "char":
        assert "".join(one["text"] for one in result["spans"]) == text
    context = ask(page, "score", text=text[4:], context=text[:4], per=per)
    assert context["logprob"] == pytest.approx(score.logprobs[4:].sum(), abs=1e-3)


@pytest.mark.parametrize("text", TEXTS)
def test_the_steps_are_the_healed_generation(page: TestClient, lm: CharLM, text: str) -> None:
    result = ask(page, "steps", prompt=text)
    kept_ids, forced = healing.cut(text, lm.index)
    assert "".join(result["removed"]) == result["forced"] == forced.decode()
    assert result["kept"] == [
        (lm.vocabulary.tokens[id] or b"").decode("utf-8", "backslashreplace") for id in kept_ids
    ]
    assert result["allowed"] == len(healing.allowed_next(forced, lm.index))
    assert result["vocabulary"] == len(healing.allowed_next(b"", lm.index))  # ends of text, too
    taken: list[int] = []
    for step in result["steps"]:
        left = healing.remaining(forced, taken, lm.vocabulary)
        assert step["left"] == left.decode()
        allowed = healing.allowed_next(left, lm.index)
        assert step["allowed"] == len(allowed)
        row = lm.engine.tree([*kept_ids, *taken]).logprobs([0])[0].double().exp()
        best = int(allowed[row.numpy()[allowed].argmax()])
        assert step["candidates"][0]["id"] == best
        assert step["candidates"][0]["p"] == pytest.approx(float(row[best]), rel=1e-3)
        assert step["mass"] == pytest.approx(float(row.numpy()[allowed].sum()), rel=1e-3)
        taken.append(best)
    assert healing.remaining(forced, taken, lm.vocabulary) == b""
    middle = lm.vocabulary.decode(taken)[len(forced) :]
    both = min(len(middle), len(result["text"].encode()))
    assert middle[:both] == result["text"].encode()[:both]


@pytest.mark.parametrize("what", ["next", "covering"])
def test_the_suffix_of_a_written_template_counts(page: TestClient, lm: CharLM, what: str) -> None:
    text = "for i in ra"
    ones = [
        ask(page, what, prompt=f"<|fim_prefix|>{text}<|fim_suffix|>{after}<|fim_middle|>", top=3)
        for after in ("e(10):\n    print(i)\n", "dii:\n    print(i)\n")
    ]
    assert ones[0] != ones[1]
    if what == "next":
        request = lm.infill_request(text, "e(10):\n    print(i)\n")
        last = lm.vocabulary.decode(request.kept[request.opening :]) + request.forced
        expected = lm.next([*request.kept[: request.opening], last])
        for one in ones[0]["bytes"]:
            assert one["prob"] == pytest.approx(expected.probs[one["byte"]], abs=1e-2)


def test_a_byte_order_mark_is_no_text(page: TestClient) -> None:
    for what, field in (("next", "prompt"), ("covering", "prompt"), ("score", "text")):
        assert ask(page, what, **{field: "\ufeffimport"}) == ask(page, what, **{field: "import"})
    raw = b'\xef\xbb\xbf{"text": "import"}'
    assert page.post("/v1/score", content=raw).json() == ask(page, "score", text="import")
    asks = [{"prompt": mark + "import nump", "max_tokens": 2, "seed": 1} for mark in ("", "\ufeff")]
    one, other = (ask(page, "completions", **body) for body in asks)
    assert one["choices"] == other["choices"]
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_the_files_of_the_page(page: TestClient) -> None:
    folder = Path(charwise.__file__).parent / "serve" / "page"
    for path in folder.iterdir():
        answer = page.get("/" if path.name == "index.html" else f"/page/{path.name}")
        assert answer.content == path.read_bytes()
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        source = path.read_text(encoding="utf-8")
        assert "://" not in source.replace("# see http:", "")
        for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert unsafe not in source
    assert page.get("/page/../app.py").status_code == 404
    assert page.get("/page/nothing.js").status_code == 404


def test_a_vocabulary_of_another_alphabet() -> None:
    tokens = ["я".encode(), "ю".encode(), None]
    model = random_lm(Vocabulary.from_bytes(tokens, bos_ids=[2]), 2, 0)
    app = application(CharLM(model), Settings())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.post("/v1/next", json={"prompt": "я"}).status_code == 200
        assert client.post("/v1/next", json={"prompt": "a"}).status_code == 400
