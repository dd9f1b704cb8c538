"""Files that are there as a whole or not at all, whatever happens to their writer; their hashes."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from charwise.errors import SettingError


def digest(path: Path) -> str:
    """SHA-256 of a file's bytes.

    >>> digest(Path(os.devnull))[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts_of(out: Path) -> Path:
    """Return the folder of what is not finished.

    >>> parts_of(Path("words.csv")).name
    'words.csv.parts'
    """
    return out.with_name(out.name + ".parts")


def locked(out: Path) -> FileLock:
    """The lock of an output, held.

    Raises:
        SettingError: another process has it.
    """
    lock = FileLock(parts_of(out) / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SettingError(f"{out} is being written by another process.") from None
    return lock


def clear(folder: Path) -> None:
    """Remove all that is in the folder of an output, but its lock."""
    for path in folder.iterdir():
        if path.name != "lock":
            delete(path)


def delete(path: Path) -> None:
    """Remove a file, or a folder of files, if it is there."""
    if path.is_dir():
        for inside in path.iterdir():
            inside.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def remove(folder: Path, lock: FileLock) -> None:
    """Remove the folder of an output that is finished, and let go of its lock."""
    clear(folder)
    if sys.platform == "win32":  # where no open file can be removed
        lock.release()
    with suppress(OSError):  # someone else has it by now
        # Elsewhere while it is held: who waits for it finds that its file is gone.
        (folder / "lock").unlink()
        folder.rmdir()
    lock.release()


def sync(path: Path) -> None:
    """Wait until a file's contents are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Let what was made, renamed or removed in a folder survive a power failure."""
    if sys.platform != "win32":
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def disk(out: Path) -> Iterator[None]:
    """Turn the system's file errors into an `SettingError`, while `out` is written."""
    try:
        yield
    except SettingError:
        raise
    except OSError as error:
        raise SettingError(
            f"{out} cannot be written: {error.strerror or error}. What was complete is kept."
        ) from error
