"""One server for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the server needs: pip install 'charwise[serve]'")
pytest.importorskip("prometheus_client", reason="the server needs: pip install 'charwise[serve]'")
pytest.importorskip("uvicorn", reason="the server needs: pip install 'charwise[serve]'")

from serving import Running, running


@pytest.fixture(scope="module")
def running_server() -> Iterator[Running]:
    with running() as one:
        yield one
