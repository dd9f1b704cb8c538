"""The command line: in this process, and in processes of its own without what starting them costs.

For the second, one process imports everything and loads the embedded model; each command is a fork
of it, with streams of its own, that ends as a process ends. What a fresh interpreter alone shows
(what is imported when, streams that are closed or of another encoding) needs a fresh interpreter.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from charwise.cli.app import app


def run(
    *arguments: str | Path, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=env)


def run_json(*arguments: str | Path, stdin: bytes | None = None) -> dict[str, Any]:
    """What a command prints with `--json`."""
    result = run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


#: Says hello once all is loaded; then, for each line of JSON, the process id and how it ended.
SERVER = """
import json, os, sys

answers = os.fdopen(os.dup(1), "w", buffering=1)
requests = os.fdopen(os.dup(0))
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)

import charwise
from charwise.cli.app import main

lm = charwise.load()
lm.next("a")
print("ready", file=answers)
for line in requests:
    arguments, out, errors = json.loads(line)
    child = os.fork()
    if child == 0:
        answers.close()
        for stream, path in ((1, out), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.argv = ["charwise", *arguments]
        sys.exit(main())
    print(child, file=answers)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)
"""


@cache
def server() -> Any:
    """The process that forks; it ends with this one, whose end closes its stdin."""
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process: Any = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout.readline() == b"ready\n"
    return process


class Command:
    """`charwise` with arguments, running, one at a time; its output goes to a folder.

    `out` is another path for stdout: a device, a pipe.
    """

    def __init__(self, arguments: list[str], folder: Path, out: Path | None = None) -> None:
        self.out, self.errors = out or folder / "stdout", folder / "stderr"
        self.errors.touch()  # who reads it may be faster than the process that opens it
        self._server = server()
        request = [arguments, str(self.out), str(self.errors)]
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self.pid = int(self._server.stdout.readline())
        self.returncode: int | None = None

    @property
    def running(self) -> bool:
        return self.returncode is None and not select.select([self._server.stdout], [], [], 0)[0]

    def send_signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def kill_when(self, ready: Callable[[], bool]) -> None:
        while not ready():
            assert self.running, self.errors.read_text()
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """The exit status, or minus the signal."""
        if self.returncode is None:
            assert select.select([self._server.stdout], [], [], 300)[0], "it does not end"
            self.returncode = int(self._server.stdout.readline())
        return self.returncode


def finished(*arguments: str, folder: Path, out: Path | None = None) -> tuple[int, str, str]:
    """Exit status, stdout (empty if it goes elsewhere) and stderr of a command that has ended."""
    command = Command(list(arguments), folder, out)
    status = command.wait()
    printed = "" if out else command.out.read_text(encoding="utf-8")
    return status, printed, command.errors.read_text(encoding="utf-8")
