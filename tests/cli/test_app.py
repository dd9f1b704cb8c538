"""The command line: in this process for what it prints, in another for how it ends."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import charwise
from charwise.cli.app import EXAMPLES, app
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import ModelError
from charwise.models import EMBEDDED
from commands import run, run_json
from conftest import Data
from preloaded import finished

PROMPT = "def check(value):\n    if value < 0:\n        raise ValueErr"


# ---- complete -----------------------------------------------------------------------------------


def test_complete_as_json() -> None:
    answer = run_json("complete", PROMPT, "--max-new-bytes", "20")
    assert list(answer) == [
        *("model", "prompt", "ids", "tokens", "kept", "forced", "allowed", "dropped"),
        "completions",
    ]
    assert answer["model"] == "embedded"
    assert answer["prompt"] == PROMPT
    assert "".join(answer["tokens"]) == PROMPT
    assert "".join(answer["tokens"][answer["kept"] :]) == answer["forced"] == " ValueErr"
    assert list(answer["completions"]) == ["plain", "healed", "exact"]
    [healed] = answer["completions"]["healed"]
    [plain] = answer["completions"]["plain"]
    assert healed.startswith("or(")
    assert not plain.startswith("or")
    [exact] = answer["completions"]["exact"]
    assert exact.startswith("or")
    assert len(healed.encode()) <= 20


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


@pytest.mark.parametrize(
    ("rule", "forced"),
    [("auto", " ValueErr"), ("word", " ValueErr"), ("off", ""), ("0", ""), ("1", "Err")],
)
def test_rules(rule: str, forced: str) -> None:
    answer = run_json("complete", PROMPT, "--heal", rule, "--max-new-bytes", "4")
    assert answer["forced"] == forced
    if not forced:
        assert answer["completions"]["healed"] == answer["completions"]["plain"]


@pytest.mark.slow
def test_a_prompt_longer_than_the_window() -> None:
    answer = run_json("complete", "x = 1\n" * 2000 + PROMPT, "--max-new-bytes", "4")
    assert answer["dropped"] > 0
    assert len(answer["ids"]) < (charwise.load().engine.window or 0)
    assert answer["completions"]["healed"] == ['or("'] or answer["completions"]["healed"]
    shown = run("complete", "x = 1\n" * 2000 + PROMPT, "--max-new-bytes", "4").stdout
    assert "do not fit the model's window" in " ".join(shown.split())


# ---- vocab --------------------------------------------------------------------------------------


def test_vocab() -> None:
    answer = run_json("vocab", "--prefix", " ret")
    assert sum(answer["first_characters"].values()) == answer["tokens"]
    assert answer["fertility"] == 1
    assert answer["width"] == read_vocabulary("embedded").width
    assert answer["byte_complete"]
    prefix = answer["prefix"]
    assert " return" in prefix["starting_with_it"]
    assert " " in prefix["prefixes_of_it"]
    assert prefix["allowed"] == len(prefix["starting_with_it"]) + len(prefix["prefixes_of_it"])
    assert re.search(r"␣ +[\d,]+ +\d+\.\d%", run("vocab").stdout)
    assert "␣return" in run("vocab", "--prefix", " ret").stdout


@pytest.mark.parametrize("name", ["gpt2", "llama2", "qwen2"])
def test_vocab_of_a_tokenizer_without_a_model(name: str, data: Data) -> None:
    answer = run_json("vocab", "--model", str(data.folder / "tokenizers" / name))
    assert sum(answer["first_characters"].values()) == answer["tokens"]
    assert answer["implied_prefix"] == (" " if name == "llama2" else "")
    assert answer["fertility"] == (2 if name == "llama2" else 1)


# ---- demo ---------------------------------------------------------------------------------------


# ---- how it ends --------------------------------------------------------------------------------


def test_version() -> None:
    """The version, and the commit where it is installed from a repository."""
    told = run("--version").stdout
    assert re.fullmatch(rf"charwise {charwise.__version__}( \([0-9a-f]{{12}}(-dirty)?\))?\n", told)


def test_help_loads_nothing_heavy_and_ends_with_an_example() -> None:
    code = """
import sys
from charwise.cli.app import app
for command in sys.argv[1:]:
    app([*command.split(), "--help"], standalone_mode=False)
    heavy = "torch transformers tokenizers tiktoken pandas pyarrow ray lm_eval matplotlib"
    print(f"== {command}:", *{*heavy.split()} & {*sys.modules})
"""
    commands = ["", *(name for name in EXAMPLES if name != "lm-eval")]
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True
    )
    shown = re.findall(r"(.*?)^== ([^\n]*):([^\n]*)\n", done.stdout, re.M | re.S)
    assert [(name, loaded) for _, name, loaded in shown] == [(name, "") for name in commands]
    for text, name, _ in shown[1:]:
        assert text.rstrip().endswith(f"Example:\n    {EXAMPLES[name]}")


#: Their examples need a file, a model or a server that is not here, or never end.
NOT_HERE = (
    "compare",
    "gateway",
    "lm-eval",
    "lsp",
    "score",
    "serve",
)


@pytest.mark.parametrize(
    "command",
    [name for name in EXAMPLES if name not in NOT_HERE],
)
def test_the_examples_run(command: str) -> None:
    name, *arguments = shlex.split(EXAMPLES[command])
    assert name == "charwise"
    result = run(*arguments)
    assert result.exit_code == 0, result.output


def test_every_command_prints_json_and_takes_the_options_of_a_model() -> None:
    assert {command.name for command in app.registered_commands} == set(EXAMPLES)
    # The options of one are the harness's; those that serve print nothing.
    for command in set(EXAMPLES) - {"lm-eval", "gateway"}:
        shown = run(command, "--help").stdout
        named = "MODEL" if command == "compare" else "--model"  # their first argument
        for option in (named, "--revision", "--trust-remote-code"):
            assert option in shown
        assert command in ("lsp", "serve") or "--json" in shown
        if command != "vocab":  # which reads a tokenizer, and loads no model
            assert "--device" in shown
            assert "--dtype" in shown


@pytest.mark.parametrize("command", ["complete", "demo", "next", "cover"])
def test_the_options_reach_load(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> None:
        asked.append((name, options))
        raise ModelError("as asked.")

    monkeypatch.setattr("charwise.char_lm.load", load)
    prompt = [] if command == "demo" else ["a"]
    preset = [] if command == "cover" else ["--preset", "fast"]
    given = ["--model", "m", "--device", "cpu", "--dtype", "float16", "--revision", "v1"]
    given += ["--trust-remote-code"]
    run(command, *prompt, *given, *preset)
    run(command, *prompt)
    first = {"device": "cpu", "dtype": "float16", "revision": "v1", "trust_remote_code": True}
    assert asked == [
        ("m", {**first, "preset": "fast" if preset else "default"}),
        ("embedded", {"preset": "default"}),
    ]


def test_tab_completes_commands_options_and_presets() -> None:
    for words, expected in (
        ("co", "complete"),
        ("next --pre", "--preset"),
        ("next --preset a", "accurate"),
    ):
        environment = {
            "_CHARWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": f"charwise {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        done = CliRunner().invoke(app, [], prog_name="charwise", env=environment)
        assert expected in done.stdout.split(), done.stderr
    assert "--install-completion" in run("--help").stdout


@pytest.mark.slow
def test_a_process_of_its_own_prints_nothing_else() -> None:
    command = [sys.executable, "-m", "charwise", "complete", PROMPT, "--max-new-bytes", "3"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["completions"]["healed"] == ["or("]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["complete", "a"], "nosuchmodel"),
        (["next", "a"], "no/such-model"),
        (["cover", "a"], "no/such-model"),
        (["vocab"], "./no/such/folder"),
    ],
)
@pytest.mark.slow
def test_a_missing_model_says_where_it_was_looked_for(
    command: list[str], name: str, tmp_path: Path
) -> None:
    status, out, errors = finished(*command, "--model", name, folder=tmp_path)
    assert (status, out) == (1, "")
    assert errors.startswith(f"charwise: no model {name!r}: ")
    assert errors.count("\n") == 1
    assert str(Path(name).absolute()) in errors
    if not name.startswith("."):
        assert "hub" in errors


@pytest.mark.parametrize("name", ["no/such/thing", "~/no-such-folder", __file__])
def test_what_can_only_be_a_folder_is_not_looked_up(name: str) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        charwise.load(name)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / file).write_bytes((Path(EMBEDDED) / file).read_bytes())
    status, _, errors = finished("complete", "a", "--model", str(tmp_path), folder=tmp_path)
    assert status == 1
    assert "has no model that loads: Error no file named model.safetensors" in errors
    assert "tokenizer.json" not in errors
    assert errors.count("\n") == 1


def test_what_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    status, _, errors = finished("score", __file__, "--out", "x" * 300 + ".csv", folder=tmp_path)
    assert status == 1
    assert errors == f"charwise: {'x' * 300}.csv: File name too long.\n"
