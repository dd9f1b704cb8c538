"""`charwise complete` and `charwise infill` on files whose lines end in CRLF."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise.cli.side_by_side import sides_of
from charwise.tokens.line_ends import read, write
from commands import run_json

PROMPT = "import os\n\n\ndef names(path):\n    return os.listdir(path)\n"
AFTER = "\n\nprint(names('.'))\n" * 20


def test_a_completion_has_the_ends_of_the_prompt() -> None:
    expected = run_json("complete", "--stdin", "--max-new-bytes", "24", stdin=PROMPT.encode())
    prompt = write(PROMPT, "\r\n")
    found = run_json("complete", "--stdin", "--max-new-bytes", "24", stdin=prompt.encode())
    assert found["prompt"] == prompt
    assert found["ids"] == expected["ids"]
    assert any("\n" in text for text in expected["completions"]["exact"])
    for name, texts in expected["completions"].items():
        assert found["completions"][name] == [write(text, "\r\n") for text in texts]


@pytest.mark.parametrize("place", ["4:17", "5:1", "5:28", "6:1"])
def test_a_middle_has_the_ends_of_the_file(tmp_path: Path, place: str) -> None:
    found = {}
    for end in ("\n", "\r\n"):
        path = tmp_path / f"{len(end)}.py"
        path.write_bytes(write(PROMPT + AFTER, end).encode())
        found[end] = run_json("infill", f"{path}:{place}", "--max-new-bytes", "24", "--n", "2")
    assert found["\n"]["logprobs"] == pytest.approx(found["\r\n"]["logprobs"])
    for name, texts in found["\n"]["middles"].items():
        assert found["\r\n"]["middles"][name] == [write(text, "\r\n") for text in texts]
    for side in ("forced", "ending"):
        assert found["\r\n"][side] == write(found["\n"][side], "\r\n")


def test_what_does_not_fit_is_counted_in_the_file() -> None:
    prefix = write("x = 1\n" * 1200, "\r\n")
    found = run_json("infill", "--prefix", prefix, "--suffix", "\r\ny", "--max-new-bytes", "2")
    other = run_json("infill", "--prefix", read(prefix), "--suffix", "\ny", "--max-new-bytes", "2")
    lines, rest = divmod(other["prefix_cut"], len("x = 1\n"))
    assert found["prefix_cut"] == lines * len("x = 1\r\n") + rest


@given(st.text(st.sampled_from("aé\r\n"), max_size=10))
def test_places_are_those_of_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("places") / "a.txt"
    raw = text.encode()
    path.write_bytes(raw)
    for number, line in enumerate(read(text).split("\n"), 1):
        for column in range(1, len(line) + 2):
            before, after = sides_of(f"{path}:{number}:{column}")
            assert before + after == raw
            assert read(before).decode() == "\n".join(
                [*read(text).split("\n")[: number - 1], line[: column - 1]]
            )
    for at in range(len(raw) + 1):
        before, after = sides_of(f"{path}:{at}")
        assert before + after == raw
        assert not (before.endswith(b"\r") and after.startswith(b"\n"))
