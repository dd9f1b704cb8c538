"""What each command prints, as one reads it: golden.txt has the command lines and their output.

`python tests/cli/test_golden.py` writes it anew.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from commands import run

GOLDEN = Path(__file__).with_name("golden.txt")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")

#: Files that the commands read.
FILES = {
    "a.py": "import os\n\n\nfor name in os.listdir('.'):\n    print(na",
    "stimuli.csv": 'item,kind,text,marks\n1a,x,The naïve end.,"The |naïve end."\n'
    '1b,y,"To be,\nor not","[[0, 5], [7, 13]]"\n',
    "bad.csv": 'text\nTo be\n\n""\n',
}


def printed(command: str) -> str:
    program, name, *options = shlex.split(command)
    assert program == "charwise"
    result = run(name, *options, env={"COLUMNS": "80" if name == "demo" else "100"})
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in (result.stderr + result.stdout).splitlines())


def blocks() -> dict[str, str]:
    parts = re.split(r"^\$ (.*)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {
        command: text.strip("\n") for command, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", blocks())
def test_a_command_prints_what_it_printed(command: str, folder: None) -> None:
    actual, expected = (text.replace("█", "") for text in (printed(command), blocks()[command]))
    assert NUMBER.sub("", actual).split() == NUMBER.sub("", expected).split()
    assert list(map(float, NUMBER.findall(actual))) == pytest.approx(
        list(map(float, NUMBER.findall(expected))), abs=0.03, rel=0.05
    )


if __name__ == "__main__":
    commands = list(blocks())
    os.chdir(tempfile.mkdtemp())
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    text = "\n\n".join(f"$ {command}\n{printed(command)}" for command in commands)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
