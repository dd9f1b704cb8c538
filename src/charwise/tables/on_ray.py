"""Chunks scored on a Ray cluster, driven by a process of its own.

Ray may end the process that drives it: a thread of Ray Data that reaches for its cluster after
`ray.shutdown()` ends the process, at any later moment, without a word and with exit status 1. So
the process of whoever calls never joins a cluster. It starts a driver (`drive`), asks it through a
pipe, and outlives it.

Files are read on this machine; only chunks travel. Each worker loads the model once. The chunks are
those of a run without Ray, and come back in their order, so the output is the same too, if a worker
computes what a single process would: with the same libraries, on the same kind of processor, and,
on a CPU, with one thread.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from charwise.errors import CharwiseError, ModelError, SettingError
from charwise.tables.jobs import Job, score_chunk
from charwise.tables.output import Scored

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.measure import Measure
    from charwise.tables.teacher import Teacher

#: What the driver runs. It finds modules where this process does.
_MAIN = """\
import pickle, sys
sys.path[:], sys.argv[:] = pickle.load(sys.stdin.buffer)
from charwise.tables.on_ray import drive
drive()
"""

#: Seconds in which a driver leaves its cluster, or stops the one it started.
_PATIENCE = 30.0


def scored_by_ray(
    job: Job, lm: CharLM, skip: int = 0, workers: int | None = None
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
        ModelError: the model failed on a worker, or Ray did.
    """
    try:
        import ray
        from ray import cloudpickle
    except ImportError as error:
        raise _no_ray(error) from error
    address = ray.get_runtime_context().gcs_address if ray.is_initialized() else None
    # Ray's pickle, since it takes along classes of a script.
    order = _Order(job, cloudpickle.dumps(lm), skip, workers, address)
    with _answers(cloudpickle.dumps(order)) as answers:
        for answer in answers:
            if isinstance(answer, CharwiseError):
                raise answer
            yield answer


def _no_ray(error: ImportError) -> SettingError:
    return SettingError(f"--ray needs Ray Data: pip install 'charwise[ray]' ({error}).")


@contextmanager
def _answers(order: bytes) -> Iterator[Iterator[Any]]:
    """The driver's answer to a pickled `_Order`; it ends with the block."""
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
        ModelError: the driver ended without it.
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
        raise ModelError(
            f"the process that drives Ray ended, with status {status}: {said[-1]}"
        ) from error


class _Order(NamedTuple):
    """The request to the driver.

    Attributes:
        job, skip: which chunks to score.
        lm: the model, pickled; only workers unpickle it.
        workers: how many; None is one for each GPU, or each CPU if there is none.
        address: of the cluster; None is the one that Ray finds, or else starts.
    """

    job: Job
    lm: bytes
    skip: int
    workers: int | None
    address: str | None


def drive() -> None:
    """Answer the order on stdin, in a process of its own, and leave Ray at the very end.

    The answers on stdout are each `Scored`, or an error, then None.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer
    order: _Order = pickle.load(sys.stdin.buffer)
    done = threading.Event()
    threading.Thread(target=_end_with_caller, args=(done,), daemon=True).start()
    try:
        for scored in _scored(order):
            pickle.dump(scored, out)
            out.flush()
    except CharwiseError as error:
        pickle.dump(error, out)
    done.set()
    pickle.dump(None, out)
    out.flush()


def _end_with_caller(done: threading.Event) -> None:
    """Wait until stdin is closed: the caller wants no more, or is gone."""
    os.read(0, 1)
    if not done.is_set():
        os.kill(os.getpid(), signal.SIGTERM)  # which Ray answers by leaving in order


def _scored(order: _Order) -> Iterator[Scored]:
    """The chunks of the order, in order.

    Raises:
        SettingError: Ray cannot be reached, or has not as many processors.
        ModelError: the model failed on a worker, or Ray did.
    """
    workers = _join(order.workers, order.address)
    import ray.data
    from ray.exceptions import RayError

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A block for each chunk: else small ones go to one worker, all in one block.
    context.target_max_block_size = context.target_min_block_size = 1
    here = ray.get_runtime_context().get_node_id()
    chunks = ray.data.read_datasource(
        _datasource(order.job, order.skip),
        num_cpus=0,
        override_num_blocks=1,
        label_selector={"ray.io/node-id": here},  # where the files are
    )
    results = chunks.map(
        _Worker,
        fn_constructor_args=(order.lm, order.job.measure),
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=int(_processor() == "GPU"),
    )
    try:
        for result in results.iter_rows():
            outcome = pickle.loads(result["outcome"])
            if isinstance(outcome, CharwiseError):
                raise outcome
            yield outcome
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise ModelError(f"Ray could not finish: {last}") from error


def _join(workers: int | None, address: str | None) -> int:
    """Join the cluster, or start one on this machine; how many workers there will be."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise _no_ray(error) from error
    try:
        ray.init(address, logging_level="error", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingError(f"the Ray cluster cannot be reached: {error}") from error
    most = int(ray.cluster_resources().get(_processor(), 0))
    if workers is not None and workers > most:
        raise SettingError(f"{workers} workers need as many processors: Ray has {most}.")
    return workers or max(1, most)


def _processor() -> str:
    """Return the processor, one in each worker."""
    import ray

    return "GPU" if ray.cluster_resources().get("GPU", 0) >= 1 else "CPU"


class _Worker:
    """A process of its own with the model, which is loaded there again."""

    def __init__(self, lm: bytes, measure: Measure | Teacher) -> None:
        import torch

        torch.set_num_threads(1)
        self.lm, self.measure = pickle.loads(lm), measure

    def __call__(self, block: dict[str, Any]) -> dict[str, bytes]:
        try:
            outcome: Scored | CharwiseError
            outcome = score_chunk(self.lm, pickle.loads(block["chunk"]), self.measure)
        except CharwiseError as error:
            outcome = type(error)(str(error))  # without its causes, which may not travel
        return {"outcome": pickle.dumps(outcome)}


def _datasource(job: Job, skip: int) -> Any:
    """The chunks as one task of Ray Data, which waits while the workers have enough to do."""
    import pyarrow as pa
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    def read() -> Iterator[Any]:
        for chunk in job.chunks(skip):
            yield pa.table({"chunk": pa.array([pickle.dumps(chunk)], pa.large_binary())})

    class Chunks(Datasource):  # type: ignore[misc, unused-ignore]
        def estimate_inmemory_data_size(self) -> None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            nothing = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None)
            return [ReadTask(read, nothing)]

    return Chunks()
