"""One thread that has the model, and a queue before it.

Some work comes in steps (a token each) that several may make together: as many as are wanted are
under way at once, and each of the others runs as a whole between two steps.

Keystrokes come before work of other sorts (scores, lists of prompts), which has a turn after every
few keystrokes. Within each sort clients take turns, so that nobody waits for one who asks more. A
keystroke is dropped where a newer one of the same client needs its place in a full queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from charwise.cursor.options import Cancel
from charwise.errors import CharwiseError

Result = TypeVar("Result")
Item = TypeVar("Item")

#: Who asks (`app._client_of`), set where a request arrives.
CLIENT: ContextVar[str] = ContextVar("charwise_client", default="")


class QueueFullError(CharwiseError, RuntimeError):
    """As much work waits as may; `status` tells a client of HTTP so."""

    status = 429


class _FairQueue(Generic[Item]):
    """A queue that is fair to clients: they take turns, each with its oldest item.

    >>> queue = _FairQueue[str]()
    >>> for client, item in [("a", "a1"), ("a", "a2"), ("b", "b1")]:
    ...     queue.add(client, item)
    >>> queue.next(), queue.next(), queue.next(), len(queue)
    ('a1', 'b1', 'a2', 0)
    """

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, client: str, item: Item) -> None:
        """Add an item behind the others of its client."""
        self._of.setdefault(client, deque()).append(item)

    def next(self) -> Item:
        """Take the item whose turn it is; its client's next one comes after those of all others."""
        client, items = self._of.popitem(last=False)
        item = items.popleft()
        if items:
            self._of[client] = items
        return item

    def oldest(self, client: str) -> Item | None:
        """Return a client's oldest item; None if it has none."""
        items = self._of.get(client)
        return items[0] if items else None

    def remove(self, client: str, item: Item) -> bool:
        """Take an item out; False if it is not there."""
        items = self._of.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._of[client]
        return True

    def clear(self) -> list[Item]:
        """Take all items out."""
        left = [item for items in self._of.values() for item in items]
        self._of.clear()
        return left


class _Job:
    """Some work, where its result is wanted, and a flag that ends it."""

    def __init__(
        self, run: Callable[[Cancel], Any], loop: asyncio.AbstractEventLoop, typed: bool
    ) -> None:
        self.run = run
        self.typed = typed
        self.client = CLIENT.get()
        self.cancel = threading.Event()
        self.result: asyncio.Future[Any] = loop.create_future()
        self.steps: Generator[Any, None, Any] | None = None
        self.next: Any = None
        self._loop = loop

    def begin(self) -> bool:
        """Run it, or up to its first step. Whether there is one."""
        try:
            found = self.run(self.cancel)
        except BaseException as error:  # handed to whoever waits: the thread goes on
            self.settle(None, error)
            return False
        if not isinstance(found, Generator):
            self.settle(found, None)
            return False
        self.steps = found
        return self.goes_on(None)

    def goes_on(self, error: BaseException | None) -> bool:
        """Run on after a step, up to the next. Whether there is one."""
        assert self.steps is not None
        try:
            if error is not None:
                self.steps.close()
                raise error
            self.next = next(self.steps)
        except StopIteration as ended:
            self.settle(ended.value, None)
        except BaseException as failure:
            self.settle(None, failure)
        else:
            return True
        return False

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Hand the result to whoever waits for it; called on the model's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self.result.done():
            return
        if error is None:
            self.result.set_result(result)
        else:
            self.result.set_exception(error)


class Worker:
    """The thread that has the model.

    Args:
        most: how many jobs may wait.
        patience: seconds that one may wait for its turn.
        advance: what makes a step of all work that is under way, and says what ends it, where
            something does.

    >>> worker = Worker(most=8)
    >>> async def twice() -> int:
    ...     return await worker.run(lambda cancel: 2 * 21)
    >>> asyncio.run(twice())
    42
    >>> worker.close()
    """

    def __init__(
        self,
        most: int = 64,
        patience: float = 60.0,
        advance: Callable[[list[Any]], Sequence[BaseException | None]] | None = None,
    ) -> None:
        self._advance = advance
        self._under_way = list[_Job]()
        self.most = most
        self.patience = patience
        self._typed = _FairQueue[_Job]()
        self._others = _FairQueue[_Job]()
        self._wake = threading.Condition()
        self._closed = False
        self._turns = 0
        self._thread = threading.Thread(target=self._work, name="charwise-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._typed) + len(self._others)

    @property
    def under_way(self) -> int:
        """How many jobs are between two steps."""
        return len(self._under_way)

    async def run(
        self,
        work: Callable[[Cancel], Result | Generator[Any, None, Result]],
        *,
        typed: bool = False,
    ) -> Result:
        """The result of some work on the model's thread.

        Whoever stops waiting for it (its task is cancelled) sets the flag that the work is given.

        Args:
            work: a function of that flag; or one that makes a generator, whose result counts. What
                it yields is given to `advance`, with what others yield, and then it runs on.
            typed: whether it answers a keystroke.

        Raises:
            QueueFullError: too much waits already, or this waited for too long.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop, typed)
        with self._wake:
            if self._closed:
                raise QueueFullError("the server is about to stop.")
            replaced = self._typed.oldest(job.client) if typed else None
            if self.waiting >= self.most:
                if replaced is None:
                    raise QueueFullError(f"{self.waiting} requests wait already: ask again later.")
                self._typed.remove(job.client, replaced)
                replaced.settle(None, QueueFullError("a newer request of yours took its place."))
            (self._typed if typed else self._others).add(job.client, job)
            self._wake.notify()
        timer = loop.call_later(self.patience, self._expire, job)
        try:
            result: Result = await job.result
            return result
        finally:
            timer.cancel()
            job.cancel.set()
            self._forget(job)

    def _forget(self, job: _Job) -> bool:
        """Take a job out of the queue, if it still waits."""
        waiting = self._typed if job.typed else self._others
        with self._wake:
            return waiting.remove(job.client, job)

    def _expire(self, job: _Job) -> None:
        if self._forget(job) and not job.result.done():
            job.result.set_exception(
                QueueFullError(f"this waited for its turn for {self.patience:g} seconds.")
            )

    def close(self) -> None:
        """Finish the work under way, and end; waiting requests get an error."""
        with self._wake:
            self._closed = True
            left = [*self._typed.clear(), *self._others.clear()]
            self._wake.notify()
        for job in left:
            job.settle(None, QueueFullError("the server is about to stop."))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _next(self, wait: bool) -> _Job | None:
        """The job whose turn it is; None if none waits, or all are to end."""
        with self._wake:
            while wait and not self._closed and not self.waiting:
                self._wake.wait()
            if self._closed or not self.waiting:
                return None
            if self._typed and (not self._others or self._turns < 4):
                self._turns += 1
                return self._typed.next()
            self._turns = 0
            return self._others.next()

    def _work(self) -> None:
        under_way = self._under_way
        while True:
            room = len(under_way) < 8
            job = self._next(wait=not under_way) if room else None
            if job is None and not under_way:
                return
            if job is not None and not job.cancel.is_set() and job.begin():
                under_way.append(job)
            if under_way:
                together = zip(list(under_way), self._step(), strict=True)
                under_way[:] = [job for job, error in together if job.goes_on(error)]

    def _step(self) -> Sequence[BaseException | None]:
        """Make a step of all that is under way: the error that ends each, if one does."""
        try:
            assert self._advance is not None
            return self._advance([job.next for job in self._under_way])
        except BaseException as error:  # handed to all that wait for it: the thread goes on
            return [error] * len(self._under_way)
