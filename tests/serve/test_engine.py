"""The model's thread: whose turn it is, who is refused, what ends, and runs that share calls."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

import charwise
from charwise import CharLM
from charwise.cursor.options import GenerationOptions
from charwise.engines.transformers import TransformersLM
from charwise.errors import ModelError
from charwise.serve import engine as engine_module
from charwise.serve.engine import CLIENT, Engine, QueueFullError
from charwise.serve.run import Run
from charwise.serve.task import Answer, Stopped, Task
from serving import answer, counted_cache

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


def answers(engine: Engine, requests: list[Task]) -> list[Any]:
    """The answers to requests that wait for each other, or what ended them."""
    return held(engine, lambda: [engine.answer(one) for one in requests])


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(charwise.load(), seconds=600.0)
    yield one
    one.close()
    assert one.under_way == one.waiting == 0


async def ask(
    engine: Engine, seen: list[str], name: str, client: str = "", typed: bool = True
) -> None:
    """Work that notes when it has its turn."""
    CLIENT.set(client)
    await engine.call(lambda _: seen.append(name), typed=typed)


def test_keystrokes_come_first_and_the_others_have_turns(engine: Engine) -> None:
    seen, names = list[str](), [f"{kind} {n}" for kind in ("typed", "other") for n in range(6)]
    held(engine, lambda: [ask(engine, seen, one, typed=one[0] == "t") for one in names])
    assert [*(one for one in seen if one[0] == "t"), *(s for s in seen if s[0] == "o")] == names
    assert seen[0] == "typed 0"
    assert "other 0" in seen[:6]


def test_clients_take_turns_whoever_asks_most(engine: Engine) -> None:
    seen, clients = list[str](), [*["greedy"] * 8, "a", "b", "c"]
    held(engine, lambda: [ask(engine, seen, f"{c}{n}", c) for n, c in enumerate(clients)])
    assert seen[:5] == ["greedy0", "a8", "b9", "c10", "greedy1"]


def test_a_full_queue_refuses_what_comes_later_and_what_waits_for_too_long() -> None:
    engine, seen = Engine(charwise.load(), max_waiting=3), list[str]()
    results = held(engine, lambda: [ask(engine, seen, f"{n}", c) for n, c in enumerate("abcad")])
    assert [isinstance(one, QueueFullError) for one in results] == [False, False, False, True, True]
    assert sorted(seen) == ["0", "1", "2"]
    engine.seconds = 0.02
    [result] = held(engine, lambda: [ask(engine, seen, "late")])  # what has begun goes on
    assert isinstance(result, QueueFullError)
    assert engine.waiting == 0
    assert engine.counts["refused_total"] == 3
    engine.close()
    with pytest.raises(QueueFullError):
        asyncio.run(engine.call(lambda _: 5))


def test_work_ends_when_nobody_waits_for_it_or_its_time_is_over(engine: Engine) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(lm: CharLM) -> None:
        begun.set()
        try:
            while True:
                lm.next("a")
        except Stopped:
            ended.set()
            raise

    async def leave() -> None:
        task = asyncio.create_task(engine.call(work))
        waiting = asyncio.create_task(engine.call(lambda _: 1))
        await asyncio.to_thread(begun.wait)
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        assert engine.waiting == 0

    asyncio.run(leave())
    assert ended.wait(10)
    assert (engine.counts["cut_total"], engine.counts["cancelled_total"]) == (0, 2)
    engine.seconds = 0.05
    with pytest.raises(Stopped, match="time"):
        asyncio.run(engine.call(work))
    assert (engine.counts["cut_total"], engine.counts["cancelled_total"]) == (1, 2)


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
    [candidate] = asyncio.run(engine.answer(replace(task, max_tokens=10**6))).candidates
    assert (len(candidate.pieces) > 0, candidate.finish) == (True, "time")
    with pytest.raises(Stopped, match="--seconds"):
        asyncio.run(engine.answer(replace(task, options=GenerationOptions(seconds=0.0))))
    assert engine.counts["cut_total"] == 2


@pytest.mark.parametrize("what", ["work", "cache", "step"])
def test_what_fails_ends_what_is_under_way_and_not_the_thread(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*_: object) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        if what == "work":
            results = held(engine, lambda: [engine.call(fail)])
        else:
            owner, name = {
                "cache": (engine.cache, "enforce_limit"),
                "step": (engine_module, "advance"),
            }[what]
            patch.setattr(owner, name, fail)
            results = answers(engine, tasks()[:3])
    assert {type(one) for one in results} == {MemoryError}
    assert asyncio.run(engine.answer(tasks()[0])).candidates


# Runs that share calls are answered as they are alone.


def alone(requests: list[Task]) -> tuple[list[Answer], int]:
    """The answers, one after the other, and the model calls."""
    cache, model = counted_cache()
    results = [answer(cache, one) for one in requests]
    assert model.counts["shared_calls"] == 0
    return results, model.counts["model_calls"]


SEEDS = [GenerationOptions(seed=n, temperature=1.0) for n in range(6)]


@pytest.mark.parametrize(
    "requests",
    [
        tasks(),
        tasks(options=GenerationOptions(n=3)),
        tasks(options=GenerationOptions(temperature=0.7, seed=5), top=2),
        [Task(TEXTS[0], max_tokens=8, options=options) for options in SEEDS],
    ],
)
def test_requests_that_wait_share_calls(engine: Engine, requests: list[Task]) -> None:
    expected, calls = alone(requests)
    results = answers(engine, requests)
    one_tree = len(engine.cache.trees) == 1
    assert one_tree == (len({task.prompt for task in requests}) == 1)
    assert one_tree or engine.model.counts["shared_calls"] > 4
    assert engine.model.counts["model_calls"] < (0.5 if one_tree else 0.75) * calls
    for one, other in zip(results, expected, strict=True):
        assert isinstance(one, Answer)
        for mine, theirs in zip(one.candidates, other.candidates, strict=True):
            assert (mine.raw, mine.finish) == (theirs.raw, theirs.finish)
            assert mine.logprob == pytest.approx(theirs.logprob, rel=1e-5, abs=1e-5)
    assert len({one.candidates[0].raw for one in results}) > 1


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
    results = answers(engine, requests)
    assert isinstance(asyncio.run(engine.answer(requests[0])), Answer)
    assert [type(results[n]) for n in (2, 4, 5)] == [ModelError, ModelError, Stopped]
    for n in (0, 1, 3, 6, 7):
        assert results[n].candidates[0].raw == expected[n].candidates[0].raw


@pytest.mark.parametrize("why", ["it cannot", "it fails"])
def test_where_calls_are_not_shared_each_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """A failure is logged once: no request is told, and all are slower than they need be."""
    requests, lm = tasks()[:3], charwise.load()
    expected, _ = alone(requests)

    def full(*_: Any) -> Any:
        raise RuntimeError("no memory")

    if why == "it cannot":
        lm = CharLM(TransformersLM(lm.engine.model, lm.vocabulary))
        lm.engine.forward.unmaskable = "a test says so"
    else:
        monkeypatch.setattr(lm.engine, "extend_together", full)
    engine = Engine(lm, seconds=600.0)
    results = answers(engine, requests)
    engine.close()
    assert engine.model.counts["shared_calls"] == 0
    assert (engine.model.counts["failed_shared_calls"] > 1) == (why == "it fails")
    for one, other in zip(results, expected, strict=True):
        assert one.candidates[0].raw == other.candidates[0].raw
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
