"""The part that every dialect shares: settings, the model's thread, answers on it, and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Annotated, Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from pydantic import Field

from charwise.api.limits import CheckedSettings
from charwise.char_lm import CharLM
from charwise.cursor.options import Cancel, Limit
from charwise.serve.completions import Completions
from charwise.serve.drawing import Drawing, advance
from charwise.serve.stoppable import Stopped
from charwise.serve.task import Answer, CompletionTask
from charwise.serve.work import QueueFullError, Worker

#: A line for each request: who, what, the status, and how long it took.
access = logging.getLogger("charwise.access")

#: Seconds at which answers are counted.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Metrics:
    """Counters of one server.

    Args:
        completions: what it keeps, and its model, are looked at when somebody asks, which is on
            another thread: numbers alone.
        worker: whose queue is.
    """

    def __init__(self, completions: Completions, worker: Worker) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # resident memory, CPU seconds
        self.requests = Counter(
            "charwise_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "charwise_completion_seconds",
            "From the model's turn to the end of an answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        counted = {
            "bytes": "Bytes of completions written.",
            "remembered": "Completions answered from what was offered before.",
            "cut": "Completions that time ended.",
            "cancelled": "Completions whose client left.",
            "refused": "Requests refused since too many waited.",
        }
        self.counters = {
            name: Counter(f"charwise_{name}", said, registry=registry)
            for name, said in counted.items()
        }
        watched = {
            "queue": ("Requests that wait.", lambda: worker.waiting),
            "model_seconds": ("Seconds in model calls.", lambda: completions.engine.seconds),
            "model_calls": ("Model calls.", lambda: completions.engine.calls),
            "shared_calls": ("Those of several requests.", lambda: completions.engine.shared),
            "failed_shared_calls": (
                "Shared calls that failed, and were made for each alone.",
                lambda: completions.engine.failed,
            ),
            "under_way": ("Requests that share calls now.", lambda: worker.under_way),
            "states": ("States kept.", lambda: completions.kept.states),
            "trees": ("Token trees kept.", lambda: completions.kept.trees),
            "kept_bytes": ("Of what is kept.", lambda: completions.kept.size),
        }
        for name, (said, value) in watched.items():
            Gauge(f"charwise_{name}", said, registry=registry).set_function(value)

    def answered(self, answer: Answer) -> None:
        """Count an answer."""
        self._seconds.observe(answer.seconds)
        self.counters["bytes"].inc(sum(len(one.raw) for one in answer.candidates))
        self.counters["remembered"].inc(answer.from_memory)
        self.counters["cut"].inc(answer.limited)

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return bytes(generate_latest(self._registry))


class Counting:
    """An ASGI middleware that counts answers by path and status, and logs each request.

    Args:
        app: what is behind it.
        metrics: where they are counted.
    """

    def __init__(self, app: Any, metrics: _Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, time.perf_counter()

        async def count(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.requests.labels(path, status).inc()
            await send(message)

        try:
            await self._app(scope, receive, count)
        finally:
            client = (scope.get("client") or ("",))[0]
            took = 1000 * (time.perf_counter() - began)
            access.info("%s %s %s %s %.0f ms", client, scope["method"], scope["path"], status, took)


Result = TypeVar("Result")


class Settings(CheckedSettings):
    """The settings of a server, given when it starts.

    Attributes:
        name: of the model, as clients see it.
        api_key: which requests must show; None for no key.
        max_queue: requests that may wait.
        seconds: of the model's time that a request may take, and that it may wait before.
        allow_origins: web pages that may ask; "*" for all of them.
        hosts: names under which it may be asked; None for any.
        most_body: bytes of a request.
    """

    name: str = "charwise"
    api_key: str | None = None
    max_queue: Annotated[int, Field(ge=1)] = 64
    seconds: Annotated[float, Field(gt=0)] = 10.0
    allow_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    most_body: Annotated[int, Field(ge=1)] = 2**22


def started(lm: CharLM, settings: Settings) -> str:
    """Return the line that a server logs at its start.

    >>> import charwise
    >>> started(charwise.load(), Settings(name="embedded"))
    'embedded: window 2,048 tokens, no key.'
    """
    window = lm.engine.window
    length = "no window" if window is None else f"window {window:,} tokens"
    key = "a key is required" if settings.api_key else "no key"
    return f"{settings.name}: {length}, {key}."


class Server:
    """A model that is served.

    Args:
        lm: the model.
        settings: of the server.

    Attributes:
        completions: what answers requests, on the worker's thread alone.
        worker: that thread, and its queue.
        metrics: what is counted.
        started: when, in seconds since 1970.

    >>> import charwise
    >>> server = Server(charwise.load(), Settings())
    >>> answer = asyncio.run(server.answer(CompletionTask("import nump", max_bytes=1)))
    >>> answer.candidates[0].text
    'y'
    >>> server.close()
    """

    def __init__(self, lm: CharLM, settings: Settings) -> None:
        self.settings = settings
        self.completions = Completions(lm)
        self.lm = self.completions.lm
        self.worker = Worker(settings.max_queue, settings.seconds, advance)
        self.metrics = _Metrics(self.completions, self.worker)
        self.started = int(time.time())

    def close(self) -> None:
        """Finish the work under way, and stop."""
        self.worker.close()

    async def run(self, work: Callable[[CharLM], Result], *, typed: bool = False) -> Result:
        """The result of a function of the model, which runs on its thread.

        It ends before a model call once nobody waits, or after `settings.seconds`.

        Raises:
            Stopped: it was ended so.
            QueueFullError: too much waits.
        """

        def begun(cancel: Cancel) -> Result:
            try:
                with self.completions.engine.until(Limit(self.settings.seconds, cancel)):
                    return work(self.lm)
            finally:
                self.completions.bound()

        return await self._counted(begun, typed)

    async def answer(
        self, task: CompletionTask, tell: Callable[[int, str], object] | None = None
    ) -> Answer:
        """Return the answer to a completion request; see `Completions.answer`.

        A request whose task is cancelled ends within one model call.
        """

        def begun(cancel: Cancel) -> Generator[Drawing, None, Answer]:
            return self.completions.steps(task, Limit(self._seconds(task), cancel), tell)

        answer: Answer = await self._counted(begun, True)
        self.metrics.answered(answer)
        return answer

    async def stream(self, task: CompletionTask) -> AsyncGenerator[tuple[int, str] | Answer]:
        """Pieces of an answer as they are drawn (which candidate, and text); last, the answer."""
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[tuple[int, str] | Answer | BaseException] = asyncio.Queue()

        def tell(number: int, text: str) -> None:
            loop.call_soon_threadsafe(told.put_nowait, (number, text))

        async def run() -> None:
            try:
                told.put_nowait(await self.answer(task, tell))
            except Exception as error:  # raised below, where it is waited for
                told.put_nowait(error)

        drawing = asyncio.create_task(run())
        try:
            while True:
                found = await told.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
                if isinstance(found, Answer):
                    return
        finally:
            drawing.cancel()

    async def _counted(
        self, work: Callable[[Cancel], Result | Generator[Any, None, Result]], typed: bool
    ) -> Result:
        try:
            return await self.worker.run(work, typed=typed)
        except QueueFullError:
            self.metrics.counters["refused"].inc()
            raise
        except (asyncio.CancelledError, Stopped):
            self.metrics.counters["cancelled"].inc()
            raise

    def _seconds(self, task: CompletionTask) -> float:
        most = self.settings.seconds
        asked = task.options.seconds
        return most if asked is None else min(most, asked)
