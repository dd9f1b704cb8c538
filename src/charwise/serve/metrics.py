"""The metrics at `/metrics`, for Prometheus, and the log of each request."""

from __future__ import annotations

import logging
import time
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from charwise.serve.completions import Completions
from charwise.serve.task import Answer
from charwise.serve.work import Worker

#: A line for each request: who, what, the status, and how long it took.
access = logging.getLogger("charwise.access")

#: Seconds at which answers are counted.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
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

    def __init__(self, app: Any, metrics: Metrics) -> None:
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
