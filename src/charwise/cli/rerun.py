"""A command in a throw-away environment of `uvx` or `pipx run` begins again with what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from charwise.errors import EXTRAS


def rerun_with(extra: str) -> int | None:
    """Replace this process by the same command with an extra; None if that does not help."""
    prefix, added = Path(sys.prefix), os.environ.get("CHARWISE_ADDED_EXTRAS", "").split()
    if prefix.parent.name in ("archive-v0", "environments-v2"):  # parts of uv's cache
        tool, command = os.environ.get("UV"), ["tool", "run", "--from"]
    elif (prefix / "pipx_metadata.json").exists() and prefix.parent.name != "venvs":
        tool, command = which("pipx"), ["run", "--spec"]
        os.environ["PIPX_DEFAULT_BACKEND"] = "pip"  # which made this one: with uv, it is uv's
    else:
        return None
    once = {"-", "--stdin"} & {*sys.argv}  # stdin has been read
    if not tool or not extra or extra in added or once:
        return None
    present = {name for name, modules in EXTRAS.items() if all(map(find_spec, modules))}
    package, extras = distribution("charwise"), ",".join(sorted({*present, extra}))
    origin = json.loads(package.read_text("direct_url.json") or "{}")  # of a folder or a wheel
    place = f" @ {origin['url']}" if "url" in origin else f"=={package.version}"
    torch = extra in ("transformers", "serve", "lsp", "lm-eval")
    size = "1 GB, or 3 GB with CUDA" if torch else "less than 400 MB"
    line = f"charwise: goes on with charwise[{extra}], which is installed once: {size}."
    print(line, file=sys.stderr, flush=True)
    os.environ["CHARWISE_ADDED_EXTRAS"] = " ".join([*added, extra])
    command = [tool, *command, f"charwise[{extras}]{place}", "charwise", *sys.argv[1:]]
    # On Windows a process that is replaced has ended for its parent.
    return subprocess.call(command) if os.name == "nt" else os.execvp(tool, command)
