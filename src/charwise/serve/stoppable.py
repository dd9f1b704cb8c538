"""An engine that can be stopped between two model calls, and that counts its work.

All that the server asks of a model goes through trees of contexts. Before each call, whoever
waits for it may have left, or its time may be over: then the call is not made, and `Stopped` ends
the work. Trees are as they were, so that others go on with them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from charwise.cursor.options import Limit
from charwise.engine import Branches, TogetherLM, TokenLM, TokenTree
from charwise.errors import CharwiseError
from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("charwise.serve")


class Stopped(CharwiseError, RuntimeError):
    """Work that was ended before a model call; `why` is "cancelled" or "time".

    `status` tells a client of HTTP so.
    """

    status = 503

    def __init__(self, why: str) -> None:
        super().__init__(f"the work was ended early ({why}): ask for less.")
        self.why = why


class StoppableLM:
    """A `TokenLM` around another that looks at a limit before each model call.

    Attributes:
        calls: model calls made.
        shared: those of them that were for several requests, counted by `drawing.advance`.
        failed: calls for several requests that failed, and were made again for each of them.
        seconds: spent in them.

    >>> import threading
    >>> import charwise
    >>> lm = StoppableLM(charwise.load().engine)
    >>> cancel = threading.Event()
    >>> cancel.set()
    >>> with lm.until(Limit(cancel=cancel)):
    ...     lm.tree(lm.vocabulary.bos_ids)
    Traceback (most recent call last):
    charwise.serve.stoppable.Stopped: the work was ended early (cancelled): ask for less.
    """

    def __init__(self, engine: TokenLM) -> None:
        self.engine = engine
        self._limits = threading.local()
        self.calls = 0
        self.shared = 0
        self.failed = 0
        self.seconds = 0.0

    @property
    def vocabulary(self) -> Vocabulary:
        """Δ and κ."""
        return self.engine.vocabulary

    @property
    def window(self) -> int | None:
        """Longest context in tokens."""
        return self.engine.window

    @property
    def device(self) -> torch.device:
        """The device of the log-probabilities."""
        return self.engine.device

    def info(self) -> dict[str, str]:
        """Return the names of the model and of its device."""
        return self.engine.info()

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> TokenTree:
        """A tree whose root is this prompt; see `TokenLM.tree`.

        Raises:
            Stopped: the limit is reached.
        """
        with self.call():
            tree = self.engine.tree(prompt_ids, branches)
        tree.guard = self.call
        return tree

    def extend_together(
        self, wishes: Sequence[tuple[TokenTree, Branches]]
    ) -> list[list[list[int]]] | None:
        """See `TogetherLM.extend_together`; None too for an engine that is none."""
        if not isinstance(self.engine, TogetherLM):
            return None
        started = time.perf_counter()
        try:
            found = self.engine.extend_together(wishes)
        except CharwiseError:  # of one tree, whose request is told when it is asked alone
            raise
        except Exception:  # nobody is told if each succeeds alone, for a call each
            self.failed += 1
            if self.failed == 1:
                logger.warning("a model call for %d requests failed", len(wishes), exc_info=True)
            raise
        if found is not None:
            self.calls += 1
            self.seconds += time.perf_counter() - started
        return found

    @contextmanager
    def until(self, limit: Limit) -> Iterator[None]:
        """Look at this limit before each model call that this thread makes meanwhile."""
        self._limits.one = limit
        try:
            yield
        finally:
            self._limits.one = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """A model call, unless the limit is reached."""
        limit: Limit | None = getattr(self._limits, "one", None)
        if limit is not None and (why := limit.reached()):
            raise Stopped(why)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - started
