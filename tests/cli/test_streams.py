"""Where output goes: streams of any encoding, full devices, closed ones, readers that leave."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from charwise.cli import terminal

#: What a locale without UTF-8 comes to, and two ways to ask for less.
ENVIRONMENTS = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
]


def charwise(
    *arguments: str, environment: dict[str, str] | None = None, shell: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, or `shell`, in which "$@" stands for it."""
    command = [sys.executable, "-m", "charwise", *arguments]
    if shell is not None:
        command = ["bash", "-c", shell, "charwise", *command]
    return subprocess.run(
        command,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
        capture_output=True,
        timeout=300,
    )


#: Runs several command lines, given as JSON, in one process.
RUNS = """
import json, sys
from charwise.cli.app import main

for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    print(f"== {main()}", flush=True)
"""


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=["C", "latin-1"])
def test_a_stdout_that_is_not_utf8(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("café\t中\n", encoding="utf-8")
    expected = {
        ("vocab", "--prefix", " ret"): r"\sreturn",
        ("complete", "raise ValueErr", "--max-new-bytes", "4"): r"raise 8< \sValue|Err",
        ("next", "# 中", "--top", "2"): "####",
        ("demo",): "+ e",
        ("score", str(tmp_path / "text.txt"), "--preset", "fast"): "caf",
        ("next", "# 中é", "--top", "1", "--json"): r'"# \u4e2d\u00e9"',
        ("score", "--help"): "Options:",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUNS, json.dumps(list(expected))],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    printed = done.stdout.decode("latin-1").split("== 0\n")
    assert printed.pop() == ""
    for (arguments, shown), out in zip(expected.items(), printed, strict=True):
        assert shown in out, arguments


def test_what_stands_for_what_a_stream_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, written in (
        ("ascii", rb"a\sb\n | \u4e2d\xe9 8< \udcff"),
        ("latin-1", b"a\\sb\\n | \\u4e2d\xe9 8< \\udcff"),
        ("utf-8", "a␣b⏎ | 中é ✂ \\udcff".encode()),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        terminal.accept_any_text()
        print("a␣b⏎ | 中é ✂ \udcff", end="", flush=True)
        assert stream.buffer.getvalue() == written  # type: ignore[attr-defined]


def test_json_has_numbers_that_json_knows(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json(missing=-0.0, rows=[{"p": float("-inf")}, (1.5, float("nan"))], text="中")
    out = capsys.readouterr().out
    assert "-0" not in out
    assert "中" in out
    assert json.loads(out) == {"missing": 0.0, "rows": [{"p": None}, [1.5, None]], "text": "中"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["next", "a"], ["vocab", "--json"]], ids=["help", "table", "json"]
)
def test_a_full_device(arguments: list[str]) -> None:
    done = charwise(*arguments, shell='"$@" > /dev/full')
    assert done.returncode == 1
    assert done.stderr == b"charwise: the output cannot be written: No space left on device.\n"


@pytest.mark.parametrize("options", [["--top", "9000"], ["--json"]], ids=["table", "json"])
def test_a_reader_that_leaves(options: list[str]) -> None:
    done = charwise("vocab", *options, shell='set -o pipefail; "$@" | true')
    assert (done.returncode, done.stderr) == (1, b"")
    done = charwise("vocab", *options, shell='"$@" | head -1')
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1


def test_closed_streams() -> None:
    done = charwise("next", "--stdin", shell='"$@" <&-')
    assert done.returncode == 1
    assert done.stderr == b"charwise: stdin is closed, and --stdin reads the prompt from it.\n"
    done = charwise("next", "a", shell='"$@" >&-')
    assert (done.returncode, done.stderr) == (0, b"")
    assert charwise("next", "a", "--model", "/no/such", shell='"$@" 2>&-').returncode == 1


#: Runs the command line, and says so once it reads stdin.
READS = """
import sys
from charwise.cli.app import main

class Stdin:
    @property
    def buffer(self):
        print("reading", flush=True)
        return sys.__stdin__.buffer

sys.stdin = Stdin()
sys.exit(main())
"""


def test_ctrl_c_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", READS, "complete", "--stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell lets its background jobs ignore SIGINT, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"reading\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, b"", b"")
