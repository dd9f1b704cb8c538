"""Bounds from a real vLLM server, against the same model run here by transformers.

The numbers of vLLM's kernels and of transformers' differ for the same float32 weights. By how much
is measured first, on every log-probability that is told; the engine is then told to allow for
twice `ALLOWED`, and nothing may be outside.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from server import serving

import charwise
from charwise.bounded.lm import BoundedLM
from charwise.errors import ServerError
from conftest import ENGINE, Reference
from top_k_lm import TopK

#: Most that a log-probability of vLLM differs from one of transformers, nats, as is checked here.
ALLOWED = 1e-4

PROMPTS = [
    "",
    "import nump",
    "class Node:\n    def get_valu",
    "x = 'naï",
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--max-logprobs", "1000") as (client, _):
        yield f"{client.base_url}/v1"


@pytest.fixture(scope="module")
def here() -> charwise.CharLM:
    return charwise.load()


def connect(url: str, k: int) -> BoundedLM:
    return charwise.connect(url, "embedded", top_logprobs=k, rounding=2 * ALLOWED)


@torch.inference_mode()
@pytest.mark.parametrize("size", [3, 40])
def test_what_is_told_is_what_the_model_says(url: str, reference: Reference, size: int) -> None:
    """By prompt_logprobs along a text, by logprobs after each context: the k best, and prices."""
    engine = connect(url, 100).engine
    ids = tuple(
        reference.tokenizer("import os\n\ndef f(x):\n    return os.path.join(x)\n" * 4).input_ids
    )
    contexts = [ids[:n] for n in range(1, size)] + [(*ids[:2], 200)]
    calls = engine.calls
    found = engine.best(contexts, [True] * len(contexts))
    assert engine.calls - calls <= 3  # those along the text together, the others together
    for context, best in zip(contexts, found, strict=True):
        rows = reference.model(torch.tensor([context])).logits[0].double().log_softmax(-1)
        assert np.abs(rows[-1][best.ids].numpy() - best.logprobs).max() < ALLOWED
        others = torch.ones(len(rows[-1]), dtype=torch.bool)
        others[best.ids] = False
        assert float(rows[-1][others].max()) < best.most + ALLOWED
        assert len(best.ids) in (100, 101)
        if len(context) > 1:
            assert best.last == pytest.approx(float(rows[-2][context[-1]]), abs=ALLOWED)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_truth_is_inside(url: str, here: charwise.CharLM, prompt: str) -> None:
    everything = BoundedLM(TopK(here.engine, here.vocabulary.width))
    truth = everything.next(prompt, tolerance=1e-5, max_contexts=100)
    widths = []
    for k in (5, 1000):
        found = connect(url, k).next(prompt)
        assert (found.lower <= truth.upper).all()
        assert (truth.lower <= found.upper).all()
        assert ((found.lower <= found.probs) & (found.probs <= found.upper)).all()
        widths.append(found.upper - found.lower)
    # Up to what the search leaves open at either.
    assert widths[-1].max() <= widths[0].max() + 2e-3


def test_the_truth_of_a_score_and_of_a_covering(url: str, here: charwise.CharLM) -> None:
    text = "import numpy as np\nx = "
    everything = BoundedLM(TopK(here.engine, here.vocabulary.width))
    lm = connect(url, 100)
    truth, found = everything.score(text), lm.score(text)
    assert (found.lower <= truth.upper).all()
    assert (truth.lower <= found.upper).all()
    assert found.logprob.lower <= truth.logprob.upper
    assert truth.logprob.lower <= found.logprob.upper
    assert here.prefix_logprob("import nump", preset="exact") in lm.prefix_logprob("import nump")
    assert lm.complete("import nump", max_new_bytes=1).text == "y"


def test_more_than_the_server_gives(url: str) -> None:
    with pytest.raises(ServerError, match=r"greater than max allowed: 1000.*--max-logprobs"):
        connect(url, 2000)
    with pytest.raises(ServerError, match="404"):
        charwise.connect(url + "/v2", "embedded")
    assert connect(url, 20).engine.window == ENGINE["max_model_len"] - 1
