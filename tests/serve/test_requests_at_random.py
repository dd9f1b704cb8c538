"""Malformed requests: an answer that says so, and a server that goes on."""

from __future__ import annotations

import httpx
import pytest

from requests_at_random import send
from serving import running


@pytest.mark.slow
def test_no_request_makes_the_server_fail() -> None:
    with running(seconds=1.0) as one:
        statuses, failed = send(one.url, 900, seed=1)  # some end at their headers
        assert not failed, "\n".join(failed)
        assert statuses[200] > 100
        assert statuses[400] > 100
        assert not one.engine.waiting
        answer = httpx.post(one.url + "/v1/next", json={"prompt": "import nump"}, timeout=60)
        assert answer.json()["chars"][0]["text"] == "y"
