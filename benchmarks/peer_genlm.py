"""Walk a text with genlm-bytes, in an environment of its own.

    python -m venv peer && peer/bin/pip install torch==2.13.0 genlm-bytes==0.2.0
    peer/bin/python benchmarks/peer_genlm.py MODEL_FOLDER TEXT_FILE OUT.npz --k 4

`run` does the last line from another environment, as `benchmarks/scoring.py --peer peer/bin/python`
does. Weights are float32: halves are slower on a CPU. It has one thread, and knows the end of text.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def run(python: str, folder: str, text: bytes, k: int) -> dict[str, Any]:
    """Walk a text in the peer's environment: what `walk` returns.

    Raises:
        SystemExit: it failed, and how.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file, out = Path(scratch) / "text", Path(scratch) / "out.npz"
        file.write_bytes(text)
        command = [python, __file__, folder, str(file), str(out), "--k", str(k)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the peer failed: {done.stderr[-800:]}")
        with np.load(out) as found:
            return {name: found[name] for name in found.files}


async def walk(folder: str, text: bytes, k: int) -> dict[str, Any]:
    """A beam of width k, byte by byte, distributions included."""
    import torch
    from genlm.backend import load_model_by_name
    from genlm.bytes import BeamParams, ByteBeamState

    torch.set_num_threads(1)
    options = {"hf_opts": {"torch_dtype": torch.float32}}
    llm = load_model_by_name(folder, backend="hf", llm_opts=options)
    end = llm.tokenizer.eos_token.encode()
    beam = await ByteBeamState.initial(llm, BeamParams(K=k, eos_byte_strings=[end]))
    started, cpu = time.perf_counter(), time.process_time()
    rows = np.zeros((len(text), 257))
    logprobs = np.zeros(len(text))
    for at, byte in enumerate(text):
        logs = np.asarray((await beam.logp_next()).ps)
        row = np.exp(logs[[*range(256), 257]])  # 256 is the end of a token
        rows[at], logprobs[at] = row / row.sum(), logs[byte]
        beam = await (beam.prune() << byte)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    await beam.cleanup()
    return {
        "distributions": rows, "logprobs": logprobs, "seconds": seconds, "cpu_seconds": cpu,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--k", type=int, default=4)
    args = parser.parse_args()
    np.savez(args.out, **asyncio.run(walk(args.model, args.text.read_bytes(), args.k)))


if __name__ == "__main__":
    main()
