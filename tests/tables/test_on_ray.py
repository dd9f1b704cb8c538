"""`charwise score --ray` on a real Ray cluster of this machine, and what it leaves behind."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import charwise
from charwise import CharLM, Vocabulary
from charwise.engines.ngram import NgramLM
from charwise.errors import ModelError, SettingError
from charwise.tables.job import Job
from charwise.tables.measure import Measure
from charwise.tables.on_ray import scored_by_ray
from charwise.tables.output import Output
from charwise.tables.readers import Source
from commands import run

pytest.importorskip("ray", reason="scoring with Ray needs: pip install 'charwise[ray]'")

pytestmark = pytest.mark.slow

#: A process that keeps a cluster of two processors until its stdin is closed.
CLUSTER = """
import ray, sys
context = ray.init(
    num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False
)
print(context.address_info["address"], flush=True)
sys.stdin.read()
"""

#: A script as a user has it: an engine of its own, no `if __name__`, and more to do afterwards.
CALLER = """
import threading
import ray
from charwise import CharLM, Vocabulary
from charwise.engines.ngram import NgramLM
from charwise.tables.job import Job
from charwise.tables.on_ray import scored_by_ray
from charwise.tables.readers import Source

class MyLM(NgramLM):
    pass

def score():
    print(sum(chunk.rows for chunk in scored_by_ray(job, lm, workers=1)), flush=True)

vocabulary = Vocabulary([b"a", b"b", None], end_ids=[2], bos_ids=[2])
lm = CharLM(MyLM(vocabulary, 1, {(): [0.5, 0.4, 0.1]}))
job = Job(tuple(Source("-", b"ab") for _ in range(100)))  # four chunks
score()
assert not ray.is_initialized()
ray.init(logging_level="error", log_to_driver=False)
score()
assert ray.is_initialized()
ray.shutdown()
assert threading.active_count() == 1, threading.enumerate()
print("still here", flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two processors, in a process of their own; and one thread here, as many as a worker has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else its token is its owner's
        patch.setenv("RAY_worker_niceness", "0")  # else other tests leave its workers no time
        owner = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        patch.setenv("RAY_ADDRESS", owner.stdout.readline().strip())
        yield
    owner.stdin.close()
    owner.wait()
    torch.set_num_threads(threads)


def test_two_workers_give_the_output_of_one_process(tmp_path: Path) -> None:
    """Byte for byte, bad rows included; and they continue what one process has begun."""
    texts = [f"x{number} = {number % 7}" for number in range(150)]  # five chunks
    texts[100] = ""
    table = tmp_path / "rows.csv"
    table.write_text("text,n\n" + "".join(f"{text},\n" for text in texts))
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    arguments = ["score", table, "--preset", "fast", "--on-error", "skip", "--json"]
    assert run(*arguments, "-o", here).exit_code == 3

    job, lm = Job((Source.of(str(table)),), measure=Measure(preset="fast")), charwise.load()
    with Output(there, job.measure.fields(), job.identity(lm, "embedded"), len(texts)) as output:
        output.append(next(job.scored(lm)))
    result = run(*arguments, "-o", there, "--ray", "--workers", "2")
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["continued_after"] == 32
    assert there.read_bytes() == here.read_bytes()

    errors = [out.with_name(out.name + ".errors.jsonl").read_bytes() for out in (here, there)]
    assert errors[0] == errors[1]
    assert json.loads(errors[0])["row"] == 101


def test_the_caller_goes_on(tmp_path: Path) -> None:
    """It leaves the cluster that it joined, and stays in one of its own."""
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["100", "100", "still here", ""]


def test_a_model_that_fails_and_workers_without_processors() -> None:
    vocabulary = Vocabulary([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    lm = CharLM(NgramLM(vocabulary, 2, {(2,): [0.5, 0.5, 0.0]}))  # and no row after "a"
    job = Job((Source("-", b"ab"),))
    with pytest.raises(ModelError, match="no row for the context"):
        list(scored_by_ray(job, lm, workers=2))
    with pytest.raises(SettingError, match="3 workers need as many processors: Ray has 2"):
        next(scored_by_ray(job, lm, workers=3))
