"""`charwise next`, `charwise cover` and `charwise vocab`."""

from __future__ import annotations

import math
import re

import pytest

import charwise
from charwise import CharLM, Vocabulary
from charwise.cli import inspect
from commands import run, run_json
from conftest import Data
from models import random_lm


def test_next_as_json() -> None:
    answer = run_json("next", "raise ValueErr", "--top", "3")
    nxt = charwise.load().next("raise ValueErr")
    assert [row["text"] for row in answer["next"]] == [name for name, _ in nxt.top(3)]
    assert [row["probability"] for row in answer["next"]] == pytest.approx(
        [p for _, p in nxt.top(3)], abs=1e-5
    )
    assert answer["entropy_bits"] == pytest.approx(nxt.entropy, abs=1e-3)


def test_next_characters() -> None:
    answer = run_json("next", "--stdin", "--chars", "--top", "2", stdin=b"na\xc3")
    assert len(answer["next"]) == 2
    assert all(len(row["text"]) == 1 or row["text"] == "<eos>" for row in answer["next"])
    sure = run_json("next", "import nump", "--chars", "--top", "5")["next"]
    assert len(sure) == 5  # "y" alone has 99 hundredths
    assert sure[0]["text"] == "y"


def test_cover_says_where_a_tokenizer_begins_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(
        [b" ", b"a", b" a", None], end_ids=[3], bos_ids=[3], implied_prefix=b" "
    )
    lm = CharLM(random_lm(vocabulary, 2, 0))
    assert "puts before a text" not in run("cover", "a").stdout
    monkeypatch.setattr("charwise.cli.options.ModelOptions.load", lambda *_: lm)
    result = run("cover", "a")
    assert result.exit_code == 0, result.output
    assert "each starts with the ' ' that this tokenizer puts before a text" in result.stdout


def test_cover_as_json() -> None:
    answer = run_json("cover", "import nump", "--top", "5", "--tolerance", "0.001")
    lm = charwise.load()
    members = lm.covering("import nump", tolerance=1e-3).top(5)
    assert [row["ids"] for row in answer["members"]] == [list(m.token_ids) for m in members]
    assert all("".join(row["tokens"]).startswith("import nump") for row in answer["members"])
    assert answer["lower"] <= answer["upper"]
    assert answer["missing"] <= 1e-3
    shares = [row["share"] for row in answer["members"]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1
    first = answer["members"][0]
    assert first["share"] == pytest.approx(math.exp(first["logprob"] - answer["lower"]))


def test_a_text_with_too_many_tokenizations_shows_what_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fewer contexts than usual, which would take their time here."""
    monkeypatch.setattr(inspect, "_MOST_VISITED", 8)
    text = " " * 200
    answer = run_json("cover", text)
    assert answer["settled"] is False
    assert answer["members"] == []
    assert answer["size"] is None
    assert answer["log10_size"] > 18
    assert answer["missing"] == 1.0
    result = run("cover", text)
    assert result.exit_code == 0
    assert re.search(r"0 of some 10\^\d+ members", result.stdout)
    assert "not settled" in result.stdout
    assert "The search ends at 8 contexts" in result.stdout


def test_the_empty_text_and_half_characters() -> None:
    assert run_json("cover", "")["members"] == [
        {"tokens": [], "ids": [], "logprob": 0.0, "share": 1.0}
    ]
    assert run_json("next", "")["next"]
    assert run_json("cover", "--stdin", stdin=b"\xc3")["members"]


def test_vocab() -> None:
    answer = run_json("vocab", "--prefix", " ret")
    assert answer["byte_complete"]
    prefix = answer["prefix"]
    assert " return" in prefix["starting_with_it"]
    assert " " in prefix["prefixes_of_it"]
    assert prefix["allowed"] == len(prefix["starting_with_it"]) + len(prefix["prefixes_of_it"])


@pytest.mark.parametrize("name", ["gpt2", "llama2"])
def test_vocab_of_a_tokenizer_without_a_model(name: str, data: Data) -> None:
    answer = run_json("vocab", "--model", data.folder / "tokenizers" / name)
    assert answer["implied_prefix"] == (" " if name == "llama2" else "")
    assert answer["fertility"] == (2 if name == "llama2" else 1)
