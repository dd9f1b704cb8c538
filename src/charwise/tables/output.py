"""An output that survives its writer: stopped at any moment, the next run continues it.

Beside the file OUT that is being made lie

- OUT.part: the records so far, appended to;
- OUT.errors.jsonl: the bad rows so far, appended to;
- OUT.journal: a line that says what is made, then a line for each chunk that is complete in both,
  with their lengths.

A chunk counts from the moment when its line is in the journal, and the line is written after the
files are on the disk. What is in them beyond the last line was not finished, and is cut off. OUT
itself appears in one step, when all is there; then the journal goes. Who holds the lock on the
journal is the only writer, and the system lets go of a lock when a process ends in any way.
(On Windows nothing is locked.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from charwise.errors import OutputError
from charwise.tables.chunks import Record
from charwise.tables.durable import append, cut, disk, lock, sync, sync_folder
from charwise.tables.rows import BadRow
from charwise.tables.writers import format_of

#: What a run makes, by the names of what it depends on: two runs with equal ones make the same.
#: Lists of numbers are equal within `TOLERANCE`.
Identity = dict[str, str | list[float] | None]

#: What the same model may say differently on another day.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Done:
    """How far an output is: what a line of the journal holds.

    Attributes:
        chunks, rows, bad: chunks, rows of the input in them, and bad ones among those.
        records: rows of the output.
        size: bytes of text that were read.
        part, errors: bytes of the two files.
    """

    chunks: int = 0
    rows: int = 0
    bad: int = 0
    records: int = 0
    size: int = 0
    part: int = 0
    errors: int = 0


class Output:
    """An output that is being made, begun or continued; a context manager that holds its lock.

    Args:
        out: the file to make; its ending says in which format.
        identity: what the run makes.
        total: rows of the input.
        overwrite: replace a file of that name, and an unfinished one of another identity.

    Raises:
        OutputError: the file is there, or is being written, or was begun as something else.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> out = Path(folder.name) / "out.csv"
    >>> record = Record("a.csv", 1, None, 1, "To", 0, 2, 3.5, 3.5, 0.0)
    >>> with Output(out, {"--per": "word"}, total=1) as output:
    ...     output.append([[record]], size=2)
    ...     output.finish()
    >>> out.read_text().splitlines()[1]
    'a.csv,1,,1,To,0,2,3.5,3.5,0.0'
    >>> folder.cleanup()
    """

    def __init__(
        self, out: Path, identity: Identity, total: int, *, overwrite: bool = False
    ) -> None:
        self.out = out
        self.total = total
        self.errors = out.with_name(out.name + ".errors.jsonl")
        self._format = format_of(out)
        self._part = out.with_name(out.name + ".part")
        self._journal_path = _journal_of(out)
        with disk(out):
            self._journal = lock(self._journal_path, out)
            try:
                self.done = self._resume(identity, overwrite)
            except BaseException:
                self._journal.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def append(self, outcomes: Sequence[Sequence[Record] | BadRow], size: int) -> None:
        """Add the rows of a chunk. Once this returns they are on the disk, and count.

        Args:
            outcomes: the records of each row, or what is wrong with it.
            size: bytes of text that were read for them.

        Raises:
            OutputError: the disk is full, or broken.
        """
        bad = [row for row in outcomes if isinstance(row, BadRow)]
        records = [r for rows in outcomes if not isinstance(rows, BadRow) for r in rows]
        part = self._format.encode(records) if records else b""
        errors = b"".join(map(_error_line, bad))
        with disk(self.out):
            for path, lines in ((self._part, part), (self.errors, errors)):
                if lines:
                    append(path, lines)
            self.done = Done(
                chunks=self.done.chunks + 1,
                rows=self.done.rows + len(outcomes),
                bad=self.done.bad + len(bad),
                records=self.done.records + len(records),
                size=self.done.size + size,
                part=self.done.part + len(part),
                errors=self.done.errors + len(errors),
            )
            self._note(asdict(self.done))

    def finish(self) -> None:
        """Give the complete output its name.

        Raises:
            OutputError: there were not as many rows as there should be; a full or broken disk.
        """
        if self.done.rows != self.total:
            raise OutputError(
                f"the input of {self.out} changed while it was read: it had {self.total:,} rows, "
                f"and {self.done.rows:,} came."
            )
        with disk(self.out):
            if self._part.exists():  # else a run before this one was stopped in these lines
                self._format.finish(self._part, self.out)
            if not self.done.errors:
                self.errors.unlink(missing_ok=True)
            sync_folder(self.out)
            self._part.unlink(missing_ok=True)
            self._journal.close()
            self._journal_path.unlink(missing_ok=True)

    def _resume(self, identity: Identity, overwrite: bool) -> Done:
        """Read the journal and cut the files back to it, or begin new ones."""
        begun, last = self._read_journal()
        difference = "" if begun is None else _difference(begun, identity)
        if begun is not None and not difference:
            done = Done(part=len(self._format.begin())) if last is None else Done(**last)
            renamed = done.rows == self.total and self.out.exists() and not self._part.exists()
            if not renamed:
                cut(self._part, done.part)
                cut(self.errors, done.errors)
            return done
        if begun is not None and not overwrite:
            raise OutputError(
                f"{self.out} was begun by a run that makes something else, and is not finished: "
                f"{difference}. Run that again to finish it, or take --overwrite to begin anew."
            )
        if self.out.exists() and not overwrite:
            self._journal.close()
            self._journal_path.unlink()
            raise _finished(self.out)
        return self._begin(identity)

    def _begin(self, identity: Identity) -> Done:
        self._journal.truncate(0)
        for path in (self._part, self.errors):
            path.unlink(missing_ok=True)
        begin = self._format.begin()
        append(self._part, begin)
        sync_folder(self.out)
        self._note(identity)
        return Done(part=len(begin))

    def _read_journal(self) -> tuple[Any, Any]:
        """Its first line, and its last if there are more. One that was cut off is removed."""
        first = last = None
        length = 0
        self._journal.seek(0)
        for line in self._journal:
            try:
                found = json.loads(line[: line.index(b"\n")])
            except ValueError:
                break
            first, last = (found, None) if first is None else (first, found)
            length += len(line)
        self._journal.truncate(length)
        return first, last

    def _note(self, line: Mapping[str, Any]) -> None:
        self._journal.write(json.dumps(line).encode() + b"\n")
        sync(self._journal)


def refuse_finished(out: Path) -> None:
    """Raise `OutputError` if a file is there and no run is about to make it anew."""
    if out.exists() and not _journal_of(out).exists():
        raise _finished(out)


def _finished(out: Path) -> OutputError:
    return OutputError(f"{out} is there, and finished. --overwrite makes it anew.")


def _journal_of(out: Path) -> Path:
    return out.with_name(out.name + ".journal")


def _difference(old: Mapping[str, Any], new: Identity) -> str:
    """The first thing in which two identities differ, in words; empty if none."""
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
            if all(abs(a - b) <= TOLERANCE for a, b in zip(was, now, strict=True)):
                continue
            return f"{name} is no longer the same"
        if was != now:
            return f"{name} was {was}, and is now {now}"
    return ""


def _error_line(bad: BadRow) -> bytes:
    line = {
        "file": bad.place.file,
        "row": bad.place.number,
        "line": bad.place.line,
        "column": bad.column,
        "error": bad.reason,
    }
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
