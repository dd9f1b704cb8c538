"""The thread that works with the model for the language server, and its tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from charwise.char_lm import CharLM
from charwise.cursor.options import Limit
from charwise.serve.completions import Completions
from charwise.serve.endings import Rules
from charwise.serve.lsp_protocol import text_before
from charwise.serve.lsp_settings import Settings
from charwise.serve.task import Candidate
from charwise.tokens.line_ends import read

#: Loads a model: `charwise.load`, with what the command line said.
Load = Callable[..., CharLM]

_T = TypeVar("_T")


class ModelThread:
    """The thread that works with the model, and the models it has loaded.

    Args:
        load: called with the settings that say which model.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "charwise-model")
        self._models: dict[tuple[tuple[str, Any], ...], Completions] = {}

    def completions(self, settings: Settings) -> Completions:
        """Those of the model that is set; loaded if it is not. To be called by the thread."""
        key = tuple(sorted(settings.load.items()))
        if key not in self._models:
            self._models[key] = Completions(self._load(**settings.load))
        return self._models[key]

    async def do(self, work: Callable[[], _T]) -> _T:
        """The result of some work, once its turn has come."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Take no more work."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def suggestions(
    completions: Completions,
    settings: Settings,
    before: str,
    after: str,
    cancel: threading.Event,
) -> list[Candidate]:
    """Return the texts to insert between two texts, not empty and not there already.

    Args:
        completions: of the model.
        settings: of the editor.
        before, after: what is around the cursor.
        cancel: ends the work within one model call when it is set.

    Raises:
        Stopped: it was set.

    >>> import charwise
    >>> completions = Completions(charwise.load())
    >>> cancel = threading.Event()
    >>> found = suggestions(completions, Settings(max_bytes=1), "import nump", "", cancel)
    >>> found[0].text
    'y'
    """
    counts = settings.infill or completions.template is None
    task = settings.task(before, after if counts else None)
    answer = completions.answer(task, Limit(settings.seconds, cancel))
    rules = Rules(_bytes(before), _bytes(after), until=settings.until)
    found: dict[str, Candidate] = {}
    for one in answer.candidates:
        if not counts and (ending := rules.ending(one.raw, True)):
            one = replace(one, text=one.raw[: ending.at].decode("utf-8", "replace"))
        text = one.text.partition("\ufffd")[0]  # what cannot be read is not offered
        if text.strip():
            found.setdefault(text, one)
    return [replace(one, text=text) for text, one in found.items()]


def read_ahead(
    completions: Completions,
    settings: Settings,
    text: str,
    cursor: int,
    cancel: threading.Event,
) -> None:
    """Read a text up to a cursor, so that a completion there begins at once.

    >>> import charwise
    >>> completions = Completions(charwise.load())
    >>> read_ahead(completions, Settings(), "import nump", 9, threading.Event())
    >>> len(completions.memory)
    1
    """
    before, after = around(completions, settings, text, cursor, cursor)
    try:
        with completions.engine.until(Limit(cancel=cancel)):
            if after.strip() and settings.infill and completions.template is not None:
                completions.memory.between(_bytes(before), _bytes(after))
            else:
                completions.memory.after(*completions.lm.vocabulary.split_prompt(_bytes(before)))
    finally:
        completions.bound()


def around(
    completions: Completions, settings: Settings, text: str, start: int, end: int
) -> tuple[str, str]:
    r"""Return the text before and after a part of a document, as far as it is worth reading.

    Its lines end in `\n`, as a model reads them.

    >>> import charwise
    >>> completions = Completions(charwise.load())
    >>> around(completions, Settings(after=2), "one two", 3, 4)
    ('one', 'tw')
    """
    window = completions.lm.engine.window
    # A token has six characters at most, on average.
    far = 65_536 if window is None else min(65_536, 6 * window)
    after = far if settings.after is None else settings.after
    before = text_before(text, start, far if settings.before is None else settings.before)
    return read(before), read(text[end : end + after])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
