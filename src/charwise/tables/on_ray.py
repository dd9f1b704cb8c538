"""Chunks scored on a Ray cluster, by actors that each load the model once.

Files are read on this machine; only chunks travel. The chunks are those of a run without Ray, and
come back in their order, so the output is the same too, if a worker computes what a single process
would: with the same libraries, on the same kind of processor, and, on a CPU, with one thread.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from charwise.errors import CharwiseError, ModelError, SettingError, needs
from charwise.tables.job import Job
from charwise.tables.output import ScoredChunk

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tables.measure import Measure


class _Worker:
    """A process of its own with the model, which is loaded there again."""

    def __init__(self, lm: bytes, measure: Measure) -> None:
        import torch

        torch.set_num_threads(1)
        self.lm, self.measure = pickle.loads(lm), measure

    def score(self, chunk: Any) -> ScoredChunk | CharwiseError:
        try:
            return self.measure.scored(self.lm, chunk)
        except CharwiseError as error:
            return type(error)(str(error))  # without its causes, which may not travel


def scored_by_ray(
    job: Job, lm: CharLM, skip: int = 0, workers: int | None = None
) -> Iterator[ScoredChunk]:
    """`Job.scored`, by workers: by default one for each GPU, or each CPU if there is none.

    They are on the cluster that this process has joined, or else that the variable RAY_ADDRESS
    names or that was started on this machine; if there is none, one is started. A cluster that
    this call joins is left when the iterator ends.
    """
    with needs("ray", "--ray needs Ray"):
        import ray
        from ray import cloudpickle
        from ray.exceptions import RayError
    joined = not ray.is_initialized()
    if joined:
        try:
            ray.init(logging_level="error", log_to_driver=False)
        except Exception as error:  # Ray has no class of its own for a cluster that does not start
            raise SettingError(f"the Ray cluster cannot be reached: {error}") from error
    actors: list[Any] = []
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        most = gpus or int(ray.cluster_resources().get("CPU", 0))
        if workers is not None and workers > most:
            raise SettingError(f"{workers} workers need as many processors: Ray has {most}.")
        kind = ray.remote(num_cpus=1, num_gpus=int(gpus > 0))(_Worker)
        model = ray.put(cloudpickle.dumps(lm))  # Ray's pickle takes along classes of a script
        actors = [kind.remote(model, job.measure) for _ in range(workers or max(1, most))]
        waiting: deque[Any] = deque()
        for actor, chunk in zip(cycle(actors), islice(job.chunks(), skip, None), strict=False):
            waiting.append(actor.score.remote(chunk))
            if len(waiting) >= 4 * len(actors):  # no more of the file than that is in memory
                yield _result(ray.get(waiting.popleft()))
        while waiting:
            yield _result(ray.get(waiting.popleft()))
    except RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise ModelError(f"Ray could not finish: {last}") from error
    finally:
        for actor in actors:
            ray.kill(actor)
        if joined:
            ray.shutdown()


def _result(outcome: ScoredChunk | CharwiseError) -> ScoredChunk:
    if isinstance(outcome, CharwiseError):
        raise outcome
    return outcome
