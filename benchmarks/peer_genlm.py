"""Walk a text with genlm-bytes, in an environment of its own; prints JSON.

    python -m venv peer && peer/bin/pip install torch==2.13.0 genlm-bytes==0.2.0
    peer/bin/python benchmarks/peer_genlm.py MODEL_FOLDER TEXT_FILE --k 4 --bytes 300

`benchmarks/scoring.py --peer peer/bin/python` calls it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path

from genlm.backend import load_model_by_name
from genlm.bytes import BeamParams, ByteBeamState


async def walk(folder: str, text: bytes, k: int) -> dict[str, float]:
    """Surprisal and speed of a beam of width k, byte by byte, distributions included."""
    llm = load_model_by_name(folder, backend="hf")
    started = time.perf_counter()
    beam = await ByteBeamState.initial(llm, BeamParams(K=k))
    ready = time.perf_counter()
    logprobs = []
    for byte in text:
        distribution = await beam.logp_next()
        logprobs.append(float(distribution[byte]))
        beam = await (beam.prune() << byte)
    done = time.perf_counter()
    await beam.cleanup()
    return {
        "k": k,
        "bytes": len(text),
        "bits_per_byte": -sum(logprobs) / len(text) / 0.6931471805599453,
        "seconds": done - ready,
        "bytes_per_second": len(text) / (done - ready),
        "set_up_seconds": ready - started,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=300)
    args = parser.parse_args()
    text = args.text.read_bytes()[: args.bytes]
    print(json.dumps(asyncio.run(walk(args.model, text, args.k))))


if __name__ == "__main__":
    main()
