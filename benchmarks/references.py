"""The values that scores are compared with, kept in build/ for each text.

    python benchmarks/references.py [--half choosing] [--quick]

A plain beam (Vieira et al. 2025, Appendix D) is a lower bound of every prefix probability, as it
only drops. The finest score of `before` lends a little, and is nearer to the
truth where the beam is far too low. The reference of a text is the likelier of the two. `accurate`
of either version takes its place if that is likelier although its stated error is taken off.
Distributions of next bytes are always compared with those of the beam.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import texts
from charwise.coverings.beam import start
from charwise.evaluation.distance import js_distance
from harness import PRESETS, Arrays, Version, Versions, arguments, lm_of, source_of
from texts import Passage

#: Width of the beam by kind of text. Easy text needs no more, and far out of domain a beam that is
#: wide enough takes too long: the finest score is the reference there.
WIDTHS = {"code": 64, "repeat": 64, "easy": 16, "far": 16, "other": 16}

#: Tolerance of the finest score, bits a byte.
FINEST = 0.003

KINDS = ("code", "easy", "far", "repeat", "other")


class Difference(NamedTuple):
    """How far a score is from the reference."""

    js: float  # mean Jensen-Shannon distance of the distributions of the next byte
    nats: float  # mean |Δ log p|, nats a byte
    worst: float  # largest |Δ log p| of a byte, nats


def beam(passage: Passage, width: int) -> Arrays:
    """What a plain beam says of a text: `logprobs` `[n]` and `distributions` `[n, 257]`."""
    lm, n = lm_of(passage.model), len(passage.text)
    tree = lm.engine.tree(lm.vocabulary.bos_ids)
    state, kept = start(tree, 0, width, fallback=True), 0
    logprobs, distributions = np.zeros(n), np.zeros((n, 257))
    for at, byte in enumerate(passage.text):
        masses, _ = state.next_byte_masses()
        distributions[at] = masses / masses.sum()
        before, state = state.prefix_logprob, state.step(byte)
        logprobs[at] = state.prefix_logprob - before
        if tree.size - kept > 4 * width + 256:
            tree.keep(state.nodes())
            kept = tree.size
    return {"logprobs": logprobs, "distributions": distributions, "error": np.zeros(n)}


def scored(passage: Passage, setting: str | float) -> Arrays:
    """A score at a preset or a tolerance, with distributions, stated errors and costs."""
    lm: Any = lm_of(passage.model)
    how = {"preset": setting} if isinstance(setting, str) else {"tolerance": setting}
    score = lm.score(passage.text, entropy="char", **how)
    names = ("logprobs", "distributions", "error", "contexts", "calls")
    return {name: np.asarray(getattr(score, name)) for name in names}


def reference(both: Versions, passage: Passage) -> Arrays:
    """The arrays of the beam, and `best`: `[n]` log-probabilities of the nearest to the truth.

    `by` names where `best` is from.
    """
    wide = both["before"].kept(beam, passage, WIDTHS[passage.kind])
    candidates = {"beam": wide, "finest": both["before"].kept(scored, passage, FINEST)}
    candidates |= both.kept(scored, passage, "accurate")
    least = {name: found["logprobs"].sum() for name, found in candidates.items()}
    for version in both:
        least[version] -= candidates[version]["error"].sum()
    by = max(least, key=lambda name: least[name])
    return {**wide, "best": candidates[by]["logprobs"], "by": np.asarray(by)}


def difference(found: Arrays, true: Arrays) -> Difference:
    """How far a score is from a reference."""
    away = np.abs(found["logprobs"] - true["best"])
    js = js_distance(found["distributions"], true["distributions"]).mean()
    return Difference(float(js), float(away.mean()), float(away.max()))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--half", default="judging", choices=["choosing", "judging"])
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    args, started = parser.parse_args(), time.perf_counter()
    passages = selected(args.half, args.quick, *args.kinds)
    if args.half == "judging":  # calibration takes these too
        passages += selected("choosing", args.quick, "repeat")
    workers = [Version(source_of(args.base)) for _ in range(2)]

    def prepare(n: int) -> None:
        for passage in passages[n :: len(workers)]:
            workers[n].kept(beam, passage, WIDTHS[passage.kind])
            for setting in (FINEST, *PRESETS):
                workers[n].kept(scored, passage, setting)
            print(passage.name, flush=True)

    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(prepare, range(len(workers))))
    print(f"{len(passages)} references in {time.perf_counter() - started:.0f} seconds")
    for worker in workers:
        worker.close()


def selected(half: str, quick: bool, *kinds: str) -> list[Passage]:
    """The passages of a half by kind; with `quick` a few of each."""
    few = {"code": 3, "easy": 1, "far": 2, "repeat": 6} if quick else {}
    return [
        passage
        for kind in kinds
        for passage in texts.passages(half, [kind])[: few.get(kind, 0 if quick else None)]
    ]


if __name__ == "__main__":
    main()
