"""lm-evaluation-harness' `local-completions` against the server, and in process: the same."""

from __future__ import annotations

from typing import Any

import pytest

from charwise.models import EMBEDDED
from serving import Running

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
pytest.importorskip("tenacity", reason="lm-eval's API models need: pip install 'lm-eval[api]'")
pytest.importorskip("aiohttp", reason="lm-eval's API models need: pip install 'lm-eval[api]'")

#: The harness tokenizes both together, and cuts: between tokens the cut is where it was.
PAIRS = [
    ("import numpy", " as np"),
    ("for i in", " range(10):"),
    ("for i in", " banana"),
    ("def check(value):\n    if value < 0:\n        raise", " ValueError"),
    ("", "import os"),
]


def instances_of(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    """Requests as the harness makes them."""
    from lm_eval.api.instance import Instance

    return [
        Instance(kind, {}, arguments=pair, idx=n, task_name="", doc_id=n)
        for n, pair in enumerate(arguments)
    ]


def over_http(server: Running) -> Any:
    """The harness' own client."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        model="charwise",
        base_url=f"{server.url}/v1/completions",
        tokenizer=EMBEDDED,
        tokenizer_backend="huggingface",
        batch_size=2,
        max_length=1024,
    )


@pytest.mark.slow
def test_the_same_numbers_as_in_process(running_server: Running) -> None:
    from charwise.evaluation.lm_eval import CharwiseLM

    instances = instances_of("loglikelihood", *PAIRS)
    here = CharwiseLM(running_server.lm).loglikelihood(instances, disable_tqdm=True)
    there = over_http(running_server).loglikelihood(instances, disable_tqdm=True)
    for pair, (logprob, greedy), remote in zip(PAIRS, here, there, strict=True):
        assert remote[0] == pytest.approx(logprob, abs=2e-3), pair
        assert remote[1] == greedy, pair
    assert {greedy for _, greedy in here} == {True, False}


@pytest.mark.slow
def test_generation_until_a_stop(running_server: Running) -> None:
    settings = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    instances = instances_of("generate_until", ("import os\nimport sy", settings))
    assert over_http(running_server).generate_until(instances, disable_tqdm=True) == ["s"]
