"""Where output goes: streams of any encoding, full devices, closed ones, readers that leave."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from charwise.cli import output
from commands import Command, finished


@pytest.mark.slow
def test_a_stdout_that_is_not_utf8(tmp_path: Path) -> None:
    """Escapes stand for what latin-1 lacks, and for no more."""
    (tmp_path / "text.txt").write_text("café\t中\n", encoding="utf-8")
    expected = {
        ("complete", "raise ValueErr", "--max-new-bytes", "4"): r"raise \u2702 \u2423Value|Err",
        ("score", str(tmp_path / "text.txt"), "--preset", "fast"): "café",
        ("next", "# 中é", "--top", "1", "--json"): r'"# \u4e2d\u00e9"',
        ("score", "--help"): "Options:",
    }
    code = """
import json, sys
from charwise.cli.app import main
for sys.argv[1:] in json.loads(sys.argv[1]):
    print(f"== {main()}", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(list(expected))],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    *pieces, rest = done.stdout.decode("latin-1").split("== 0\n")
    assert rest == ""
    for (arguments, message), out in zip(expected.items(), pieces, strict=True):
        assert message in out, arguments


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    """A full device, a name that no file has, and a reader that leaves."""
    for arguments in (["--help"], ["vocab", "--json"]):
        status, _, errors = finished(*arguments, folder=tmp_path, out=Path("/dev/full"))
        assert status == 1
        assert errors == "charwise: the output cannot be written: No space left on device.\n"
    name = "x" * 300 + ".csv"
    status, _, errors = finished("score", __file__, "--out", name, folder=tmp_path)
    assert (status, errors) == (1, f"charwise: {name}: File name too long.\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = Command(["vocab", "--prefix", "", "--json"], tmp_path, pipe)
    with pipe.open("rb") as reader:
        assert reader.readline().strip()
    assert command.wait() == 1  # a pipe holds less than the output
    assert command.errors.read_bytes() == b""


@pytest.mark.slow
def test_closed_streams() -> None:
    """Each in a fresh interpreter, from a shell's command line in which "$@" is the command."""
    for arguments, streams, error in (
        (["next", "--stdin"], "<&-", "stdin is closed, and --stdin reads a text from it"),
        (["score", "-"], "0>/dev/null", "stdin cannot be read: Bad file descriptor"),
        (["vocab"], ">&-", "the output cannot be written: Bad file descriptor"),
        (["score", "no.csv"], "2>&-", ""),
    ):
        command = [sys.executable, "-m", "charwise", *arguments]
        shell = ["bash", "-c", f'"$@" {streams}', "charwise", *command]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (1, f"charwise: {error}.\n" if error else "")


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
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, "-c", READS, "complete", "--stdin"],
        # A shell lets its background jobs ignore SIGINT, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **pipes,
    )
    assert process.stdout.readline() == b"reading\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, b"", b"")


def test_bars_on_a_terminal_are_told_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for forced in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", forced)  # with 1, rich takes the stream for a terminal
        with output.progress_bars() as report:
            report("drawing", 3, 9)
        streams = capsys.readouterr()
        assert streams.out == ""
        assert ("drawing" in streams.err and "3/9" in streams.err) == bool(forced)


def test_json_has_numbers_that_json_knows(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json(missing=-0.0, rows=[{"p": float("-inf")}, (1.5, float("nan"))], text="中")
    out = capsys.readouterr().out
    assert "-0" not in out
    assert "中" in out
    assert json.loads(out) == {"missing": 0.0, "rows": [{"p": None}, [1.5, None]], "text": "中"}
