"""The model's thread: whose turn it is, who is refused, and what ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest

from charwise.cursor.options import Cancel
from charwise.serve.work import CLIENT, QueueFullError, Worker


def noting(seen: list[str], name: str) -> Callable[[Cancel], None]:
    return lambda _: seen.append(name)


def held(worker: Worker, ask: Callable[[], list[Coroutine[Any, Any, object]]]) -> list[Any]:
    """What comes of requests that all wait before the first has its turn."""
    hold = threading.Event()

    async def run() -> list[Any]:
        first = asyncio.create_task(worker.run(lambda _: hold.wait()))
        await asyncio.sleep(0.05)
        every = asyncio.gather(*ask(), return_exceptions=True)
        await asyncio.sleep(0.05)
        hold.set()
        await first
        return list(await every)

    found = asyncio.run(run())
    worker.close()
    return found


async def asked_by(client: str, worker: Worker, work: Callable[[Cancel], object]) -> object:
    CLIENT.set(client)
    return await worker.run(work, typed=True)


def test_keystrokes_come_first_and_the_others_have_turns() -> None:
    worker, seen = Worker(most=64), list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        typed = [worker.run(noting(seen, f"typed {n}"), typed=True) for n in range(6)]
        return [*typed, *(worker.run(noting(seen, f"other {n}")) for n in range(6))]

    held(worker, ask)
    assert [name for name in seen if name[0] == "t"] == [f"typed {n}" for n in range(6)]
    assert [name for name in seen if name[0] == "o"] == [f"other {n}" for n in range(6)]
    assert seen[0] == "typed 0"
    assert "other 0" in seen[:6]


def test_clients_take_turns_whoever_asks_most() -> None:
    worker, seen = Worker(most=64), list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        greedy = [asked_by("greedy", worker, noting(seen, f"greedy {n}")) for n in range(8)]
        return [*greedy, *(asked_by(f"c{n}", worker, noting(seen, f"c{n}")) for n in range(3))]

    held(worker, ask)
    assert seen[:5] == ["greedy 0", "c0", "c1", "c2", "greedy 1"]


def test_a_full_queue_drops_only_what_a_newer_request_of_the_client_replaces() -> None:
    worker, seen = Worker(most=3), list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        clients = ["a", "b", "c", "a", "d"]
        return [asked_by(c, worker, noting(seen, f"{c}{n}")) for n, c in enumerate(clients)]

    found = held(worker, ask)
    assert [isinstance(one, QueueFullError) for one in found] == [True, False, False, False, True]
    assert "took its place" in str(found[0])
    assert "wait already" in str(found[4])
    assert sorted(seen) == ["a3", "b1", "c2"]


def test_a_keystroke_is_not_kept_waiting_by_clients_that_ask_again_and_again() -> None:
    worker, waited = Worker(most=8), list[int]()

    async def run() -> None:
        hold = threading.Event()
        first = asyncio.create_task(worker.run(lambda _: hold.wait(), typed=True))
        await asyncio.sleep(0.05)
        late = asyncio.create_task(worker.run(lambda _: None, typed=True))
        asked = 0

        async def ask_again() -> None:
            nonlocal asked
            while not late.done() and asked < 60:
                asked += 1
                await worker.run(lambda _: time.sleep(0.005), typed=True)

        others = [asyncio.create_task(ask_again()) for _ in range(3)]
        await asyncio.sleep(0.05)
        hold.set()
        await asyncio.gather(first, late, *others)
        waited.append(asked)

    asyncio.run(run())
    worker.close()
    assert waited[0] < 20


def test_who_waits_for_too_long_is_told_so() -> None:
    worker, hold = Worker(patience=0.1), threading.Event()

    async def run() -> None:
        first = asyncio.create_task(worker.run(lambda _: hold.wait()))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFullError, match="its turn"):
            await worker.run(lambda _: None, typed=True)
        hold.set()
        assert await first  # what has begun goes on
        assert worker.waiting == 0

    asyncio.run(run())
    worker.close()


def test_who_does_not_wait_any_more_ends_the_work() -> None:
    worker, begun, ended = Worker(), threading.Event(), threading.Event()

    def work(cancel: Cancel) -> None:
        begun.set()
        while not cancel.is_set():
            pass
        ended.set()

    async def run() -> None:
        task = asyncio.create_task(worker.run(work))
        waiting = asyncio.create_task(worker.run(lambda _: 1))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        assert worker.waiting == 0

    asyncio.run(run())
    assert ended.wait(10)
    worker.close()


def test_an_error_is_raised_where_it_is_waited_for_and_the_thread_goes_on() -> None:
    worker = Worker()

    def fail(_: Cancel) -> None:
        raise KeyError("x")

    async def run() -> int:
        with pytest.raises(KeyError):
            await worker.run(fail)
        return await worker.run(lambda _: 5)

    assert asyncio.run(run()) == 5
    worker.close()

    async def late() -> None:
        with pytest.raises(QueueFullError, match="about to stop"):
            await worker.run(lambda _: 5)

    asyncio.run(late())


def test_a_step_that_fails_ends_what_is_under_way_and_not_the_thread() -> None:
    left = list[str]()

    def advance(under_way: list[str]) -> list[BaseException | None]:
        raise ValueError(f"no step of {under_way}")

    def steps(name: str) -> Generator[str, None, None]:
        try:
            yield name
        finally:
            left.append(name)

    worker = Worker(advance=advance)

    async def run() -> None:
        for name in ("one", "two"):
            with pytest.raises(ValueError, match="no step"):
                await asyncio.wait_for(worker.run(lambda _, name=name: steps(name)), 30)
        assert await asyncio.wait_for(worker.run(lambda _: 42), 30) == 42

    asyncio.run(run())
    worker.close()
    assert left == ["one", "two"]
    assert worker.under_way == 0
