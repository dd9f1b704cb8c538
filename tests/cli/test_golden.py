"""What each command prints, as one reads it: golden.txt has the command lines and their output.

`python tests/cli/test_golden.py` writes it anew.
"""

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
}


def printed(command: str) -> str:
    program, name, *options = shlex.split(command)
    assert program == "charwise"
    result = run(name, *options, env={"COLUMNS": "80" if name == "demo" else "100"})
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in (result.stderr + result.stdout).splitlines())


def make_files() -> None:
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")


parts = re.split(r"^\$ (.*)\n", GOLDEN.read_text(encoding="utf-8"), flags=re.M)[1:]
OUTPUTS = dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_command_prints_what_it_printed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()
    actual, expected = (text.replace("█", "") for text in (printed(command), OUTPUTS[command]))
    assert NUMBER.sub("", actual).split() == NUMBER.sub("", expected).split()
    assert list(map(float, NUMBER.findall(actual))) == pytest.approx(
        list(map(float, NUMBER.findall(expected))), abs=0.03, rel=0.05
    )


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    make_files()
    text = "\n\n".join(f"$ {command}\n{printed(command)}" for command in OUTPUTS)
    GOLDEN.write_text(text + "\n", encoding="utf-8")
