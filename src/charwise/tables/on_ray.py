"""Chunks scored by the workers of a Ray cluster, with Ray Data.

Files are read, and the output is written, where the command runs; only chunks travel. Each worker
loads the model once. The chunks are those of a run without Ray, and come back in their order, so
the output is the same too, if a worker computes what this process would: with the same libraries,
on the same kind of processor, and, on a CPU, with one thread.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from charwise.errors import CharwiseError, EngineError, SettingError
from charwise.tables.jobs import Job, Scored, score_one

if TYPE_CHECKING:
    from charwise.model import CharLM
    from charwise.tables.chunks import Request


def start(workers: int | None = None) -> int:
    """Join the Ray cluster that there is, or start one on this machine.

    Args:
        workers: how many are wanted; by default one for each GPU, or each CPU if there is none.

    Returns:
        How many there will be.

    Raises:
        SettingError: Ray is not installed, or cannot be reached, or has not as many processors.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise SettingError(
            f"--ray needs Ray Data: pip install 'charwise[ray]' ({error})."
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(logging_level="error", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise SettingError(f"the Ray cluster cannot be reached: {error}") from error
    most = int(ray.cluster_resources().get(_processor(), 0))
    if workers is not None and workers > most:
        raise SettingError(f"{workers} workers need as many processors: Ray has {most}.")
    return workers or max(1, most)


def scored_by_ray(job: Job, lm: CharLM, skip: int, workers: int) -> Iterator[Scored]:
    """`Job.scored`, by workers that each have a GPU, or a CPU where there is none.

    Raises:
        EngineError: the model failed on a worker, or Ray did.
    """
    import ray.data
    from ray.exceptions import RayError

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its lines would cross the progress bar
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A block for each chunk: else small ones go to one worker, all in one block.
    context.target_max_block_size = context.target_min_block_size = 1
    here = ray.get_runtime_context().get_node_id()
    chunks = ray.data.read_datasource(
        _datasource(job, skip),
        num_cpus=0,
        override_num_blocks=1,
        label_selector={"ray.io/node-id": here},  # where the files are
    )
    results = chunks.map(
        _Worker,
        fn_constructor_args=(lm, job.request),
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
        raise EngineError(f"Ray could not finish: {last}") from error


def _processor() -> str:
    """What a worker has one of."""
    import ray

    return "GPU" if ray.cluster_resources().get("GPU", 0) >= 1 else "CPU"


class _Worker:
    """What runs in a process of its own: the model, which is loaded there again."""

    def __init__(self, lm: CharLM, request: Request) -> None:
        import torch

        torch.set_num_threads(1)
        self.lm, self.request = lm, request

    def __call__(self, block: dict[str, Any]) -> dict[str, bytes]:
        try:
            outcome: Scored | CharwiseError
            outcome = score_one(self.lm, pickle.loads(block["chunk"]), self.request)
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
