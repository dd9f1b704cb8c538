"""A command whose extra is missing, from a real index of wheels: uv brings the extra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import charwise

UV = shutil.which(
    "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)

#: What the missing module does: it says that it is there.
MODULE = "import sys\nprint('here with', sys.argv[1:])\nsys.exit(7)\n"


def wheel(folder: Path, name: str, metadata: str, files: dict[str, str]) -> None:
    info = f"{name}-{charwise.__version__}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {charwise.__version__}\n"
    with zipfile.ZipFile(folder / f"{name}-{charwise.__version__}-py3-none-any.whl", "w") as file:
        files |= {
            f"{info}/METADATA": head + metadata,
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\ncharwise = charwise.cli.app:main\n",
        }
        for path, text in files.items():
            file.writestr(path, text)
        file.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.mark.skipif(UV is None, reason="uv is missing: pip install uv")
@pytest.mark.parametrize("helps", [True, False], ids=["helps", "does-not"])
def test_uvx_brings_an_extra_once(helps: bool, tmp_path: Path) -> None:
    package = Path(charwise.__file__).parent
    sources = {
        f"charwise/{one.relative_to(package)}": one.read_text("utf-8")
        for one in package.rglob("*.py")
    }
    # The other dependencies are those of this environment.
    others = tmp_path / "others"
    others.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not one.name.startswith("pygls"):
            (others / one.name).symlink_to(one)
    sources["others.pth"] = str(others)
    extra = "Provides-Extra: lsp\nRequires-Dist: pygls; extra == 'lsp'\n"
    wheel(tmp_path, "charwise", extra, sources)
    wheel(tmp_path, "pygls", "", {"pygls.py" if helps else "other.py": MODULE})
    done = subprocess.run(
        [UV, "tool", "run", "charwise", "lsp", "--model", "a b"],
        cwd=tmp_path,
        env=os.environ
        | {
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "UV_TOOL_DIR": str(tmp_path / "tools"),
            "UV_FIND_LINKS": str(tmp_path),
            "UV_OFFLINE": "1",
            "UV_PYTHON": sys.executable,
            "PYTHONPATH": "",
        },
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if line.startswith("charwise: ")]
    assert "charwise[lsp]" in ours[0]
    assert done.returncode == (7 if helps else 1)
    assert done.stdout == ("here with ['lsp', '--model', 'a b']\n" if helps else "")
    assert len(ours) == (1 if helps else 2), "the same extra is not brought again"
