"""The thread that has the model: runs share its calls, and clients take turns.

Up to eight runs draw their tokens together. Between two tokens one more piece of work begins: a
run, whose prompt is read, or a function of the model, which is run as a whole.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from charwise.char_lm import CharLM
from charwise.cursor.options import Limit
from charwise.engine import Branches, TogetherLM, TokenLM, TokenTree
from charwise.errors import CharwiseError, SettingError
from charwise.healing.fim import Template
from charwise.serve.cache import Cache
from charwise.serve.run import Run, advance
from charwise.serve.task import Answer, NewText, Stopped, Task

logger = logging.getLogger("charwise.serve")

Result = TypeVar("Result")

#: The client that asks, set where a request arrives.
CLIENT: ContextVar[str] = ContextVar("charwise_client", default="")


class QueueFullError(CharwiseError, RuntimeError):
    """As much work waits as may."""

    status = 429


class _CountedLM:
    """An engine that counts its calls, and their seconds; a call beyond `limit` is `Stopped`."""

    def __init__(self, engine: TokenLM) -> None:
        self._engine = engine
        self.limit: Limit | None = None
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        """All else is the engine's."""
        return getattr(self._engine, name)

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> TokenTree:
        """See `TokenLM.tree`."""
        with self._call():
            tree = self._engine.tree(prompt_ids, branches)
        tree.guard = self._call
        return tree

    def extend_together(
        self, wishes: Sequence[tuple[TokenTree, Branches]]
    ) -> list[list[list[int]]] | None:
        """See `TogetherLM.extend_together`; None too for an engine that is none."""
        if not isinstance(self._engine, TogetherLM):
            return None
        started = time.perf_counter()
        try:
            nodes = self._engine.extend_together(wishes)
        except CharwiseError:  # of one tree, whose run is told when it is asked alone
            raise
        except Exception:  # nobody is told if each succeeds alone, for a call each
            self.counts["failed_shared_calls"] += 1
            if self.counts["failed_shared_calls"] == 1:
                logger.warning("a model call for %d runs failed", len(wishes), exc_info=True)
            raise
        if nodes is not None:
            self.counts.update(model_calls=1, shared_calls=1)
            self.seconds += time.perf_counter() - started
        return nodes

    @contextmanager
    def _call(self) -> Iterator[None]:
        if self.limit is not None and (why := self.limit.reached()):
            raise Stopped(why)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.counts["model_calls"] += 1
            self.seconds += time.perf_counter() - started


@dataclass(eq=False)
class _Job:
    """Some work, its client, its events, and a flag that ends it."""

    work: Task | Callable[[CharLM], Any]
    typed: bool
    client: str = field(default_factory=CLIENT.get)
    cancel: threading.Event = field(default_factory=threading.Event)
    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def post(self, events: Sequence[Any]) -> None:
        """Hand events to whoever waits for them; called on any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(lambda: [*map(self.events.put_nowait, events)])


class Engine:
    """A model, and the thread that has it; `lm`, but for its vocabulary, and `cache` are its alone.

    A job may wait so many `seconds`. After as many a run draws no more, from when its prompt is
    read, and a function makes no model call.
    """

    def __init__(self, lm: CharLM, *, max_waiting: int = 64, seconds: float = 10.0) -> None:
        self.model = _CountedLM(lm.engine)
        self.lm = CharLM(cast(TokenLM, self.model), preset=lm.effort)
        self.cache = Cache(self.lm)
        try:
            self.template: Template | None = Template.of(lm.vocabulary)
        except SettingError:
            self.template = None
        self.counts: Counter[str] = Counter()
        self._cache_sizes = {"states": 0, "trees": 0, "kept_bytes": 0}
        self.on_answer: Callable[[Answer], object] = lambda _: None
        self.on_first_event: Callable[[float], object] = lambda _: None  # with seconds
        self.max_waiting, self.seconds = max_waiting, seconds
        self._queue: list[_Job] = []
        self._turn_of: dict[str, int] = {}  # when each client had its last turn
        self._turns = self._typed_turns = 0
        self._runs: dict[_Job, Run] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="charwise-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """The number of runs that share calls now."""
        return len(self._runs)

    def numbers(self) -> Counter[str]:
        """Return all that is counted, and the size of the cache when work last began."""
        now = {"requests_waiting": self.waiting, "requests_running": self.under_way}
        seconds = {"model_seconds": self.model.seconds}
        return Counter({**self.counts, **self.model.counts, **self._cache_sizes, **now, **seconds})

    async def stream(self, task: Task) -> AsyncGenerator[NewText | Answer]:
        """Yield the new texts of a streamed task as they are drawn; last, its answer.

        Whoever stops listening ends the run before its next token.
        """
        began, first = time.monotonic(), task.streamed
        async with aclosing(self._events(_Job(task, typed=True))) as events:
            async for event in events:
                if first:
                    self.on_first_event(time.monotonic() - began)
                first = False
                if isinstance(event, Answer):
                    self.counts["prompt_tokens_total"] += event.prompt_tokens
                    self.counts["generation_tokens_total"] += event.new_tokens
                    self.counts["remembered_total"] += event.from_memory
                    self.counts["cut_total"] += any(c.finish == "time" for c in event.candidates)
                    self.on_answer(event)
                yield event

    async def answer(self, task: Task) -> Answer:
        """Return the last event of a stream: the whole answer."""
        async with aclosing(self.stream(task)) as events:
            *_, last = [event async for event in events]
        return cast(Answer, last)

    async def call(self, work: Callable[[CharLM], Result], *, typed: bool = False) -> Result:
        """Return the result of a function of the model, which runs on its thread.

        It ends before a model call once nobody waits. `typed`: whether it answers a keystroke.
        """
        async with aclosing(self._events(_Job(work, typed))) as events:
            [result] = await anext(events)
            return cast(Result, result)

    def close(self) -> None:
        """Finish the work under way, and stop; waiting jobs get an error."""
        with self._wake:
            self._closed = True
            while self.waiting:
                self._take().post([QueueFullError("the server is about to stop.")])
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    async def _events(self, job: _Job) -> AsyncGenerator[Any]:
        """The events of a job, in order. Errors are raised."""
        with self._wake:
            if self._closed:
                raise QueueFullError("the server is about to stop.")
            if self.waiting >= self.max_waiting:
                self.counts["refused_total"] += 1
                raise QueueFullError(f"{self.waiting} requests wait already: ask again later.")
            self._queue.append(job)
            self._wake.notify()
        timer = asyncio.get_running_loop().call_later(self.seconds, self._expire, job)
        event: Any = NewText(0, "")
        try:
            while isinstance(event, NewText):
                event = await job.events.get()
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            late = isinstance(event, Stopped) and event.why == "time"
            left = isinstance(event, NewText | Stopped) and not late
            self.counts.update(cut_total=late, cancelled_total=left)
            timer.cancel()
            job.cancel.set()
            self._forget(job)

    def _forget(self, job: _Job) -> bool:
        """Take a job out of the queue, if it still waits."""
        with self._wake:
            waits = job in self._queue
            if waits:
                self._queue.remove(job)
            return waits

    def _expire(self, job: _Job) -> None:
        if self._forget(job):
            self.counts["refused_total"] += 1
            why = f"this waited for its turn for {self.seconds:g} seconds."
            job.post([QueueFullError(why)])

    def _take(self) -> _Job:
        """Take the job whose turn it is: of the client whose last turn is longest ago, the oldest.

        Keystrokes go first, but for every fifth turn.
        """
        typed = [job for job in self._queue if job.typed]
        others = [job for job in self._queue if not job.typed]
        first = typed if typed and (not others or self._typed_turns < 4) else others
        self._typed_turns = self._typed_turns + 1 if first is typed else 0
        job = min(first, key=lambda job: self._turn_of.get(job.client, 0))
        self._queue.remove(job)
        self._turns += 1
        self._turn_of.pop(job.client, None)
        self._turn_of[job.client] = self._turns
        if len(self._turn_of) > 1024:
            del self._turn_of[next(iter(self._turn_of))]
        return job

    def _next(self) -> _Job | None:
        """The next job; None if there is none now. Where no run is under way, it is waited for."""
        with self._wake:
            while not (self._runs or self._closed or self.waiting):
                self._wake.wait()
            return self._take() if self.waiting and len(self._runs) < 8 else None

    def _work(self) -> None:
        while (job := self._next()) is not None or self._runs:
            try:
                if job is not None and not job.cancel.is_set():
                    self._begin(job)
                self._step()
            except BaseException as failure:  # handed to all that wait for it: the thread goes on
                ended, self._runs = {*self._runs, *([job] if job else ())}, {}
                for one in ended:
                    one.post([failure])

    def _begin(self, job: _Job) -> None:
        """Begin a run, or call a function."""
        try:
            if isinstance(job.work, Task):
                budget = job.work.options.seconds
                seconds = self.seconds if budget is None else min(self.seconds, budget)
                run = Run(job.work, self.cache, self.template, Limit(seconds, job.cancel))
                self._runs[job] = run
                self._send(job, run)
            else:
                self.model.limit = Limit(self.seconds, job.cancel)
                job.post([(job.work(self.lm),)])
        except BaseException as error:  # handed to whoever waits: the thread goes on
            job.post([error])
        finally:
            self.model.limit = None
        cache = self.cache
        cache.enforce_limit([run.shared for run in self._runs.values()])
        # Other threads read this: the cache itself changes under their eyes.
        self._cache_sizes = {
            "states": len(cache),
            "trees": len(cache.trees),
            "kept_bytes": cache.nbytes,
        }

    def _step(self) -> None:
        """Draw a token of every candidate of all runs."""
        runs = dict(self._runs)
        for (job, run), error in zip(runs.items(), advance([*runs.values()]), strict=True):
            if error is not None:
                run.close()
                run.events, run.ended = [error], True
            self._send(job, run)

    def _send(self, job: _Job, run: Run) -> None:
        if run.events:
            job.post(run.events)
            run.events = []
        if run.ended:
            del self._runs[job]
