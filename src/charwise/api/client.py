"""The client of a request: its body, read up to a limit, and whether it still listens.

Starlette reads a body without a limit, and tells nothing of a client that leaves before the
answer begins. So both stand here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


async def read_up_to(receive: Receive, most: int) -> tuple[bytes, bool] | None:
    """Return the body of a request, or a beginning of about `most` bytes; and whether that is all.

    None if the client leaves before: then there is no request.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            return b"".join(parts), True
        if size > most:
            return b"".join(parts), False


async def until_left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of some work; None, and the work is cancelled, if the client leaves."""
    task, watch = asyncio.create_task(work), asyncio.create_task(until_left(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
