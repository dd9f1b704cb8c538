"""`charwise next`, `charwise cover` and `charwise vocab`."""

from __future__ import annotations

import math

import pytest

import charwise
from charwise import CharLM, Vocabulary
from charwise.cli import inspect
from commands import run, run_json
from conftest import Data
from models import random_lm


def test_next_has_the_numbers_of_the_library() -> None:
    answer = run_json("next", "raise ValueErr", "--top", "3")
    nxt = charwise.load().next("raise ValueErr")
    assert [row["text"] for row in answer["next"]] == [name for name, _ in nxt.top(3)]
    assert [row["probability"] for row in answer["next"]] == pytest.approx(
        [p for _, p in nxt.top(3)], abs=1e-5
    )
    assert answer["entropy_bits"] == pytest.approx(nxt.entropy, abs=1e-3)
    characters = run_json("next", "--stdin", "--chars", "--top", "5", stdin=b"na\xc3")["next"]
    assert len(characters) == 5
    assert all(len(row["text"]) == 1 or row["text"] == "<eos>" for row in characters)


def test_cover_has_the_members_of_the_library() -> None:
    answer = run_json("cover", "import nump", "--top", "5", "--tolerance", "0.001")
    members = charwise.load().covering("import nump", tolerance=1e-3).top(5)
    assert [row["ids"] for row in answer["members"]] == [list(m.token_ids) for m in members]
    assert all("".join(row["tokens"]).startswith("import nump") for row in answer["members"])
    assert answer["missing"] <= 1e-3
    for row in answer["members"]:
        assert row["share"] == pytest.approx(math.exp(row["logprob"] - answer["lower"]))
    empty = {"tokens": [], "ids": [], "logprob": 0.0, "share": 1.0}
    assert run_json("cover", "")["members"] == [empty]
    assert run_json("cover", "--stdin", stdin=b"\xc3")["members"]


def test_cover_says_where_a_tokenizer_begins_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    spelled = [b" ", b"a", b" a", None]
    vocabulary = Vocabulary(spelled, end_ids=[3], bos_ids=[3], implied_prefix=b" ")
    lm = CharLM(random_lm(vocabulary, 2, 0))
    assert "puts before a text" not in run("cover", "a").stdout
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: lm)
    assert "the ' ' that this tokenizer puts before a text" in run("cover", "a").stdout


def test_too_many_tokenizations_are_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer contexts than usual, which would take their time here."""
    monkeypatch.setattr(inspect, "_MOST_VISITED", 8)
    text = " " * 200
    answer = run_json("cover", text)
    assert (answer["settled"], answer["members"], answer["size"]) == (False, [], None)
    assert answer["log10_size"] > 18
    assert answer["missing"] == 1.0
    printed = run("cover", text).stdout
    for part in ("0 of some 10^", "not settled", "The search ends at 8 contexts"):
        assert part in printed


@pytest.mark.parametrize("name", ["gpt2", "llama2"])
def test_vocab_describes_a_tokenizer_without_a_model(name: str, data: Data) -> None:
    folder = data.folder / "tokenizers" / name
    answer = run_json("vocab", "--model", folder, "--prefix", " ret")
    assert answer["implied_prefix"] == (" " if name == "llama2" else "")
    assert answer["fertility"] == (2 if name == "llama2" else 1)
    assert answer["byte_complete"]
    prefix = answer["prefix"]
    assert " return" in prefix["starting_with_it"]
    assert " " in prefix["prefixes_of_it"]
    assert prefix["allowed"] == len(prefix["starting_with_it"]) + len(prefix["prefixes_of_it"])
