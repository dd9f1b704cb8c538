"""What the page asks for: every number is one of `CharLM`'s."""

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
from charwise.serve.app import application
from charwise.serve.server import Settings

TEXTS = [
    "def sweep(self):\n    self.sw",
    "class Node:\n    pass\n\ndef get_node(self, value) -> Nod",
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


def asked(page: TestClient, what: str, text: str) -> Any:
    answer = page.post(f"/playground/{what}", json={"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_cut_where_healing_cuts(page: TestClient, lm: CharLM, text: str) -> None:
    seen = asked(page, "look", text)
    kept, forced = healing.cut(text, lm.index)
    ids = healing.prompt_ids(text, lm.vocabulary)
    assert [token["id"] for token in seen["tokens"]] == ids
    assert [token["kept"] for token in seen["tokens"]] == [n < len(kept) for n in range(len(ids))]
    assert seen["given_back"] == len(ids) - len(kept)
    assert seen["forced"] == forced.decode()
    assert seen["allowed"] == len(healing.allowed_next(forced, lm.index))


@pytest.mark.parametrize("text", TEXTS)
def test_the_next_characters_are_those_of_the_model(
    page: TestClient, lm: CharLM, text: str
) -> None:
    seen = asked(page, "look", text)["next"]
    chars, following = lm.next_chars(text, coverage=0.999), lm.next(text)
    for one in seen["characters"]:
        close = max(1e-4, 2 * (seen["error"] + following.error))  # estimates, one of each
        assert one["p"] == pytest.approx(chars.probs.get(one["text"], one["p"]), abs=close)
    listed = math.fsum(one["p"] for one in seen["characters"])
    assert listed + seen["end"] + seen["rest"] == pytest.approx(1.0)
    best = max(chars.probs.items(), key=lambda pair: pair[1])
    if best[1] > 0.2:
        assert seen["characters"][0]["text"] == best[0]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tree_is_the_covering(page: TestClient, lm: CharLM, text: str) -> None:
    tree = asked(page, "look", text)["covering"]
    tokens, state = lm.vocabulary.tokens, lm.state(text)

    def each_leaf(nodes: list[dict[str, Any]], path: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
        for node in nodes:
            if "children" in node:
                below = math.fsum(child["share"] for child in node["children"])
                assert node["share"] == pytest.approx(below, abs=1e-9)
                yield from each_leaf(node["children"], (*path, node["id"]))
            else:
                yield path, node

    leaves = list(each_leaf(tree["children"], tuple(tree["root_ids"])))
    total = math.fsum(node["share"] for _, node in leaves) + tree["rest"]
    assert total == pytest.approx(1.0, abs=1e-6)
    listed = [one["share"] for one in tree["children"] if "others" not in one]
    assert listed == sorted(listed, reverse=True)
    for path, node in leaves:
        if "others" in node:
            continue
        spelled = b"".join(tokens[id] or b"" for id in (*path, node["id"]))
        assert spelled.startswith(state.raw[state.exact_from :])
        assert tokens[node["id"]].decode("utf-8", "backslashreplace").endswith(node["beyond"])
        if node["insert"] is not None:
            assert (text + node["insert"]).encode().endswith(spelled)


def test_the_heaviest_leaf_is_the_heaviest_member(page: TestClient, lm: CharLM) -> None:
    text = "raise ValueErr"
    tree = asked(page, "look", text)["covering"]
    [member] = lm.covering(text).top(1)
    share = math.exp(member.logprob - lm.prefix_logprob(text))
    leaf, path = tree["children"][0], list(tree["root_ids"])
    while "children" in leaf:
        path.append(leaf["id"])
        leaf = leaf["children"][0]
    assert (*path, leaf["id"]) == member.token_ids
    assert leaf["share"] == pytest.approx(share, rel=1e-3)


@pytest.mark.parametrize("text", TEXTS[:4])
def test_the_three_completions(page: TestClient, lm: CharLM, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    found = asked(page, "complete", text)
    for name, rule in (("plain", "off"), ("healed", "auto")):
        [new] = heal_generate(
            lm.engine.model, tokenizer, [text], rule=rule, max_new_bytes=32, do_sample=False
        )
        assert found[name] == new.split("\n\n")[0]
    [exact] = lm.state(text).complete(max_new_bytes=32, stop="\n\n")
    assert found["exact"] == exact.text


@pytest.mark.parametrize("text", TEXTS)
def test_surprisal_is_that_of_the_score(page: TestClient, lm: CharLM, text: str) -> None:
    found = asked(page, "surprisal", text)
    spans = lm.score(text, preset="fast").chars()
    assert "".join(one["text"] for one in found["characters"]) == text
    assert [one["bits"] for one in found["characters"]] == pytest.approx(
        [span.surprisal for span in spans], abs=1e-4
    )


@pytest.mark.parametrize("text", TEXTS)
def test_the_steps_are_the_healed_generation(page: TestClient, lm: CharLM, text: str) -> None:
    told = asked(page, "steps", text)
    kept, forced = healing.cut(text, lm.index)
    assert "".join(told["given_back"]) == told["forced"] == forced.decode()
    taken: list[int] = []
    for step in told["steps"]:
        left = healing.remaining(forced, taken, lm.vocabulary)
        assert step["left"] == left.decode()
        allowed = healing.allowed_next(left, lm.index)
        assert step["allowed"] == len(allowed)
        row = lm.engine.tree([*kept, *taken]).logprobs([0])[0].double().exp()
        best = int(allowed[row.numpy()[allowed].argmax()])
        assert step["candidates"][0]["id"] == best
        assert step["candidates"][0]["p"] == pytest.approx(float(row[best]), rel=1e-3)
        assert step["mass"] == pytest.approx(float(row.numpy()[allowed].sum()), rel=1e-3)
        taken.append(best)
    text_ = asked(page, "complete", text)["healed"]
    assert healing.remaining(forced, taken, lm.vocabulary) == b""
    written = lm.vocabulary.decode(taken)[len(forced) :]
    both = min(len(written), len(text_.encode()))
    assert written[:both] == text_.encode()[:both]


def test_the_blog_s_figure(page: TestClient) -> None:
    told = asked(page, "steps", "def sweep(self):\n    self.sw")
    assert [step["candidates"][0]["text"] for step in told["steps"]][:3] == [".", "s", "we"]
    assert [step["left"] for step in told["steps"]][:3] == [".sw", "sw", "w"]


@pytest.mark.slow
def test_texts_of_all_kinds(page: TestClient) -> None:
    source = Path(healing.__file__).read_text(encoding="utf-8")[:6000]
    for text in ("", "\n", "\x00", "\u2028", source, "é" * 50, "👩‍👩‍👧"):
        seen = asked(page, "look", text)
        assert (seen["covering"] is None) == (not text)
        for what in ("complete", "surprisal", "steps"):
            asked(page, what, text)
    assert asked(page, "surprisal", source)["left_out"] == 6000 - 240
    halved = page.post("/playground/look", content=b'{"text": "\\ud83d"}')
    assert halved.status_code in (200, 400)
    too_long = page.post("/playground/look", json={"text": "a" * 8_001})
    assert too_long.status_code == 400
    assert "text" in too_long.json()["error"]["message"]


def test_the_files_of_the_page(page: TestClient) -> None:
    folder = Path(charwise.__file__).parent / "serve" / "playground" / "page"
    for path in folder.iterdir():
        answer = page.get("/" if path.name == "index.html" else f"/playground/{path.name}")
        assert answer.content == path.read_bytes()
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        source = path.read_text(encoding="utf-8")
        assert "://" not in source.replace("# see http:", "")
        for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert unsafe not in source
    assert page.get("/playground/../routes.py").status_code == 404
    assert page.get("/playground/nothing.js").status_code == 404
