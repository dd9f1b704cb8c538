"""Files that survive what ends their writer: kill -9, a full disk, a power failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from charwise.errors import OutputError


def lock(path: Path, out: Path) -> BinaryIO:
    """A file, made if it is not there, opened for appending by this process only.

    Args:
        path: the file.
        out: what it is about, for the message.

    Raises:
        OutputError: another process has it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lock(Path(folder) / "a.lock", Path("a")) as file:
    ...         lock(Path(folder) / "a.lock", Path("a"))
    Traceback (most recent call last):
    charwise.errors.OutputError: a is being written by another process.
    """
    while True:
        file = path.open("a+b")
        if sys.platform == "win32":
            return file
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise OutputError(f"{out} is being written by another process.") from None
        try:
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass  # its last owner finished, and removed it, after it was opened here
        file.close()


def append(path: Path, lines: bytes) -> None:
    """Add bytes to a file, made if it is not there; they are on the disk once this returns."""
    with path.open("ab") as file:
        file.write(lines)
        sync(file)


def cut(path: Path, length: int) -> None:
    """Cut a file off at a length that it had; one that had none may not be there.

    Raises:
        OutputError: it is shorter.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     append(Path(folder) / "a", b"abc")
    ...     cut(Path(folder) / "a", 2)
    ...     (Path(folder) / "a").read_bytes()
    b'ab'
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise OutputError(
            f"{path} has {size:,} bytes, and had {length:,} when it was written. Delete the "
            "journal beside it to begin anew."
        )
    if size > length:
        os.truncate(path, length)


def sync(file: IO[bytes]) -> None:
    """Wait until what was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Let what was made, renamed or removed beside a file survive a power failure."""
    if sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def disk(out: Path) -> Iterator[None]:
    """Turn what the system says about files into an `OutputError`, while `out` is written."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"{out} cannot be written: {error.strerror or error}. What was complete is kept."
        ) from error
