"""lm-evaluation-harness' `local-completions` against the server, and in process: the same."""

from __future__ import annotations

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


@pytest.mark.slow
def test_the_same_numbers_as_in_process(running_server: Running) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from charwise.evaluation.lm_eval import CharwiseLM

    instances = [
        Instance("loglikelihood", {}, arguments=pair, idx=n, task_name="", doc_id=n)
        for n, pair in enumerate(PAIRS)
    ]
    here = CharwiseLM(running_server.lm).loglikelihood(instances, disable_tqdm=True)
    there = LocalCompletionsAPI(
        model="charwise",
        base_url=f"{running_server.url}/v1/completions",
        tokenizer=EMBEDDED,
        tokenizer_backend="huggingface",
        batch_size=2,
        max_length=1024,
    ).loglikelihood(instances, disable_tqdm=True)
    for pair, (logprob, greedy), found in zip(PAIRS, here, there, strict=True):
        assert found[0] == pytest.approx(logprob, abs=2e-3), pair
        assert found[1] == greedy, pair
    assert {greedy for _, greedy in here} == {True, False}


@pytest.mark.slow
def test_generation_until_a_stop(running_server: Running) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    settings = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    instances = [
        Instance(
            "generate_until",
            {},
            arguments=("import os\nimport sy", settings),
            idx=0,
            task_name="",
            doc_id=0,
        )
    ]
    found = LocalCompletionsAPI(
        model="charwise",
        base_url=f"{running_server.url}/v1/completions",
        tokenizer=EMBEDDED,
        tokenizer_backend="huggingface",
        max_length=1024,
    ).generate_until(instances, disable_tqdm=True)
    assert found == ["s"]
