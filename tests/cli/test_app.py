"""The command line: its options, and how it ends."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import charwise
from charwise.cli.app import EXAMPLES, main
from charwise.errors import ModelError
from commands import finished, run


def test_version_has_the_commit_of_a_repository() -> None:
    commit = r"( \([0-9a-f]{12}(-dirty)?\))?"
    assert re.fullmatch(f"charwise {charwise.__version__}{commit}\n", run("--version").stdout)


def test_help_loads_nothing_heavy_and_ends_with_an_example() -> None:
    code = """
import sys
from charwise.cli.app import app
for command in sys.argv[1:]:
    app([*command.split(), "--help"], standalone_mode=False)
    heavy = "torch transformers tokenizers tiktoken pandas pyarrow ray lm_eval matplotlib"
    print(f"== {command}:", *{*heavy.split()} & {*sys.modules})
"""
    commands = ["", *(name for name in EXAMPLES if name != "lm-eval")]
    done = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True
    )
    pieces = re.findall(r"(.*?)^== ([^\n]*):([^\n]*)\n", done.stdout, re.M | re.S)
    assert [(name, loaded) for _, name, loaded in pieces] == [(name, "") for name in commands]
    for text, name, _ in pieces[1:]:
        assert text.rstrip().endswith(f"Example:\n    {EXAMPLES[name]}")


# Those whose example needs no file, model or server that is not here; test_golden.py has the demo.
@pytest.mark.parametrize("command", ["complete", "infill", "next", "cover", "vocab"])
def test_an_example_runs(command: str) -> None:
    result = run(*shlex.split(EXAMPLES[command])[1:])
    assert result.exit_code == 0, result.output


def test_the_options_reach_load(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> None:
        calls.append((name, options))
        raise ModelError("as asked.")

    monkeypatch.setattr("charwise.char_lm.load", load)
    options = ["--model", "m", "--device", "cpu", "--dtype", "float16", "--revision", "v1"]
    run("next", "a", *options, "--trust-remote-code", "--preset", "fast")
    run("demo")
    first = {"device": "cpu", "dtype": "float16", "revision": "v1", "trust_remote_code": True}
    assert calls == [("m", {**first, "preset": "fast"}), ("embedded", {"preset": "default"})]


@pytest.mark.slow
def test_a_missing_model_says_where_it_was_looked_for(tmp_path: Path) -> None:
    status, out, errors = finished("vocab", "--model", "nosuchmodel", folder=tmp_path)
    assert (status, out) == (1, "")
    assert errors.startswith("charwise: no model 'nosuchmodel': ")
    assert errors.count("\n") == 1
    assert str(Path("nosuchmodel").absolute()) in errors
    assert "hub" in errors
    for name in ("no/such/thing", "~/no-such-folder", __file__):  # no names on the hub
        with pytest.raises(ModelError, match="there is no folder"):
            charwise.load(name)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to …")],
)
def test_too_little_memory_is_a_sentence_and_a_fault_of_ours_is_none(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("charwise.char_lm.load", load)
    monkeypatch.setattr(sys, "argv", ["charwise", "next", "a"])
    assert main() == 1
    assert "--dtype bfloat16" in capsys.readouterr().err
    error = RuntimeError("a fault")
    with pytest.raises(RuntimeError, match="a fault"):
        main()


# --- A command whose extra is missing, from a real index of wheels: uv brings the extra ---------

UV = shutil.which(
    "uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)


def wheel(folder: Path, name: str, metadata: str, files: dict[str, str]) -> None:
    info = f"{name}-{charwise.__version__}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {charwise.__version__}\n"
    files |= {
        f"{info}/METADATA": head + metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ncharwise = charwise.cli.app:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files)
    with zipfile.ZipFile(folder / f"{name}-{charwise.__version__}-py3-none-any.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)


@pytest.mark.skipif(UV is None, reason="uv is missing: pip install uv")
@pytest.mark.parametrize("helps", [True, False], ids=["helps", "does-not"])
def test_uvx_brings_an_extra_once(helps: bool, tmp_path: Path) -> None:
    package, others = Path(charwise.__file__).parent, tmp_path / "others"
    files = {f"charwise/{one.relative_to(package)}": one for one in package.rglob("*.py")}
    sources = {name: one.read_text("utf-8") for name, one in files.items()}
    sources["others.pth"] = str(others)  # the other dependencies are those of this environment
    others.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not one.name.startswith("pygls"):
            (others / one.name).symlink_to(one)
    extra = "Provides-Extra: lsp\nRequires-Dist: pygls; extra == 'lsp'\n"
    wheel(tmp_path, "charwise", extra, sources)
    module = "import sys\nprint('here with', sys.argv[1:])\nsys.exit(7)\n"
    wheel(tmp_path, "pygls", "", {"pygls.py" if helps else "other.py": module})
    settings = {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_FIND_LINKS": str(tmp_path),
        "UV_OFFLINE": "1",
        "UV_PYTHON": sys.executable,
        "PYTHONPATH": "",
    }
    command = [UV, "tool", "run", "charwise", "lsp", "--model", "a b"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if line.startswith("charwise: ")]
    assert "charwise[lsp]" in ours[0]
    assert done.returncode == (7 if helps else 1)
    assert done.stdout == ("here with ['lsp', '--model', 'a b']\n" if helps else "")
    assert len(ours) == (1 if helps else 2), "the same extra is not brought again"
