"""Servers and runs for tests, with the embedded model."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import charwise
from charwise import CharLM
from charwise.cursor.options import Limit
from charwise.serve.cache import Cache
from charwise.serve.engine import _CountedLM
from charwise.serve.run import Run, advance
from charwise.serve.task import Answer, Task
from listening import listening


@dataclass
class Running:
    """A server that runs: where, what answers, and the same model, for comparison."""

    url: str
    engine: Any
    lm: CharLM

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def running(lm: CharLM | None = None, *, port: int = 0, **settings: Any) -> Iterator[Running]:
    """A server with these settings, until the end of the block."""
    from charwise.serve.app import Settings, application

    lm = charwise.load() if lm is None else lm
    app = application(lm, Settings(**settings))
    with listening(app, port=port, server_header=False) as url:
        yield Running(url, app.state.engine, lm)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; where there is none, the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="needs: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
    if path is None:
        pytest.skip("no browser: apt-get install chromium-headless-shell")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def counted_cache(lm: CharLM | None = None, **settings: Any) -> tuple[Cache, _CountedLM]:
    """A cache of a model, and its engine, which counts calls."""
    lm = charwise.load() if lm is None else lm
    engine = _CountedLM(lm.engine)
    return Cache(CharLM(engine, preset=lm.effort), **settings), engine  # type: ignore[arg-type]


def answer(cache: Cache, task: Task, template: Any = None, limit: Limit | None = None) -> Answer:
    """The answer to a task, without a thread. What ends it is raised."""
    run = Run(task, cache, template, limit or Limit())
    while not run.ended:
        [error] = advance([run])
        if error is not None:
            run.close()
            raise error
    last = run.events[-1]
    assert isinstance(last, Answer)
    return last


def events(answer: Any) -> list[Any]:
    """The chunks of a stream."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]


def text_of(http: Any, path: str, body: dict[str, Any]) -> str:
    """The text that answers a request, whole or as a stream."""
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    parts = events(answer) if body.get("stream") else [answer.json()]
    choices = [one.get("choices", [one])[0] for one in parts]
    return "".join(one["text"] if "text" in one else one["content"] for one in choices)
