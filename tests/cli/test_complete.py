"""Commands that take a prompt: `complete`, `infill`, `demo`, `next` and `cover`; and `vocab`."""

import codecs
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, Vocabulary
from charwise.cli import inspect
from charwise.cli.side_by_side import _sides_of
from charwise.errors import SettingError
from charwise.tokens.line_ends import unify
from commands import run, run_json
from conftest import Data
from models import random_lm
from tiny import saved_with

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"
METHODS = ["plain", "healed", "exact"]


# --- complete -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "forced"), [("word", " ValueErr"), ("off", ""), ("0", ""), ("1", "Err")]
)
def test_complete_by_each_rule(rule: str, forced: str) -> None:
    answer = run_json("complete", PROMPT, "--heal", rule, "--max-new-bytes", "4")
    assert answer["prompt"] == "".join(answer["tokens"]) == PROMPT
    assert "".join(answer["tokens"][answer["kept"] :]) == answer["forced"] == forced
    assert list(answer["completions"]) == METHODS
    texts = {name: text for name, [text] in answer["completions"].items()}
    assert all(len(text.encode()) <= 4 for text in texts.values())
    assert texts["exact"].startswith("or")
    assert texts["healed"].startswith("or") == bool(forced)
    assert forced or texts["healed"] == texts["plain"]


def test_from_stdin_and_not_utf8() -> None:
    from_stdin = run_json("complete", "--stdin", "--max-new-bytes", "8", stdin=PROMPT.encode())
    assert from_stdin == run_json("complete", PROMPT, "--max-new-bytes", "8")
    answer = run_json("complete", "--stdin", "--max-new-bytes", "8", stdin=b"x = '\xff\xc3")
    assert answer["prompt"] == "x = '\\xff\\xc3"


def test_samples() -> None:
    ask = ("complete", "import tor", "--n", "3", "--max-new-bytes", "12")
    answer = run_json(*ask)
    for texts in answer["completions"].values():
        assert 0 < len(texts) <= 3
        assert len(set(texts)) == len(texts)
    assert answer == run_json(*ask, "--seed", "0")
    assert answer != run_json(*ask, "--seed", "1")
    greedy = run_json("complete", "import tor", "--max-new-bytes", "12")
    cold = run_json(*ask, "--temperature", "0.0001")
    for name in ("healed", "exact"):
        assert cold["completions"][name] == greedy["completions"][name], "each completion once"


@pytest.mark.slow
def test_a_prompt_longer_than_the_window() -> None:
    ask = ["complete", "x = 1\n" * 2000 + PROMPT, "--max-new-bytes", "4"]
    answer = run_json(*ask)
    assert answer["dropped"] > 0
    assert len(answer["ids"]) < (charwise.load().engine.window or 0)
    assert answer["completions"]["healed"] == ['or("']
    assert "do not fit the model's window" in " ".join(run(*ask).stdout.split())


def test_constraints_are_summed_or_sampled() -> None:
    pytest.importorskip("llguidance")
    answer = run_json("complete", "Answer: ", "--regex", r"(yes|no)\.")
    assert sum(one["prob"] for one in answer["global"]) == pytest.approx(1)
    assert {one["text"] for one in answer["global"]} == {"yes.", "no."}
    assert answer["constraint_logprob"] < 0
    assert answer["effective"] is None  # nothing was sampled
    sampled = ["complete", "x = ", "--regex", "[0-9]{4}", "--particles", "20"]
    answer = run_json(*sampled, "--seed", "3")
    assert all(len(one["text"]) == 4 for one in answer["local"] + answer["global"])
    assert 1 <= answer["effective"] <= 20
    assert "effective sample size" in run(*sampled, "-n", "3").stdout


def test_schemas_and_grammars_are_files(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["größe", 3]}', encoding="utf-8-sig")
    grammar.write_text('start: "(" /[a-z]/ ")"')
    texts = run_json("complete", "x = ", "--json-schema", schema)["global"]
    assert {json.loads(one["text"]) for one in texts} == {"größe", 3}
    texts = run_json("complete", "f", "--grammar", grammar)["global"]
    assert all(one["text"][0] == "(" and one["text"][-1] == ")" for one in texts)


# --- infill and demo ----------------------------------------------------------------------------

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
SIDES = ["infill", "--prefix", "for i in ra", "--suffix", "e(10):", "--max-new-bytes", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model with sentinels that it was not trained to use."""
    return str(saved_with(tmp_path_factory.mktemp("model"), NAMES))


@pytest.mark.parametrize("order", ["psm", "spm"])
def test_middles_by_each_method(folder: str, order: str) -> None:
    answer = run_json(*SIDES, "--model", folder, "--order", order, "--n", "2")
    assert (answer["forced"], answer["ending"]) == (" ra", "e")
    assert (answer["order"], answer["template"]) == (order, "StarCoder, Granite")
    assert list(answer["middles"]) == METHODS
    assert len(answer["logprobs"]) == len(answer["middles"]["exact"])
    assert answer["logprobs"] == sorted(answer["logprobs"], reverse=True)
    assert all(len(text.encode()) <= 4 for texts in answer["middles"].values() for text in texts)


def test_a_template_by_the_names_of_its_tokens(folder: str) -> None:
    sides = [*SIDES, "--model", folder]
    named, known = run_json(*sides, "--template", " ".join(NAMES)), run_json(*sides)
    assert named.pop("template") == "given"
    assert known.pop("template") == "StarCoder, Granite"
    assert named == known
    swapped = run_json(*sides, "--template", " ".join(NAMES[::-1]))
    assert swapped["logprobs"] != known["logprobs"]
    assert run_json(*sides, "--template", " ".join(NAMES[:2]))["order"] == "spm"


def test_a_model_that_does_not_fill_in_is_refused_and_has_a_demo(data: Data) -> None:
    small = str(data.folder / "models" / "tinystories-3m")
    result = run(*SIDES, "--model", small)
    assert isinstance(result.exception, SettingError)
    assert "--template '<PRE> <SUF> <MID>'" in str(result.exception)
    assert run_json("demo", "--model", small)["infilling"] is None


# --- files whose lines end in CRLF --------------------------------------------------------------

BEFORE = "import os\n\n\ndef names(path):\n    return os.listdir(path)\n"
AFTER = "\n\nprint(names('.'))\n" * 20


def test_a_completion_has_the_ends_of_the_prompt() -> None:
    ask = ["complete", "--stdin", "--max-new-bytes", "24"]
    expected = run_json(*ask, stdin=BEFORE.encode())
    prompt = unify(BEFORE, "\r\n")
    answer = run_json(*ask, stdin=prompt.encode())
    assert answer["prompt"] == prompt
    assert answer["ids"] == expected["ids"]
    assert any("\n" in text for text in expected["completions"]["exact"])
    for name, texts in expected["completions"].items():
        assert answer["completions"][name] == [unify(text, "\r\n") for text in texts]


def test_a_middle_has_the_ends_of_the_file(tmp_path: Path) -> None:
    answers = {}
    for end in ("\n", "\r\n"):
        path = tmp_path / f"{len(end)}.py"
        path.write_bytes(unify(BEFORE + AFTER, end).encode())
        answers[end] = run_json("infill", f"{path}:5:28", "--max-new-bytes", "24", "--n", "2")
    unix, windows = answers.values()
    assert unix["logprobs"] == pytest.approx(windows["logprobs"])
    for name, texts in unix["middles"].items():
        assert windows["middles"][name] == [unify(text, "\r\n") for text in texts]
    for side in ("forced", "ending"):
        assert windows[side] == unify(unix[side], "\r\n")


@pytest.mark.slow
def test_bytes_that_do_not_fit_are_those_of_the_file() -> None:
    prefix, ask = "x = 1\n" * 1200, ["--suffix", "\r\ny", "--max-new-bytes", "2"]
    windows = run_json("infill", "--prefix", unify(prefix, "\r\n"), *ask)
    lines, rest = divmod(run_json("infill", "--prefix", prefix, *ask)["prefix_cut"], 6)
    assert windows["prefix_cut"] == lines * 7 + rest


@given(st.text(st.sampled_from("aé\r\n"), max_size=10))
def test_places_are_those_of_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("places") / "a.txt"
    raw = text.encode()
    path.write_bytes(codecs.BOM_UTF8 + raw)  # a mark that is no part of the text
    lines = unify(text).split("\n")
    for number, line in enumerate(lines, 1):
        for column in range(1, len(line) + 2):
            before, after = _sides_of(f"{path}:{number}:{column}")
            assert before + after == raw
            start = "\n".join([*lines[: number - 1], line[: column - 1]])
            assert unify(before).decode() == start


# --- next, cover and vocab ------------------------------------------------------------------------


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
