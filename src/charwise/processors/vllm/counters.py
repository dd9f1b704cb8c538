"""What was healed, in vLLM's `/metrics`: counters of one API server's process, or of all."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from charwise.processors.openai.upstream import Outcome

_HEALED = Counter("charwise:requests_healed", "Requests with a prompt that was healed.")
_PASSED = Counter(
    "charwise:requests_passed", "Requests that went through as they came, and why.", ["reason"]
)
_GIVEN_BACK = Counter("charwise:tokens_given_back", "Tokens that healed prompts gave back.")
_FORCED = Counter("charwise:bytes_forced", "Bytes that healed completions reproduced.")
_SECONDS = Histogram(
    "charwise:seconds",
    "Seconds from a request's body to what vLLM is asked, waiting for other requests included.",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0),
)


def count(outcome: Outcome, seconds: float) -> None:
    """Note one request."""
    _SECONDS.observe(seconds)
    if outcome.reason is not None:
        _PASSED.labels(outcome.reason).inc()
        return
    _HEALED.inc()
    _GIVEN_BACK.inc(outcome.given_back)
    _FORCED.inc(outcome.forced)
