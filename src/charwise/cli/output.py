"""The output of every command: any text on any stream, JSON, and progress."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

if TYPE_CHECKING:
    from charwise.tokens.vocabulary import Vocabulary

#: Escapes of control characters: raw ones in data would command the terminal, or reorder a line.
_ESCAPES: dict[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **{code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))},
}

#: The same without line ends, which lay out what we print.
_SAFE = {code: escape for code, escape in _ESCAPES.items() if code != ord("\n")}

#: Printable stand-ins for characters that one would not see.
VISIBLE = _ESCAPES | str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
SCISSORS = " ✂ "


class _Console(Console):
    """A console that escapes the control characters of what it prints."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield segments whose text cannot command a terminal."""
        for part in super().render(renderable, options):
            text = part.text if part.control else safe(part.text)
            yield Segment(text, part.style, part.control)


def console() -> Console:
    """Return the screen: plain text in a pipe, colours on a terminal."""
    return _Console(highlight=False)


def safe(value: object) -> str:
    r"""Return a value as text without control characters, but for line ends."""
    return str(value).translate(_SAFE)


def say(text: str, *, error: bool = False) -> None:
    """Print lines on stdout or stderr, without control characters."""
    print(safe(text), file=sys.stderr if error else sys.stdout)


def table(*columns: str, right: Container[str] = (), ratio: int | None = None) -> Table:
    """Return a table with a line under its head; `right` names its columns of numbers."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in columns:
        side: Literal["left", "right"] = "right" if name in right else "left"
        grid.add_column(name, justify=side, overflow="fold", ratio=ratio)
    return grid


def spelling(token: bytes) -> str:
    r"""Bytes as text; those that are not UTF-8 as escapes."""
    return token.decode("utf-8", "backslashreplace")


def visible(token: bytes) -> str:
    r"""Bytes as text with visible spaces."""
    return spelling(token).translate(VISIBLE)


def token_spelling(vocabulary: Vocabulary, id: int) -> str:
    """A token for display: its bytes, or the name of a special token."""
    token = vocabulary.tokens[id]
    return vocabulary.special.get(id, f"<{id}>") if token is None else visible(token)


def print_json(**fields: Any) -> None:
    """Print a JSON object, in ASCII where stdout is not in UTF-8.

    Numbers that JSON lacks (infinities, NaN) are null, and −0.0, which sums leave, is 0.0.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    plain = not encoding.lower().startswith("utf")
    text = json.dumps(_plain_numbers(fields), ensure_ascii=plain, indent=2)
    # JSON lets these stand in a string; as escapes they mean the same.
    print(text.translate({code: f"\\u{code:04x}" for code in _ESCAPES if code > 126}))


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain_numbers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_numbers(part) for part in value]
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None
    return value


@contextlib.contextmanager
def spinner(what: str) -> Iterator[None]:
    """Name on a terminal's stderr the work that takes a while."""
    screen = Console(stderr=True)
    with screen.status(what) if screen.is_terminal else contextlib.nullcontext():
        yield


def bars(*columns: ProgressColumn, transient: bool = False) -> Progress:
    """Return bars on a terminal's stderr, with the time that is left."""
    screen = Console(stderr=True)
    quiet = not screen.is_terminal
    columns += (TimeRemainingColumn(),)
    return Progress(*columns, console=screen, transient=transient, disable=quiet)


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars that do not stay: the report takes a bar's name, the steps done, and all steps."""
    tasks: dict[str, TaskID] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    progress = bars(*columns, transient=True)

    def report(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(name)
        progress.update(tasks[name], completed=done, total=total)

    with progress:
        yield report
