"""Which extras can be installed beside today's engines: a table, by a dry run of pip.

    make compatible

Each extra is resolved alone and beside each engine, from nothing; nothing is installed. vLLM brings
a PyTorch of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatible.csv"
ENGINES = ("vllm", "transformers", "lm-eval")


def resolved(*wanted: str) -> dict[str, str]:
    """Return the versions that pip would install; empty where it finds no solution."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
               "--disable-pip-version-check", "--report", "-"]  # fmt: skip
    found = subprocess.run([*command, *wanted], capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        print(" ".join(wanted), found.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return {}
    named = (one["metadata"] for one in json.loads(found.stdout)["install"])
    return {one["name"].lower().replace("_", "-"): one["version"] for one in named}


def main() -> None:
    """Write the table, and print it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for one in project["optional-dependencies"] if one != "dev"]
    lines = [",".join(["extra", *ENGINES])]
    for extra in extras:
        cells = [extra]
        for engine in ENGINES:
            versions = resolved(f".[{extra}]", engine)
            cells.append(versions.get(engine, "no"))
        lines.append(",".join(cells))
        print(lines[-1], flush=True)
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
