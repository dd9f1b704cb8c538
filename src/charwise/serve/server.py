"""The part that every dialect shares: settings, the model's thread, and answers on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Annotated, Any, TypeVar

from pydantic import Field

from charwise.api.settings import CheckedSettings
from charwise.char_lm import CharLM
from charwise.cursor.options import Cancel, Limit
from charwise.serve.completions import Completions
from charwise.serve.drawing import Drawing, advance
from charwise.serve.metrics import Metrics
from charwise.serve.stoppable import Stopped
from charwise.serve.task import Answer, CompletionTask, Mode
from charwise.serve.work import QueueFullError, Worker

Result = TypeVar("Result")


class Settings(CheckedSettings):
    """The settings of a server, given when it starts.

    Attributes:
        name: of the model, as clients see it.
        mode: how prompts' ends are treated where a request does not say.
        api_key: which requests must show; None for no key.
        max_queue: requests that may wait.
        seconds: of the model's time that a request may take, and that it may wait before.
        allow_origins: web pages that may ask; "*" for all of them.
        hosts: names under which it may be asked; None for any.
        most_body: bytes of a request.
    """

    name: str = "charwise"
    mode: Mode = "exact"
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
    'embedded: window 2,048 tokens, mode exact, no key.'
    """
    window = lm.engine.window
    length = "no window" if window is None else f"window {window:,} tokens"
    key = "a key is required" if settings.api_key else "no key"
    return f"{settings.name}: {length}, mode {settings.mode}, {key}."


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
        self.metrics = Metrics(self.completions, self.worker)
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
        return most if task.seconds is None else min(most, task.seconds)
