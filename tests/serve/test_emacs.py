"""Emacs with eglot, set as docs/editors.md says: it attaches, and its menu has candidates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls")

PAGE = Path(__file__).parents[2] / "docs" / "editors.md"
SCRIPT = """
(require 'package)
(package-initialize)
{settings}
(setq eglot-connect-timeout 120 eglot-sync-connect 120)
(find-file "a.py")
(python-mode)
(apply #'eglot (eglot--guess-contact))
(goto-char (point-max))
(let ((found (run-hook-with-args-until-success 'completion-at-point-functions)))
  (princ (mapconcat #'substring-no-properties
    (all-completions (buffer-substring (nth 0 found) (nth 1 found)) (nth 2 found)) "\\n")))
"""


@pytest.mark.slow
def test_its_menu_has_the_candidates(tmp_path: Path) -> None:
    emacs = shutil.which("emacs")
    if emacs is None:
        pytest.skip("no Emacs here: apt-get install emacs-nox elpa-eglot")
    asked = [emacs, "--batch", "--eval", "(progn (package-initialize) (require 'eglot))"]
    if subprocess.run(asked, capture_output=True, timeout=60).returncode:
        pytest.skip("this Emacs has no eglot: apt-get install elpa-eglot")
    settings = re.search(r"```elisp\n(\(require 'eglot\).*?)```", PAGE.read_text("utf-8"), re.S)
    assert settings is not None
    program = tmp_path / "charwise"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m charwise "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a.py").write_text("import numpy as np\nimport nump")
    (tmp_path / "script.el").write_text(SCRIPT.format(settings=settings[1]))
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    said = subprocess.run(
        [emacs, "--batch", "-l", "script.el"],
        cwd=tmp_path,
        env=os.environ | path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.stdout.splitlines()[-1:], said.stderr
    assert any(line.startswith("numpy") for line in said.stdout.splitlines())
