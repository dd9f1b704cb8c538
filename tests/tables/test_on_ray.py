"""`charwise score --ray` on a real Ray cluster of this machine, with two workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import charwise
from charwise import CharLM, Vocabulary
from charwise.cli.app import app
from charwise.engines.ngram import NgramLM
from charwise.errors import EngineError, SettingError
from charwise.tables.chunks import Request
from charwise.tables.jobs import Job
from charwise.tables.on_ray import scored_by_ray, start
from charwise.tables.output import Output
from charwise.tables.sources import find

ray = pytest.importorskip("ray", reason="scoring with Ray needs: pip install 'charwise[ray]'")
pytest.importorskip("ray.data", reason="scoring with Ray needs: pip install 'charwise[ray]'")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a worker has
    yield
    torch.set_num_threads(threads)
    ray.shutdown()


def test_two_workers_give_the_output_of_one_process(tmp_path: Path) -> None:
    """Byte for byte, bad rows included; and they continue what one process has begun."""
    texts = [f"x{number} = {number % 7}" for number in range(150)]  # five chunks
    texts[100] = ""
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    arguments = ["score", str(table), "--preset", "fast", "--on-error", "skip", "--json"]
    assert CliRunner().invoke(app, [*arguments, "-o", str(here)]).exit_code == 3

    job, lm = Job((find(str(table)),), request=Request(preset="fast")), charwise.load()
    with Output(there, job.identity(lm, "embedded"), len(texts)) as output:
        first = next(job.scored(lm))
        output.append(first.outcomes, first.size)
    result = CliRunner().invoke(app, [*arguments, "-o", str(there), "--ray", "--workers", "2"])
    assert result.exit_code == 3, result.output
    assert json.loads(result.stdout)["continued_after"] == 32
    assert there.read_bytes() == here.read_bytes()

    errors = [out.with_name(out.name + ".errors.jsonl").read_bytes() for out in (here, there)]
    assert errors[0] == errors[1]
    assert json.loads(errors[0])["row"] == 101


def test_a_model_that_fails_on_a_worker(tmp_path: Path) -> None:
    path = tmp_path / "ab.csv"
    path.write_text("text\n" + "ab\n" * 100)
    vocabulary = Vocabulary([b"a", b"b", None], end_ids=[2], bos_ids=[2])
    lm = CharLM(NgramLM(vocabulary, 2, {(2,): [0.5, 0.5, 0.0]}))  # and no row after "a"
    with pytest.raises(EngineError, match="no row for the context"):
        list(scored_by_ray(Job((find(str(path)),)), lm, 0, 2))


def test_workers() -> None:
    assert start() == start(2) == 2
    with pytest.raises(SettingError, match="3 workers need as many processors: Ray has 2"):
        start(3)
