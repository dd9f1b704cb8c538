"""A disk whose writer is stopped: in place of a process that ends, or of a loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Stopped(BaseException):
    """In place of the end of the process."""


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Stop before the n-th operation that changes what is on the disk; n is in the list."""
    left = [10**9]

    def stoppable(operation: Any) -> Any:
        def stopped(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Stopped
            return operation(*arguments, **options)

        return stopped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "mkdir", "replace", "rename", "rmdir", "unlink"):
            patch.setattr(os, name, stoppable(getattr(os, name)))
        yield left
