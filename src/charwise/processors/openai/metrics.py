"""The metrics of healing for Prometheus, and the line of a request in the log."""

from __future__ import annotations

import logging
import time

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from starlette.types import Message as Event
from starlette.types import Scope, Send

from charwise.processors.openai.upstream import HEADER, Outcome


class HealingMetrics:
    """Counters of the requests of one process.

    Args:
        registry: where they are shown.

    >>> registry = CollectorRegistry()
    >>> HealingMetrics(registry).note(Outcome(None, given_back=2, forced=5), 0.001)
    >>> registry.get_sample_value("charwise:tokens_given_back_total")
    2.0
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, said: str, *labels: str) -> Counter:
            return Counter(f"charwise:{name}", said, labels, registry=registry)

        self._healed = counter("requests_healed", "Requests with a prompt that was healed.")
        self._passed = counter(
            "requests_passed", "Requests that went through as they came, and why.", "reason"
        )
        self._given_back = counter("tokens_given_back", "Tokens that healed prompts gave back.")
        self._forced = counter("bytes_forced", "Bytes that healed completions reproduced.")
        self._seconds = Histogram(
            "charwise:seconds",
            "Seconds from a request's body to its plan, waiting for other requests included.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
            registry=registry,
        )

    def note(self, outcome: Outcome, seconds: float) -> None:
        """Count one request."""
        self._seconds.observe(seconds)
        if outcome.reason is not None:
            self._passed.labels(outcome.reason).inc()
            return
        self._healed.inc()
        self._given_back.inc(outcome.given_back)
        self._forced.inc(outcome.forced)


class AccessLog:
    """Lines about requests: method, path, status, healed or why not, and times.

    Args:
        logger: that gets them, at the level of debugging.
        registry: where responses are counted.
    """

    def __init__(self, logger: logging.Logger, registry: CollectorRegistry) -> None:
        self._logger = logger
        self._seconds = Histogram(
            "charwise:response_seconds",
            "Seconds from a request to the end of its response.",
            ["status"],
            registry=registry,
        )

    def watching(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that writes the line when the response ends."""
        begun = time.perf_counter()
        status, outcome, first = 0, "-", 0.0

        async def tell(message: Event) -> None:
            nonlocal status, outcome, first
            if message["type"] == "http.response.start":
                status, first = message["status"], time.perf_counter() - begun
                outcome = dict(message.get("headers", ())).get(HEADER, b"-").decode()
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                seconds = time.perf_counter() - begun
                self._seconds.labels(status).observe(seconds)
                line = "%s %s %d; %s; first byte %.1f ms, end %.1f ms"
                path = scope["path"].encode("unicode_escape").decode()[:200]
                times = 1000 * first, 1000 * seconds
                self._logger.debug(line, scope["method"], path, status, outcome, *times)

        return tell
