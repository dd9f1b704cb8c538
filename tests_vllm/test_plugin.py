"""The entry point in engines of other versions: it may not heal, but never stops one.

Every engine here is a process of its own, in which a part of vLLM, or of charwise, is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from charwise.models import EMBEDDED
from conftest import ENGINE, ENVIRONMENT

SCRIPT = """
import json, logging, sys

logging.basicConfig()
{before}
from importlib.metadata import entry_points

[entry] = [e for e in entry_points(group="vllm.logits_processors") if e.name == "charwise"]
loaded = entry.load()
assert loaded is entry.load()
from vllm import LLM, SamplingParams

llm = LLM({model!r}, **{engine!r})
params = SamplingParams(temperature=0, max_tokens=4)
[plain] = llm.generate(["import sys"], params, use_tqdm=False)
found = {{"plain": len(plain.outputs[0].token_ids), "loaded": loaded.__module__}}
from charwise.processors.vllm import heal_generate

try:
    [[found["healed"]]] = heal_generate(llm, ["import sy"], params)
except Exception as error:
    found["error"] = str(error)
[again] = llm.generate(["import sys"], params, use_tqdm=False)
found["same"] = again.outputs[0].token_ids == plain.outputs[0].token_ids
print("FOUND" + json.dumps(found))
"""


#: vLLM itself needs its own modules: they are missing only while charwise loads.
WITHOUT = """
import contextlib
import vllm.v1.sample.logits_processor
import charwise.processors.vllm as face

with contextlib.suppress(ImportError):  # not in vLLM 0.30 and older
    import vllm.v1.worker.gpu.sample.logits_processor

kept = sys.modules.get({missing!r})
sys.modules[{missing!r}] = None
face.HealingLogitsProcessor
sys.modules.pop({missing!r})
if kept:
    sys.modules[{missing!r}] = kept
"""


def run(before: str) -> tuple[dict[str, object], str]:
    """What an engine does after some lines, and what it logs."""
    script = SCRIPT.format(before=before, model=EMBEDDED, engine=ENGINE)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND")), done.stderr


def test_without_the_interface_of_the_v2_runner_v1_heals():
    """As in vLLM 0.30 and older."""
    found, log = run(WITHOUT.format(missing="vllm.v1.worker.gpu.sample.logits_processor"))
    assert found["loaded"] == "charwise.processors.vllm.logits_processor"
    assert str(found["healed"]).startswith("s")
    assert found["same"]
    assert "cannot heal" not in log


@pytest.mark.parametrize(
    "missing",
    [
        "charwise.processors.decision",
        "charwise.processors.vllm.prompts",
        "vllm.v1.sample.logits_processor.builtin",
    ],
)
def test_where_it_cannot_load_it_does_nothing_and_says_so_once(missing):
    found, log = run(WITHOUT.format(missing=missing))
    assert found["loaded"] == "charwise.processors.vllm"
    assert "charwise cannot heal in this vLLM" in str(found["error"])
    assert found["plain"] == 4
    assert found["same"]
    assert log.count("Its logits processor does nothing") == 1


def test_a_processor_that_cannot_be_made_leaves_the_engine_alone():
    """Whatever goes wrong when the engine makes it, an engine that nobody asked to heal starts."""
    before = (
        "import charwise.processors.vllm.logits_processor as ours\n"
        "def fail(model_config): raise AttributeError('nothing of that name')\n"
        "ours.served = fail\n"
    )
    found, log = run(before)
    assert found["plain"] == 4
    assert found["same"]
    assert "nothing of that name" in str(found["error"])
    assert "charwise cannot heal here: AttributeError" in log
