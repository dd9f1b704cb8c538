"""The model's thread: whose turn it is, who is refused, what ends, and runs that share calls."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

import charwise
from charwise import CharLM
from charwise.api.writer import end_words
from charwise.cursor.generation import Completion
from charwise.cursor.options import GenerationOptions, Limit
from charwise.engines.transformers import TransformersLM
from charwise.errors import ModelError
from charwise.serve import engine as engine_module
from charwise.serve import run as run_module
from charwise.serve.engine import CLIENT, Engine, QueueFullError
from charwise.serve.run import Run
from charwise.serve.task import Answer, Candidate, NewText, Stopped, Task
from serving import answer, counted_cache

Work = Callable[[CharLM], object]

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


def tasks(**more: Any) -> list[Task]:
    return [Task(text, max_tokens=12, until="line", **more) for text in TEXTS]


def noting(seen: list[str], name: str) -> Work:
    return lambda _: seen.append(name)


def held(engine: Engine, ask: Callable[[], list[Coroutine[Any, Any, Any]]]) -> list[Any]:
    """What comes of work that all waits before the first has its turn."""
    hold = threading.Event()

    async def run() -> list[Any]:
        first = asyncio.create_task(engine.call(lambda _: hold.wait()))
        await asyncio.sleep(0.05)
        every = asyncio.gather(*ask(), return_exceptions=True)
        await asyncio.sleep(0.05)
        hold.set()
        await first
        return list(await every)

    return asyncio.run(run())


@pytest.fixture
def engine() -> Any:
    one = Engine(charwise.load(), seconds=600.0)
    yield one
    one.close()
    assert one.under_way == one.waiting == 0


async def asked_by(client: str, engine: Engine, work: Work) -> object:
    CLIENT.set(client)
    return await engine.call(work, typed=True)


def test_keystrokes_come_first_and_the_others_have_turns(engine: Engine) -> None:
    seen = list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        typed = [engine.call(noting(seen, f"typed {n}"), typed=True) for n in range(6)]
        return [*typed, *(engine.call(noting(seen, f"other {n}")) for n in range(6))]

    held(engine, ask)
    assert [name for name in seen if name[0] == "t"] == [f"typed {n}" for n in range(6)]
    assert [name for name in seen if name[0] == "o"] == [f"other {n}" for n in range(6)]
    assert seen[0] == "typed 0"
    assert "other 0" in seen[:6]


def test_clients_take_turns_whoever_asks_most(engine: Engine) -> None:
    seen = list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        greedy = [asked_by("greedy", engine, noting(seen, f"greedy {n}")) for n in range(8)]
        return [*greedy, *(asked_by(f"c{n}", engine, noting(seen, f"c{n}")) for n in range(3))]

    held(engine, ask)
    assert seen[:5] == ["greedy 0", "c0", "c1", "c2", "greedy 1"]


def test_a_full_queue_refuses_what_comes_later() -> None:
    engine, seen = Engine(charwise.load(), max_waiting=3), list[str]()

    def ask() -> list[Coroutine[Any, Any, object]]:
        clients = ["a", "b", "c", "a", "d"]
        return [asked_by(c, engine, noting(seen, f"{c}{n}")) for n, c in enumerate(clients)]

    results = held(engine, ask)
    engine.close()
    assert [isinstance(one, QueueFullError) for one in results] == [False, False, False, True, True]
    assert sorted(seen) == ["a0", "b1", "c2"]
    assert engine.counts["refused_total"] == 2


def test_who_waits_for_too_long_is_told_so() -> None:
    engine, hold = Engine(charwise.load(), seconds=0.1), threading.Event()

    async def run() -> None:
        first = asyncio.create_task(engine.call(lambda _: hold.wait()))
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFullError):
            await engine.call(lambda _: None, typed=True)
        hold.set()
        assert await first  # what has begun goes on
        assert engine.waiting == 0

    asyncio.run(run())
    engine.close()


def test_who_does_not_wait_any_more_ends_the_work(engine: Engine) -> None:
    start_event, ended = threading.Event(), threading.Event()

    def work(lm: CharLM) -> None:
        start_event.set()
        try:
            while True:
                lm.next("a")
        except Stopped:
            ended.set()
            raise

    async def run() -> None:
        task = asyncio.create_task(engine.call(work))
        waiting = asyncio.create_task(engine.call(lambda _: 1))
        await asyncio.to_thread(start_event.wait)
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        assert engine.waiting == 0

    asyncio.run(run())
    assert ended.wait(10)
    assert engine.counts["cancelled_total"] == 2


def test_a_call_that_time_ends_is_cut_and_not_cancelled() -> None:
    engine = Engine(charwise.load(), seconds=0.05)

    def work(lm: CharLM) -> None:
        while True:
            lm.next("a")

    with pytest.raises(Stopped, match="time"):
        asyncio.run(engine.call(work))
    engine.close()
    assert (engine.counts["cut_total"], engine.counts["cancelled_total"]) == (1, 0)


def test_the_time_for_an_answer_begins_after_its_prompt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that is read; without a token in time there is an error, and no empty text."""
    slow, at = threading.Event(), engine.cache.at

    def read_slowly(*arguments: Any, **named: Any) -> Any:
        slow.wait(0.3)
        return at(*arguments, **named)

    monkeypatch.setattr(engine.cache, "at", read_slowly)
    task = Task("", max_tokens=3, options=GenerationOptions(seconds=0.2))
    [candidate] = asyncio.run(engine.answer(task)).candidates
    assert (len(candidate.pieces), candidate.finish) == (3, "length")
    with pytest.raises(Stopped, match="--seconds"):
        asyncio.run(engine.answer(replace(task, options=GenerationOptions(seconds=0.0))))
    assert engine.counts["cut_total"] == 1


def test_an_error_is_raised_where_it_is_waited_for_and_the_thread_goes_on() -> None:
    engine = Engine(charwise.load())

    def fail(_: CharLM) -> None:
        raise KeyError("x")

    async def run() -> int:
        with pytest.raises(KeyError):
            await engine.call(fail)
        return await engine.call(lambda _: 5)

    assert asyncio.run(run()) == 5
    engine.close()
    with pytest.raises(QueueFullError):
        asyncio.run(engine.call(lambda _: 5))


@pytest.mark.parametrize("what", ["cache", "step"])
def test_what_fails_ends_what_is_under_way_and_not_the_thread(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*_: object) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        if what == "cache":
            patch.setattr(engine.cache, "enforce_limit", fail)
        else:
            patch.setattr(engine_module, "advance", fail)
        results = held(engine, lambda: [engine.answer(one) for one in tasks()[:3]])
    assert [type(one) for one in results] == [MemoryError] * 3
    assert asyncio.run(engine.answer(tasks()[0])).candidates


# Runs that share calls are answered as they are alone.


def alone(requests: list[Task]) -> tuple[list[Answer], int]:
    """The answers, one after the other, and the model calls."""
    cache, model = counted_cache()
    results = [answer(cache, one) for one in requests]
    assert model.counts["shared_calls"] == 0
    return results, model.counts["model_calls"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"options": GenerationOptions(n=3)},
        {"options": GenerationOptions(temperature=0.7, seed=5), "top": 2},
    ],
)
def test_requests_that_wait_share_calls(engine: Engine, more: dict[str, Any]) -> None:
    requests = tasks(**more)
    expected, calls = alone(requests)
    results = held(engine, lambda: [engine.answer(one) for one in requests])
    assert engine.model.counts["shared_calls"] > 4
    assert engine.model.counts["model_calls"] < 0.75 * calls
    for one, other in zip(results, expected, strict=True):
        assert isinstance(one, Answer)
        assert [c.raw for c in one.candidates] == [c.raw for c in other.candidates]
        assert [c.finish for c in one.candidates] == [c.finish for c in other.candidates]
        for mine, theirs in zip(one.candidates, other.candidates, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, rel=1e-5, abs=1e-5)


def test_requests_after_one_text_share_its_tree(engine: Engine) -> None:
    drawn = [GenerationOptions(seed=n, temperature=1.0) for n in range(6)]
    requests = [Task(TEXTS[0], max_tokens=8, options=options) for options in drawn]
    expected, calls = alone(requests)
    results = held(engine, lambda: [engine.answer(one) for one in requests])
    assert len(engine.cache.trees) == 1
    assert engine.model.counts["model_calls"] < calls / 2
    texts = [one.candidates[0].raw for one in expected]
    assert len(set(texts)) > 1
    assert [one.candidates[0].raw for one in results] == texts


def test_one_that_leaves_or_fails_does_not_end_the_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = tasks()
    expected, _ = alone(requests)

    class Failing(Run):
        def __init__(self, task: Task, *arguments: Any) -> None:
            if task is requests[2]:
                raise ModelError("at once")
            super().__init__(task, *arguments)
            if task is requests[5]:
                self._limit._cancel.set()  # type: ignore[union-attr, attr-defined]

        def update(self) -> None:
            if self._task is requests[4] and any(draft.pieces for draft in self._drafts):
                raise ModelError("while it is drawn")
            super().update()

    monkeypatch.setattr(engine_module, "Run", Failing)
    results = held(engine, lambda: [engine.answer(one) for one in requests])
    assert isinstance(asyncio.run(engine.answer(requests[0])), Answer)
    assert [type(results[n]) for n in (2, 4, 5)] == [ModelError, ModelError, Stopped]
    for n in (0, 1, 3, 6, 7):
        assert results[n].candidates[0].raw == expected[n].candidates[0].raw


@pytest.mark.parametrize("why", ["it cannot", "it fails"])
def test_where_calls_are_not_shared_each_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """A failure is logged once: no request is told, and all are slower than they need be."""
    requests = tasks()[:3]
    expected, _ = alone(requests)
    lm = charwise.load()

    def full(*_: Any) -> Any:
        raise RuntimeError("no memory")

    if why == "it cannot":
        lm = CharLM(TransformersLM(lm.engine.model, lm.vocabulary))
        lm.engine.forward.unmaskable = "a test says so"
    else:
        monkeypatch.setattr(lm.engine, "extend_together", full)
    engine = Engine(lm, seconds=600.0)
    try:
        results = held(engine, lambda: [engine.answer(one) for one in requests])
        assert engine.model.counts["shared_calls"] == 0
        assert (engine.model.counts["failed_shared_calls"] > 1) == (why == "it fails")
    finally:
        engine.close()
    texts = [one.candidates[0].raw for one in expected]
    assert [one.candidates[0].raw for one in results] == texts
    logged = [str(one.exc_info) for one in caplog.records if one.name == "charwise.serve"]
    assert ["no memory" in one for one in logged] == [True] * (why == "it fails")


def test_who_stops_the_server_gets_what_is_under_way() -> None:
    engine = Engine(charwise.load(), seconds=600.0)

    async def run() -> list[Any]:
        every = [asyncio.create_task(engine.answer(one)) for one in tasks()[:4]]
        while engine.under_way < 2 and not any(task.done() for task in every):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*every, return_exceptions=True)

    results = asyncio.run(run())
    assert any(isinstance(one, Answer) for one in results)
    assert all(isinstance(one, Answer | QueueFullError) for one in results)


# What a run sends.


def texts_of(task: Task) -> tuple[list[str], Answer]:
    """The texts that are sent of each candidate, and the answer."""
    cache, _ = counted_cache()
    run = Run(task, cache, None, Limit())
    while not run.ended:
        assert run_module.advance([run]) == [None]
    sent = [""] * task.options.n
    for one in run.events[:-1]:
        assert isinstance(one, NewText)
        sent[one.number] += one.text
    last = run.events[-1]
    assert isinstance(last, Answer)
    return sent, last


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.9999])
def test_a_stream_sends_what_its_answer_has(threshold: float) -> None:
    """Nothing less probable than the threshold, and each candidate has its place."""
    options = GenerationOptions(n=3, temperature=1.0, seed=4)
    task = Task("import s", max_tokens=3, options=options, threshold=threshold, streamed=True)
    sent, last = texts_of(task)
    assert sent == [one.text for one in last.candidates]
    assert all(one.finish for one in last.candidates)
    assert all(not one.text or one.probability >= threshold for one in last.candidates)
    assert any(sent) == (threshold < 0.9)


@pytest.mark.parametrize("task", [Task("raise ValueErr", max_tokens=8), Task([128], max_tokens=2)])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_answer(task: Task, n: int) -> None:
    """No candidate is in it twice, and no half of a character."""
    task = replace(task, options=GenerationOptions(n=n))
    sent, last = texts_of(replace(task, streamed=True))
    whole = answer(counted_cache()[0], task)
    assert [text for text in sent if text] == [one.text for one in whole.candidates]
    assert [one.raw for one in last.candidates] == [one.raw for one in whole.candidates]


def test_every_end_has_its_words() -> None:
    """Those that the library and the server know."""
    ends = [
        set(re.findall(r'"([a-z ]+)"', (known.__doc__ or "").partition("finish:")[2]))
        for known in (Completion, Candidate)
    ]
    for name in (ends[0] | ends[1]) - {"cancelled", "import nump"}:
        assert end_words(name)[0] in {"stop", "length"}
