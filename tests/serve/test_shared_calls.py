"""Requests that wait at the same time share model calls, and are answered as they are alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import charwise
from charwise import CharLM
from charwise.cursor.options import GenerationOptions, Limit
from charwise.errors import ModelError
from charwise.serve.completions import Completions
from charwise.serve.server import Server, Settings
from charwise.serve.stoppable import Stopped
from charwise.serve.task import Answer, CompletionTask

#: Each with a first letter of its own: none begins where another is known.
TEXTS = [
    "import os\nimport sys\n\n\ndef names(path):\n    return [n for n in os.lis",
    "class Tree:\n    def __init__(self, ro",
    "for i in ra",
    "def check(value):\n    if value < 0:\n        raise ValueErr",
    "x = {'a': 1}\nfor key, value in x.it",
    "with open(path) as f:\n    lines = f.read",
    "numbers = [1, 2]\nfor n in num",
    "print(f'{val",
]


def asked(**more: Any) -> list[CompletionTask]:
    return [CompletionTask(text, max_tokens=12, until="line", **more) for text in TEXTS]


def answers(server: Server, requests: list[CompletionTask]) -> list[Answer | BaseException]:
    """The answers to requests that all wait before the first of them begins."""
    hold = threading.Event()

    async def run() -> list[Answer | BaseException]:
        first = asyncio.create_task(server.worker.run(lambda _: hold.wait()))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(server.answer(one)) for one in requests]
        while server.worker.waiting < len(requests):
            await asyncio.sleep(0.01)
        hold.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"options": GenerationOptions(n=3)},
        {"options": GenerationOptions(temperature=0.7, seed=5), "top": 2},
    ],
)
def test_requests_that_wait_share_calls(more: dict[str, Any]) -> None:
    requests = asked(**more)
    alone = Completions(charwise.load())
    expected = [alone.answer(one, Limit()) for one in requests]
    assert alone.engine.shared == 0
    server = Server(charwise.load(), Settings(seconds=600.0))
    try:
        found = answers(server, requests)
        engine = server.completions.engine
        assert engine.shared > 4
        assert engine.calls < 0.75 * alone.engine.calls
    finally:
        server.close()
    assert server.worker.under_way == 0
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Answer)
        assert [c.raw for c in one.candidates] == [c.raw for c in other.candidates]
        assert [c.finish for c in one.candidates] == [c.finish for c in other.candidates]
        for mine, theirs in zip(one.candidates, other.candidates, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, rel=1e-5, abs=1e-5)


def test_requests_after_one_text_share_its_tree() -> None:
    drawn = [GenerationOptions(seed=n, temperature=1.0) for n in range(6)]
    requests = [CompletionTask(TEXTS[0], max_tokens=8, options=options) for options in drawn]
    alone = Completions(charwise.load())
    expected = [alone.answer(one, Limit()).candidates[0].raw for one in requests]
    server = Server(charwise.load(), Settings(seconds=600.0))
    try:
        found = answers(server, requests)
        assert server.completions.memory.trees == 1
        assert server.completions.engine.calls < alone.engine.calls / 2
    finally:
        server.close()
    assert len(set(expected)) > 1
    assert [one.candidates[0].raw for one in found if isinstance(one, Answer)] == expected


def test_one_that_leaves_or_fails_does_not_end_the_others(monkeypatch: Any) -> None:
    requests = asked()
    alone = Completions(charwise.load())
    expected = [alone.answer(one, Limit()).candidates[0].raw for one in requests]
    server = Server(charwise.load(), Settings(seconds=600.0))
    drawing, steps = server.completions, server.completions.steps

    def some_fail(one: CompletionTask, limit: Limit, tell: Any = None) -> Any:
        found = steps(one, limit, tell)
        if one is requests[2]:
            raise ModelError("at once")
        if one is requests[4]:
            return failing(found)
        if one is requests[5]:
            return leaving(found, limit)
        return found

    def failing(found: Any) -> Any:
        first = next(found)

        def fail(*_: Any) -> Any:
            raise ModelError("while it is drawn")

        first.generation.draw = fail
        try:
            yield first
        finally:
            found.close()

    def leaving(found: Any, limit: Limit) -> Any:
        yield next(found)
        assert isinstance(limit._cancel, threading.Event)
        limit._cancel.set()
        return (yield from found)

    monkeypatch.setattr(drawing, "steps", some_fail)
    try:
        found = answers(server, requests)
        again = answers(server, [requests[0]])
        assert isinstance(again[0], Answer)
    finally:
        server.close()
    assert server.worker.under_way == 0
    assert not server.completions._drawing
    assert isinstance(found[2], ModelError)
    assert isinstance(found[4], ModelError)
    assert "while" in str(found[4])
    assert isinstance(found[5], Stopped)
    for n in (0, 1, 3, 6, 7):
        one = found[n]
        assert isinstance(one, Answer)
        assert one.candidates[0].raw == expected[n]


def test_one_who_cannot_be_told_does_not_end_the_others() -> None:
    requests = asked()[:3]
    expected = [Completions(charwise.load()).answer(one, Limit()) for one in requests]
    server = Server(charwise.load(), Settings(seconds=600.0))

    def gone(*_: Any) -> None:
        raise RuntimeError("Event loop is closed")

    async def run() -> list[Answer | BaseException]:
        tells = [None, gone, None]
        tasks = [server.answer(*each) for each in zip(requests, tells, strict=True)]
        both = asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.wait_for(both, 60)

    found = asyncio.run(run())
    server.close()
    assert isinstance(found[1], RuntimeError)
    for n in (0, 2):
        one = found[n]
        assert isinstance(one, Answer)
        assert one.candidates[0].raw == expected[n].candidates[0].raw


def test_an_engine_that_cannot_is_asked_one_after_the_other() -> None:
    lm = charwise.load()
    branches = charwise.engines.transformers.TransformersLM(  # type: ignore[attr-defined]
        lm.engine.model,
        lm.vocabulary,
        path="branches",  # type: ignore[attr-defined]
    )
    requests = asked()[:3]
    expected = [Completions(lm).answer(one, Limit()).candidates[0].raw for one in requests]
    server = Server(CharLM(branches), Settings(seconds=600.0))
    try:
        found = answers(server, requests)
        assert server.completions.engine.shared == 0
    finally:
        server.close()
    assert [one.candidates[0].raw for one in found if isinstance(one, Answer)] == expected


def test_a_shared_call_that_fails_is_told_once_and_each_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each alone succeeds, so that no request is told; all are slower than they need be."""
    requests = asked()[:3]
    expected = [Completions(charwise.load()).answer(one, Limit()) for one in requests]
    lm = charwise.load()

    def full(*_: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(lm.engine, "extend_together", full)
    server = Server(lm, Settings(seconds=600.0))
    try:
        found = answers(server, requests)
        assert server.completions.engine.failed > 1
        assert b"charwise_failed_shared_calls" in server.metrics.text()
    finally:
        server.close()
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Answer)
        assert one.candidates[0].raw == other.candidates[0].raw
    [told] = [record for record in caplog.records if record.name == "charwise.serve"]
    assert "for 2 requests failed" in told.getMessage()  # the third is begun after a step
    assert "no memory" in str(told.exc_info)


def test_who_stops_the_server_gets_what_is_under_way() -> None:
    server = Server(charwise.load(), Settings(seconds=600.0))

    async def run() -> list[Answer | BaseException]:
        tasks = [asyncio.create_task(server.answer(one)) for one in asked()[:4]]
        while server.worker.under_way < 2 and not any(task.done() for task in tasks):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())
    done = [one for one in found if isinstance(one, Answer)]
    assert done
    assert all("about to stop" in str(one) for one in found if not isinstance(one, Answer))
