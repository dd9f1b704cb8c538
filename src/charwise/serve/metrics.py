"""What Prometheus is told at `/metrics`."""

from __future__ import annotations

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
    """An ASGI middleware that counts answers, by the path of their route and their status.

    Args:
        app: what is behind it.
        metrics: where they are counted.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def count(message: Any) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "other")
                self._metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, count if scope["type"] == "http" else send)
