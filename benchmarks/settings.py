"""What is asked of a score: a preset by its name, a tolerance by its number, or an `Effort`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.char_lm import CharLM
from charwise.evaluation.distance import js_distance
from charwise.evaluation.methods import Walk
from charwise.known_text.effort import Effort, effort_of
from charwise.known_text.windows import Text, score_text
from charwise.surprisal.score import Score
from charwise.tokens.prompts import split

#: A preset, a tolerance in bits a byte, or an effort.
Setting = str | float | Effort

PRESETS = ("fast", "default", "accurate")

#: Bits a byte.
TOLERANCES = (0.1, 0.03, 0.01, 0.003)

NATS = float(np.log(2))  # of a bit


class Difference(NamedTuple):
    """How far what is said of a text is from the reference."""

    js_distance: float  # mean over next-byte distributions
    bits: float  # mean |ΔS|, bits a byte


def name_of(setting: Setting) -> str:
    """As tables show it."""
    if isinstance(setting, Effort):
        return f"θ={setting.theta:g} γ={setting.gamma:g} φ={setting.first:g}"
    return setting if isinstance(setting, str) else f"{setting:g} bits"


def scored(lm: CharLM, text: bytes, setting: Setting) -> Score:
    """The score, with the distribution of each next byte."""
    opening, whole = split(lm.vocabulary, text)
    asked = Text(opening, whole)
    return score_text(lm.engine, lm.index, asked, effort_for(setting), entropy="char")


def effort_for(setting: Setting) -> Effort:
    """What the rounds take of a setting."""
    return effort_of(None, setting) if isinstance(setting, float) else effort_of(setting)


def asked(setting: Setting) -> dict[str, Any]:
    """A setting as keywords of `CharLM.score`."""
    return {"tolerance": setting} if isinstance(setting, float) else {"preset": setting}


def difference(found: Walk | Score, reference: Walk, size: int | None = None) -> Difference:
    """Of the first `size` bytes, or of all that the reference has."""
    assert found.distributions is not None
    assert reference.distributions is not None
    size = min(size or len(reference.logprobs), len(reference.logprobs))
    ours, theirs = found.distributions[:size], reference.distributions[:size]
    bits = np.abs(found.logprobs[:size] - reference.logprobs[:size]).mean() / NATS
    return Difference(float(js_distance(ours, theirs).mean()), float(bits))


def errors_of(score: Score) -> NDArray[np.float64]:
    """`[n]` by how much each byte may be off, as the score says, nats."""
    return np.asarray(score.error)


class Seconds(NamedTuple):
    """How long a call takes, medians."""

    cpu: float  # of the processor: the machine may be shared
    wall: float


def timed(run: Callable[[], Any], repeat: int, enough: float = 3.0) -> Seconds:
    """Seconds of a call, the median of `repeat`, fewer where that takes long."""
    cpu, wall = list[float](), list[float]()
    while len(cpu) < repeat and sum(cpu) < enough:
        started, began = time.process_time(), time.perf_counter()
        run()
        cpu.append(time.process_time() - started)
        wall.append(time.perf_counter() - began)
    return Seconds(float(np.median(cpu)), float(np.median(wall)))
