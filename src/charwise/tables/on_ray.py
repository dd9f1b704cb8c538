"""Chunks scored on a Ray cluster, driven by a process of its own.

Ray may end the process that drives it: a thread of Ray Data that reaches for its cluster after
`ray.shutdown()` ends the process, at any later moment, without a word and with exit status 1. So
the process of whoever calls never joins a cluster. It starts `ray_driver`, asks it through a pipe,
and outlives it.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from charwise.errors import CharwiseError, EngineError, SettingError
from charwise.tables.jobs import Scored, Work
from charwise.tables.ray_driver import Order

if TYPE_CHECKING:
    from charwise.char_lm import CharLM

#: What the driver runs. It finds modules where this process does.
_MAIN = """\
import pickle, sys
sys.path[:], sys.argv[:] = pickle.load(sys.stdin.buffer)
from charwise.tables.ray_driver import main
main()
"""

#: How long a driver may take to leave its cluster, or stop the one it started, seconds.
_PATIENCE = 30.0


def scored_by_ray(
    job: Work, lm: CharLM, skip: int = 0, workers: int | None = None
) -> Iterator[Scored]:
    """`Job.scored`, by workers that each have a GPU, or a CPU where there is none.

    They are on the cluster that this process has joined, or else that the variable RAY_ADDRESS
    names or that was started on this machine; if there is none, one is started, and stopped at the
    end. The driver ends with this iterator, and with this process.

    Args:
        skip: how many chunks to leave out at the beginning.
        workers: by default one for each GPU, or each CPU if there is none.

    Raises:
        SettingError: Ray is not installed, or cannot be reached, or has not as many processors.
        EngineError: the model failed on a worker, or Ray did.
    """
    try:
        import ray
        from ray import cloudpickle
    except ImportError as error:
        raise SettingError(
            f"--ray needs Ray Data: pip install 'charwise[ray]' ({error})."
        ) from error
    address = ray.get_runtime_context().gcs_address if ray.is_initialized() else None
    # Ray's pickle, since it takes along classes of a script.
    order = Order(job, cloudpickle.dumps(lm), skip, workers, address)
    with _answers(cloudpickle.dumps(order)) as answers:
        for answer in answers:
            if isinstance(answer, CharwiseError):
                raise answer
            yield answer


@contextmanager
def _answers(order: bytes) -> Iterator[Iterator[Any]]:
    """What a driver answers to a pickled `Order`; it is ended with the block."""
    with tempfile.TemporaryFile() as words:
        # A session of its own: Ctrl-C is for this process, which then ends the driver in order.
        driver = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            start_new_session=True,
        )
        try:
            yield _read(driver, order, words)
        finally:
            for pipe in (driver.stdin, driver.stdout):  # which tells it to end
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            try:
                driver.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()


def _read(driver: subprocess.Popen[bytes], order: bytes, words: IO[bytes]) -> Iterator[Any]:
    """The answers before the None that is the last.

    Raises:
        EngineError: the driver ended without it.
    """
    assert driver.stdin is not None
    assert driver.stdout is not None
    try:
        driver.stdin.write(pickle.dumps((sys.path, sys.argv)) + order)
        driver.stdin.flush()
        while (answer := pickle.load(driver.stdout)) is not None:
            yield answer
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        status = driver.wait(_PATIENCE)
        words.seek(0)
        said = words.read().decode("utf-8", "replace").strip().splitlines() or ["no word"]
        raise EngineError(
            f"the process that drives Ray ended, with status {status}: {said[-1]}"
        ) from error
