"""Work that ends before its next model call, once somebody says so.

A new state takes a prefill and some rounds, none of which look at a flag. Here the engine does:
before it evaluates anything, it asks whether the thread's work is still wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from charwise.cursor.limit import Cancel
from charwise.errors import CharwiseError
from charwise.token_lm import TokenTree

_work = threading.local()


class InterruptedWork(CharwiseError):
    """What was asked for is not wanted any more."""


@contextmanager
def wanted_until(cancel: Cancel) -> Iterator[None]:
    """What this thread asks of an `Interruptible` ends with `InterruptedWork` once that is set.

    >>> import charwise
    >>> lm, cancel = charwise.load(), threading.Event()
    >>> lm = charwise.CharLM(Interruptible(lm.engine))
    >>> cancel.set()
    >>> with wanted_until(cancel):
    ...     lm.state("import nump")
    Traceback (most recent call last):
    charwise.serve.interruption.InterruptedWork: not wanted any more.
    """
    before = getattr(_work, "cancel", None)
    _work.cancel = cancel
    try:
        yield
    finally:
        _work.cancel = before


def check() -> None:
    """Raise if this thread's work is not wanted any more.

    Raises:
        InterruptedWork: it is not.

    >>> check()
    """
    cancel = getattr(_work, "cancel", None)
    if cancel is not None and cancel.is_set():
        raise InterruptedWork("not wanted any more.")


class Interruptible:
    """An engine that asks before each model call whether it is wanted; else as it is.

    Args:
        engine: a `TokenLM`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Interruptible, (self._engine,))

    def tree(self, prompt_ids: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> Any:
        """See `TokenLM.tree`."""
        check()
        return _Tree(self._engine.tree(prompt_ids, edges))


class _Tree:
    """A `TokenTree` that asks before it is extended."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    def extend(
        self, edges: Sequence[tuple[int, int]], logprobs: Sequence[bool] | None = None
    ) -> list[int]:
        """See `TokenTree.extend`."""
        check()
        return self._tree.extend(edges, logprobs)
