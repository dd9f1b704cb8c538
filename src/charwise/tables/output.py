"""An output that survives its writer: stopped at any moment, the next run continues it.

Beside the file or folder OUT that is being made lies the folder OUT.parts, with

- run.json: what the run makes;
- 00000000, 00000001, …: a part for each chunk that is complete: a line of JSON with what it
  counts and the rows that are left out, then its records;
- lock: who holds it is the only writer. The system lets go of it when a process ends in any way.

A part is written under another name, and gets its own once it is on the disk. So a chunk is either
all there or not at all. At the end the parts are put together to OUT, which appears in one step;
then run.json goes, and the rest of the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

from charwise.errors import SettingError
from charwise.tables.disk import (
    clear,
    delete,
    digest,
    disk,
    locked,
    parts_of,
    remove,
    sync,
    sync_folder,
)
from charwise.tables.rows import BadRow
from charwise.tables.writers import Fields, Format, format_of

#: What a run makes, by the names of what it depends on: two runs with equal ones make the same.
#: Lists of numbers are equal within 1e-3, which the same model may say differently on another day.
Identity = dict[str, str | list[float] | None]


class Scored(NamedTuple):
    """A chunk that is done.

    Attributes:
        outcomes: records or the fault of every row.
        size: bytes that were read.
        largest: the greatest error of a record, bits.
    """

    outcomes: list[Sequence[Any] | BadRow]
    size: int
    largest: float = 0.0


@dataclass(frozen=True)
class Done:
    """How far an output is.

    Attributes:
        chunks, rows, bad: chunks, rows of the input in them, and bad ones among those.
        records: rows of the output.
        size: bytes of text that were read.
        largest: the greatest error of a record, bits.

    >>> part = {"rows": 32, "bad": [], "records": 64, "size": 100, "largest": 0.5}
    >>> Done().after(part).largest
    0.5
    """

    chunks: int = 0
    rows: int = 0
    bad: int = 0
    records: int = 0
    size: int = 0
    largest: float = 0.0

    def after(self, part: Mapping[str, Any]) -> Done:
        """With one more chunk: the first line of its part."""
        return Done(
            chunks=self.chunks + 1,
            rows=self.rows + part["rows"],
            bad=self.bad + len(part["bad"]),
            records=self.records + part["records"],
            size=self.size + part["size"],
            largest=max(self.largest, part["largest"]),
        )


class Output:
    """An output that is being made, begun or continued; a context manager that holds its lock.

    Args:
        out: the file to make; its ending says in which format.
        fields: its columns, with their types; see `chunks.fields`.
        identity: what the run makes.
        total: rows of the input.
        overwrite: replace a file of that name, and an unfinished one of another identity.
        format: where the name does not say it, how parts are written: of a folder.

    Raises:
        SettingError: the file is there, or is being written, or was begun as something else.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> out = Path(folder.name) / "out.csv"
    >>> with Output(out, {"text": str, "end": int}, {"--per": "word"}, total=1) as output:
    ...     output.append(Scored([[{"text": "To", "end": 2}]], size=2))
    ...     output.finish({"model": "gpt2"})
    >>> out.read_text().splitlines()
    ['text,end', 'To,2']
    >>> folder.cleanup()
    """

    def __init__(
        self,
        out: Path,
        fields: Fields,
        identity: Identity,
        total: int,
        *,
        overwrite: bool = False,
        format: Format | None = None,
    ) -> None:
        self.out = out
        self.errors = out.with_name(out.name + ".errors.jsonl")
        self.about = about_of(out)
        self.identity = identity
        self._fields, self._total = fields, total
        self._format = format_of(out) if format is None else format
        self._folder = parts_of(out)
        with disk(out):
            self._folder.mkdir(exist_ok=True)
            self._lock = locked(out)
            try:
                self.done = self._resume(identity, overwrite)
            except BaseException:
                self._lock.release()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def append(self, chunk: Scored) -> None:
        """Add the rows of a chunk. Once this returns they are on the disk, and count.

        Raises:
            SettingError: the disk is full, or broken.
        """
        good = [rows for rows in chunk.outcomes if not isinstance(rows, BadRow)]
        records = sum(map(len, good))
        body = self._format.encode(good, self._fields) if records else b""
        head = {
            "rows": len(chunk.outcomes),
            "records": records,
            "size": chunk.size,
            "largest": chunk.largest,
            "bytes": len(body),
            "bad": [_error(row) for row in chunk.outcomes if isinstance(row, BadRow)],
        }
        with disk(self.out):
            self._write(self._part(self.done.chunks), json.dumps(head).encode() + b"\n" + body)
        self.done = self.done.after(head)

    def finish(self, about: Mapping[str, Any]) -> None:
        """Put the complete output together, and give it its name.

        Args:
            about: what is written as JSON beside the output, with the SHA-256 of a file.

        Raises:
            SettingError: there were not as many rows as there should be; a full or broken disk.
        """
        if self.done.rows != self._total:
            raise SettingError(
                f"the input of {self.out} changed while it was read: it had {self._total:,} rows, "
                f"and {self.done.rows:,} came."
            )
        with disk(self.out):
            bad = [error for head in self._heads() for error in head["bad"]]
            if bad:
                lines = "".join(json.dumps(error, ensure_ascii=False) + "\n" for error in bad)
                self._write(self.errors, lines.encode("utf-8", "backslashreplace"))
            else:
                self.errors.unlink(missing_ok=True)
            whole = self._folder / "whole"
            delete(whole)
            self._format.join(self._bodies(), self._fields, whole)
            for path in whole.iterdir() if whole.is_dir() else [whole]:
                sync(path)
            if whole.is_dir():
                sync_folder(whole)
                if self.out.exists():  # a folder takes the place of none
                    delete(self._folder / "old")
                    self.out.replace(self._folder / "old")
            self._write_about(about, whole)
            whole.replace(self.out)
            sync_folder(self.out.parent)
            (self._folder / "run.json").unlink()  # from here on it is finished
            remove(self._folder, self._lock)

    def _write_about(self, about: Mapping[str, Any], whole: Path) -> None:
        """Write the file beside the output."""
        content = {**about}
        if whole.is_file():
            content["output SHA-256"] = digest(whole)
        lines = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        self._write(self.about, lines.encode("utf-8", "backslashreplace"))

    def _resume(self, identity: Identity, overwrite: bool) -> Done:
        """Count the parts that are there, or begin anew."""
        begun = self._begun()
        difference = "" if begun is None else _difference(begun, identity)
        if begun is not None and not difference:
            done = Done()
            for head in self._heads():
                done = done.after(head)
            return done
        if begun is not None and not overwrite:
            raise SettingError(
                f"{self.out} was begun by a run that makes something else, and is not finished: "
                f"{difference}. Run that again to finish it, or take --overwrite to begin anew."
            )
        if begun is None and not overwrite and (there := _there(self.out)) is not None:
            remove(self._folder, self._lock)
            raise there
        clear(self._folder)
        sync_folder(self._folder)  # before there is another run that they could be taken for
        self._write(self._folder / "run.json", json.dumps(identity).encode())
        sync_folder(self._folder)
        return Done()

    def _begun(self) -> Any:
        """The identity of the run that has begun; None if none has."""
        try:
            return json.loads((self._folder / "run.json").read_bytes())
        except FileNotFoundError:
            return None

    def _heads(self) -> Iterator[dict[str, Any]]:
        """What the parts count, up to the first that is not there as it was written."""
        for number in count():
            try:
                with self._part(number).open("rb") as file:
                    line = file.readline()
                    head = json.loads(line)
                    if os.fstat(file.fileno()).st_size != len(line) + head["bytes"]:
                        return
            except (FileNotFoundError, ValueError):
                return
            yield head

    def _bodies(self) -> Iterator[bytes]:
        """The records of the parts that have some, encoded."""
        for number in range(self.done.chunks):
            body = self._part(number).read_bytes().partition(b"\n")[2]
            if body:
                yield body

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:08}"

    def _write(self, path: Path, content: bytes) -> None:
        """A file that is there as a whole, and on the disk, or not at all."""
        new = self._folder / "new"
        new.write_bytes(content)
        sync(new)
        new.replace(path)


def refuse_finished(out: Path) -> None:
    """Raise `SettingError` if a file is there and no run is about to make it anew."""
    folder = parts_of(out)
    there = _there(out)
    if there is None or (folder / "run.json").exists():
        return
    if folder.exists():  # a run was stopped while it cleared up
        with disk(out):
            remove(folder, locked(out))
    raise there


def about_of(out: Path) -> Path:
    """Return the file beside an output that says how it was made.

    >>> about_of(Path("words.csv")).name
    'words.csv.json'
    """
    return out.with_name(out.name + ".json")


def _there(out: Path) -> SettingError | None:
    """What is wrong with a place that has a file; None if it has none that would be lost."""
    about = about_of(out)
    try:
        ours = "charwise" in json.loads(about.read_bytes())
    except (OSError, ValueError, TypeError):
        ours = False
    if out.exists() and ours:
        return SettingError(f"{out} is there, and finished. --overwrite makes it anew.")
    for path in (out, about):
        if path.exists() and not ours:
            return SettingError(
                f"{path} is there, and nothing says that charwise wrote it. Name another output, "
                "or take --overwrite to replace it."
            )
    return None


def _difference(old: Mapping[str, Any], new: Identity) -> str:
    """The first thing in which two identities differ, in words; empty if none."""
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
            if all(abs(a - b) <= 1e-3 for a, b in zip(was, now, strict=True)):
                continue
            return f"{name} is no longer the same"
        if was != now:
            return f"{name} was {was}, and is now {now}"
    return ""


def _error(bad: BadRow) -> dict[str, Any]:
    return {
        "file": bad.place.file,
        "row": bad.place.number,
        "line": bad.place.line,
        "column": bad.column,
        "error": bad.reason,
    }
