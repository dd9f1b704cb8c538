"""Condition on a regular expression with genlm-control, in an environment of its own.

    python -m venv peer
    peer/bin/pip install torch==2.13.0
    peer/bin/pip install genlm-control==0.4.1
    peer/bin/python benchmarks/peer_genlm_control.py MODEL_FOLDER 'x = ' '(0|1)\\n' OUT.json

`run` does the last line from another environment, as `benchmarks/constraints.py --peer
peer/bin/python` does. Its byte model (a beam) times its automaton, sampled by its sequential Monte
Carlo; a text ends where it is a member of the expression, none of which may begin another. One
thread, float32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def run(python: str, folder: str, prompt: str, regex: str, *options: str) -> list[dict[str, Any]]:
    """Its runs, one for each seed: the weights of texts, the estimate, and seconds.

    Raises:
        SystemExit: it failed, and how.
    """
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        command = [python, __file__, folder, prompt, regex, str(out), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the peer failed: {done.stderr[-800:]}")
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found


async def sample(args: argparse.Namespace) -> list[dict[str, Any]]:
    """So many particles, for each of some seeds, each with a cache of its own."""
    import numpy as np
    import torch
    from genlm.backend import load_model_by_name
    from genlm.bytes import BeamParams
    from genlm.control import BoolFSA, ByteLLM, direct_token_sampler

    torch.set_num_threads(1)
    options = {"hf_opts": {"torch_dtype": torch.float32}}
    llm = load_model_by_name(args.model, backend="hf", llm_opts=options)
    end = llm.tokenizer.eos_token.encode()
    whole = re.compile(args.regex.encode())
    runs = []
    for seed in range(args.seeds):
        np.random.seed(seed)  # noqa: NPY002 - what the peer draws by
        torch.manual_seed(seed)
        model = ByteLLM(llm, BeamParams(K=args.k, eos_byte_strings=[end]))
        model.set_prompt_from_str(args.prompt)
        wall, cpu = time.perf_counter(), time.process_time()
        constraint = BoolFSA.from_regex(args.regex)
        sampler = direct_token_sampler(model * constraint.coerce(model, f=b"".join))
        found = await sampler.smc(
            n_particles=args.particles,
            ess_threshold=0.5,
            max_tokens=64,
            terminate_when=lambda context: bool(whole.fullmatch(b"".join(context))),
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        texts: dict[str, float] = {}
        for context, weight in zip(found.contexts, found.normalized_weights, strict=True):
            text = b"".join(one for one in context if isinstance(one, bytes)).decode()
            texts[text] = texts.get(text, 0.0) + float(weight)
        runs.append(
            {"texts": texts, "logprob": float(found.log_ml), "seconds": wall, "cpu_seconds": cpu}
        )
        await model.cleanup()
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("regex")
    parser.add_argument("out", type=Path)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--particles", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    args.out.write_text(json.dumps(asyncio.run(sample(args))))


if __name__ == "__main__":
    main()
