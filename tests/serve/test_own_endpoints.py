"""The server's own endpoints, which the page asks: every number is one of `CharLM`'s."""

import math
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

import charwise
from charwise import CharLM, healing
from charwise.serve.app import Settings, application
from charwise.side_by_side import complete_by_tokens
from charwise.tokens.vocabulary import Vocabulary
from models import random_lm

TEXTS = pytest.mark.parametrize(
    "text",
    [
        "def sweep(self):\n    self.sw",
        "raise ValueErr",
        "x = 1 ",
        "print('😀', \"東京\")\nx = na",
        "<script>alert(1)</script> & é",
    ],
)


def ask(http: httpx.Client, what: str, **body: Any) -> Any:
    answer = http.post(f"/v1/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@TEXTS
def test_the_next_characters_are_those_of_the_model(
    http: httpx.Client, lm: CharLM, text: str
) -> None:
    seen = ask(http, "next", prompt=text, top=9)
    chars, following = lm.next_chars(text, coverage=0.999), lm.next(text)
    close = max(1e-4, 2 * (seen["error"] + following.error))  # estimates, one of each
    for one in seen["chars"]:
        assert one["prob"] == pytest.approx(chars.probs.get(one["text"], one["prob"]), abs=close)
    for one in seen["bytes"]:
        if one["byte"] < 256:
            assert one["prob"] == pytest.approx(following.probs[one["byte"]], abs=close)


@TEXTS
def test_members_spell_the_text_and_have_its_probability(
    http: httpx.Client, lm: CharLM, text: str
) -> None:
    members, state = ask(http, "covering", prompt=text, top=60)["members"], lm.state(text)
    assert 0.5 < math.fsum(one["prob"] for one in members) <= 1 + 1e-6
    for one in members:
        spelled = lm.vocabulary.decode(one["ids"])
        assert spelled.startswith(state.raw[state.exact_from :])
        assert one["tokens"][-1].startswith(one["within"][:1])
        assert one["text"] is None or (text + one["text"]).encode().endswith(spelled)
    if text == "raise ValueErr":
        [best] = lm.covering(text).top(1)
        assert members[0]["ids"] == list(best.token_ids)
        share = math.exp(best.logprob - lm.prefix_logprob(text))
        assert members[0]["prob"] == pytest.approx(share, rel=1e-3)


@TEXTS
def test_surprisal_is_that_of_the_score(http: httpx.Client, lm: CharLM, text: str) -> None:
    logprobs = lm.score(text).logprobs
    for per in ("char", "word"):
        result = ask(http, "score", text=text, per=per)
        assert result["logprob"] == pytest.approx(logprobs.sum(), abs=1e-3)
        bits = math.fsum(one["surprisal"] for one in result["spans"])
        assert bits == pytest.approx(-logprobs.sum() / math.log(2), abs=1e-2)
        assert per == "word" or "".join(one["text"] for one in result["spans"]) == text
        context = ask(http, "score", text=text[4:], context=text[:4], per=per)
        assert context["logprob"] == pytest.approx(logprobs[4:].sum(), abs=1e-3)


@TEXTS
def test_the_steps_are_the_healed_generation(http: httpx.Client, lm: CharLM, text: str) -> None:
    result = ask(http, "steps", prompt=text)
    kept_ids, forced = healing.cut(text, lm.index)
    assert "".join(result["removed"]) == result["forced"] == forced.decode()
    assert result["kept"] == [
        (lm.vocabulary.tokens[id] or b"").decode("utf-8", "backslashreplace") for id in kept_ids
    ]
    assert result["vocabulary"] == len(healing.allowed_next(b"", lm.index))  # ends of text, too
    taken: list[int] = []
    for step in result["steps"]:
        left = healing.remaining(forced, taken, lm.vocabulary)
        allowed = healing.allowed_next(left, lm.index)
        assert (step["left"], step["allowed"]) == (left.decode(), len(allowed))
        assert taken or result["allowed"] == len(allowed)
        row = lm.engine.tree([*kept_ids, *taken]).logprobs([0])[0].double().exp().numpy()
        best = int(allowed[row[allowed].argmax()])
        assert step["candidates"][0]["id"] == best
        assert step["candidates"][0]["p"] == pytest.approx(float(row[best]), rel=1e-3)
        assert step["mass"] == pytest.approx(float(row[allowed].sum()), rel=1e-3)
        taken.append(best)
    assert healing.remaining(forced, taken, lm.vocabulary) == b""
    middle, raw = lm.vocabulary.decode(taken)[len(forced) :], result["text"].encode()
    assert middle.startswith(raw) or raw.startswith(middle)
    options = charwise.GenerationOptions(max_new_bytes=32, stop="\n\n")
    [plain] = complete_by_tokens(lm, text.encode(), "off", options)
    assert ask(http, "steps", prompt=text, rule="off")["text"] == plain


@pytest.mark.parametrize("what", ["next", "covering"])
def test_the_suffix_of_a_written_template_counts(http: httpx.Client, lm: CharLM, what: str) -> None:
    text, after = "for i in ra", "e(10):\n    print(i)\n"
    one, other = (
        ask(http, what, prompt=f"<|fim_prefix|>{text}<|fim_suffix|>{suffix}<|fim_middle|>", top=3)
        for suffix in (after, "dii:\n    print(i)\n")
    )
    assert one != other
    if what == "next":
        request = lm.infill_request(text, after)
        last = lm.vocabulary.decode(request.kept[request.opening :]) + request.forced
        expected = lm.next([*request.kept[: request.opening], last]).probs
        for each in one["bytes"]:
            assert each["prob"] == pytest.approx(expected[each["byte"]], abs=1e-2)


def test_a_byte_order_mark_is_no_text(http: httpx.Client) -> None:
    for what, field in (("next", "prompt"), ("covering", "prompt"), ("score", "text")):
        assert ask(http, what, **{field: "\ufeffimport"}) == ask(http, what, **{field: "import"})
    raw = b'\xef\xbb\xbf{"text": "import"}'
    assert http.post("/v1/score", content=raw).json() == ask(http, "score", text="import")


def test_the_files_of_the_page(http: httpx.Client) -> None:
    for path in (Path(charwise.__file__).parent / "serve" / "page").iterdir():
        answer = http.get("/" if path.name == "index.html" else f"/page/{path.name}")
        assert answer.content == path.read_bytes()
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        source = path.read_text(encoding="utf-8")
        assert "://" not in source.replace("# see http:", "")
        for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert unsafe not in source
    for name in ("../app.py", "nothing.js"):
        assert http.get(f"/page/{name}").status_code == 404


def test_a_vocabulary_of_another_alphabet() -> None:
    vocabulary = Vocabulary.from_bytes(["я".encode(), "ю".encode(), None], bos_ids=[2])
    app = application(CharLM(random_lm(vocabulary, 2, 0)), Settings())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for text, status in (("я", 200), ("a", 400)):
            assert client.post("/v1/next", json={"prompt": text}).status_code == status
