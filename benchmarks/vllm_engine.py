"""CPU time of exact scoring: vLLM's engine against that of transformers.

Usage: ``python benchmarks/vllm_engine.py [--bytes 300] [--repeat 3] [--profile] [--json FILE]``

Both score the same code with the embedded model, in this process and in turn; each time with other
text, so that nothing is cached. Printed: seconds of CPU (all threads), contexts, calls of the
model, the ratio of the medians, and the largest difference of a byte's log-probability.
`--profile` adds where vLLM's time goes. Needs an environment with vLLM (`make .venv-vllm/.ready`).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from charwise import CharLM, load
from charwise.engines.vllm import VllmLM
from charwise.models import EMBEDDED
from texts import hard_text

#: What the CPU build needs.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "max_logprobs": -1,
    "distributed_executor_backend": "uni",
}


def measure(lm: CharLM, text: bytes) -> tuple[dict[str, float], Any]:
    """CPU seconds of one text, and its log-probabilities."""
    begin = time.process_time()
    score = lm.score(text)
    seconds = time.process_time() - begin
    return {"seconds": seconds, "contexts": score.contexts, "calls": score.calls}, score.logprobs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bytes", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    from vllm import LLM

    ours = load("embedded")
    lms = {"transformers": ours, "vllm": CharLM(VllmLM(LLM(EMBEDDED, **ENGINE), ours.vocabulary))}
    text = hard_text((args.repeat + 2) * args.bytes)
    pieces = [text[at : at + args.bytes] for at in range(0, len(text), args.bytes)]
    for lm in lms.values():
        lm.score(pieces[-1])  # warms up
    found: dict[str, list[dict[str, float]]] = {name: [] for name in lms}
    worst = 0.0
    for piece in pieces[: args.repeat]:
        logs = []
        for name, lm in lms.items():
            row, logprobs = measure(lm, piece)
            found[name].append(row)
            logs.append(logprobs)
        worst = max(worst, float(abs(logs[0] - logs[1]).max()))
    medians = {name: statistics.median(r["seconds"] for r in rows) for name, rows in found.items()}
    for name, rows in found.items():
        shown = ", ".join(f"{r['seconds']:.2f} ({r['contexts']}, {r['calls']})" for r in rows)
        print(f"{name}: s of CPU (contexts, calls): {shown}")
    ratio = medians["vllm"] / medians["transformers"]
    print(f"{args.bytes} bytes: ratio {ratio:.1f}, largest difference {worst:.1e} nats")
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(lms["vllm"].score, pieces[-2])
        pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    if args.json:
        facts = {"bytes": args.bytes, "runs": found, "ratio": ratio, "difference": worst}
        args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
