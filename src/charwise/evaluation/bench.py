"""Error, surprisal and speed of the ways to walk a text (Vieira et al. 2025, section 4).

The same text is walked by every method. Errors are measured against the reference, a wide beam.

- *JS distance*: at each byte of the text, the Jensen-Shannon distance between the method's and
  the reference's distribution over what comes next, the 256 bytes and the end of text: the square
  root of the divergence in bits (`js_distance`). Averaged over the bytes.
- *|ΔS|*: at each byte, the absolute difference of the surprisals −log₂ p(byte | all before) by
  the method and by the reference, in bits. Averaged over the bytes.
- *bits/byte*: the surprisal, averaged over the bytes. The canonical baseline books a token's
  surprisal on its first byte and 0 on the others: only its mean is comparable.
- *bytes/s*: the bytes of the text divided by the seconds of one walk that computes the surprisals
  alone, averaged over the repeated walks. Methods take turns, so that a machine that slows down
  slows all of them.
- *contexts/byte*: token contexts that such a walk evaluates, divided by the bytes of the text.

Intervals are bootstrapped (`bootstrap`): over bytes for the first three, as if these were
independent, and over the repeated walks for the speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from charwise.char_lm import CharLM
from charwise.errors import CharwiseError, SettingError, impossible
from charwise.evaluation.distance import js_distance
from charwise.evaluation.methods import Walk, walk_beam, walk_canonical, walk_healed, walk_rounds
from charwise.evaluation.resampling import Floats, Mean, bootstrap
from charwise.scoring.effort import effort_of


class _Method(NamedTuple):
    """A way to walk a text.

    Attributes:
        name: for tables, unique.
        family: "beam", "rounds", "token healing" or "canonical"; a beam's has its θ, if any.
        walk: (model, text, whether to return distributions too) → what it says.

    >>> _Method("beam K=2", "beam", lambda lm, text, rows: walk_beam(lm, text, 2)).family
    'beam'
    """

    name: str
    family: str
    walk: Callable[[CharLM, bytes, bool], Walk]


@dataclass(frozen=True)
class Result:
    """The measurements of one method; the module says how. None where one has no meaning.

    Attributes:
        method, family: see `_Method`.
        js_distance: mean over bytes, in [0, 1].
        surprisal_error: mean over bytes of |ΔS|, bits.
        bits_per_byte: mean over bytes of the surprisal.
        bytes_per_second: mean over walks.
        contexts_per_byte: of one walk.
        failed: why there are no numbers, or "".

    >>> Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5)).row()["bits_per_byte_low"]
    1.5
    """

    method: str
    family: str
    js_distance: Mean | None = None
    surprisal_error: Mean | None = None
    bits_per_byte: Mean | None = None
    bytes_per_second: Mean | None = None
    contexts_per_byte: float | None = None
    failed: str = ""

    def row(self) -> dict[str, Any]:
        """Flat, for CSV and JSON: a mean becomes three columns, `x`, `x_low` and `x_high`."""
        row: dict[str, Any] = {"method": self.method, "family": self.family}
        for name in ("js_distance", "surprisal_error", "bits_per_byte", "bytes_per_second"):
            mean = getattr(self, name) or (None, None, None)
            row |= dict(zip((name, f"{name}_low", f"{name}_high"), mean, strict=True))
        return row | {"contexts_per_byte": self.contexts_per_byte, "failed": self.failed}


@dataclass(frozen=True)
class Report:
    """The results of all methods on one text, with the model and the machine.

    Attributes:
        model: its name.
        source: name of the text.
        engine: what it ran on, as `CharLM.info` says.
        bytes, tokens: length of the text, and of its canonical tokenization (0 if it has none).
        reference: name of the method that the errors are measured against.
        repeat: walks that were timed, of each method.
        results: one for each method, the reference last.

    >>> Report("m", "f", {}, 9, 2, "beam K=128", 1, ()).to_dict()["bytes"]
    9
    """

    model: str
    source: str
    engine: dict[str, str]
    bytes: int
    tokens: int
    reference: str
    repeat: int
    results: tuple[Result, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `results` are the rows of the CSV file."""
        return asdict(self) | {"results": [result.row() for result in self.results]}


def beam(k: int, theta: float = 0.0) -> _Method:
    """Beam summing of width K, pruned by θ (Vieira et al. 2025, Appendices D and G).

    >>> beam(4)[:2], beam(4, 1e-3)[:2]
    (('beam K=4', 'beam'), ('beam K=4 θ=0.001', 'beam θ=0.001'))
    """
    pruned = f" θ={theta:g}" if theta else ""
    return _Method(
        f"beam K={k}{pruned}",
        f"beam{pruned}",
        lambda lm, text, rows: walk_beam(lm, text, k, theta, distributions=rows),
    )


def _rounds(preset: str) -> _Method:
    """The rounds of `CharLM.score`, by the name of a preset. Raises `SettingError` for others.

    >>> _rounds("fast").family
    'rounds'
    """
    chosen = effort_of(preset)
    return _Method(
        preset, "rounds", lambda lm, text, rows: walk_rounds(lm, text, chosen, distributions=rows)
    )


#: Token healing, Appendix F of the paper.
HEALED = _Method(
    "token healing",
    "token healing",
    lambda lm, text, rows: walk_healed(lm, text, distributions=rows),
)

#: The canonical tokens, teacher-forced: plain perplexity.
CANONICAL = _Method("canonical", "canonical", lambda lm, text, rows: walk_canonical(lm, text))


def methods(ks: Iterable[int], thetas: Iterable[float], presets: Iterable[str]) -> list[_Method]:
    """Beams of every width and threshold, the presets, token healing, and the canonical tokens.

    >>> [method.name for method in methods([2, 4], [0.0], ["fast"])]
    ['beam K=2', 'beam K=4', 'fast', 'token healing', 'canonical']
    """
    thetas = list(thetas)
    beams = [beam(k, theta) for theta in thetas for k in ks]
    return [*beams, *map(_rounds, presets), HEALED, CANONICAL]


def bench(
    lm: CharLM,
    text: bytes,
    candidates: Sequence[_Method],
    reference: _Method,
    *,
    repeat: int = 3,
    seed: int = 0,
    progress: Callable[[str], object] = lambda name: None,
) -> Report:
    """Walk a text by every method, and compare each with the reference.

    The report leaves the names of the model and of the text empty: `dataclasses.replace` adds them.

    Args:
        lm: the model.
        text: what is walked, any bytes.
        candidates: the methods.
        reference: the method that comes nearest to the truth.
        repeat: timed walks of each method, after one with distributions.
        seed: of the bootstrap.
        progress: called with a method's name before each of `(1 + repeat) · (1 + candidates)`
            walks.

    Raises:
        SettingError: for an empty text, or fewer than one timed walk.
        CharwiseError: if the reference itself fails. Where another method does, its result says
            why.

    >>> import charwise
    >>> report = bench(charwise.load(), b"import os", [beam(2), CANONICAL], beam(8), repeat=1)
    >>> [result.method for result in report.results]
    ['beam K=2', 'canonical', 'beam K=8']
    >>> report.results[0].js_distance.value < 0.1
    True
    """
    if not text:
        raise SettingError("the text is empty: there is nothing to measure.")
    if repeat < 1:
        raise SettingError(f"repeat is {repeat}: each method must be timed at least once.")
    progress(reference.name)
    truth = _checked(reference, lm, text)
    found: list[Result] = []
    for method in candidates:
        progress(method.name)
        try:
            found.append(_errors(method, _checked(method, lm, text), truth, seed))
        except CharwiseError as error:
            found.append(Result(method.name, method.family, failed=str(error)))
    widest = Result(
        reference.name, reference.family, bits_per_byte=bootstrap(_bits(truth), seed=seed)
    )
    measured = [*zip(candidates, found, strict=True), (reference, widest)]
    timed = _timed(lm, text, measured, repeat, seed, progress)
    tokens = len(lm.vocabulary.encode_beginning(text))
    return Report("", "", lm.info(), len(text), tokens, reference.name, repeat, tuple(timed))


def _timed(
    lm: CharLM,
    text: bytes,
    measured: list[tuple[_Method, Result]],
    repeat: int,
    seed: int,
    progress: Callable[[str], object],
) -> list[Result]:
    """The results with their speeds: `repeat` walks of each, all methods taking turns."""
    walks: list[list[Walk]] = [[] for _ in measured]
    for _ in range(repeat):
        for (method, result), done in zip(measured, walks, strict=True):
            progress(method.name)
            if not result.failed:
                done.append(method.walk(lm, text, False))
    timed = []
    for (_, result), done in zip(measured, walks, strict=True):
        if done:
            speeds = np.array([walk.bytes_per_second for walk in done])
            result = replace(
                result,
                bytes_per_second=bootstrap(speeds, seed=seed),
                contexts_per_byte=done[0].contexts / len(text),
            )
        timed.append(result)
    return timed


def _checked(method: _Method, lm: CharLM, text: bytes) -> Walk:
    """One walk with distributions, if all of its numbers are finite."""
    if method.family == "canonical":
        lm.vocabulary.encode(text)  # a beginning of the text is not enough
    walk = method.walk(lm, text, True)
    if not np.isfinite(walk.logprobs).all():
        raise impossible(text)
    return walk


def _errors(method: _Method, walk: Walk, truth: Walk, seed: int) -> Result:
    """A method's surprisal, and its distance to the reference if it speaks of single bytes."""
    bits = bootstrap(_bits(walk), seed=seed)
    if walk.distributions is None or truth.distributions is None:
        return Result(method.name, method.family, bits_per_byte=bits)
    return Result(
        method.name,
        method.family,
        js_distance=bootstrap(js_distance(walk.distributions, truth.distributions), seed=seed),
        surprisal_error=bootstrap(np.abs(_bits(walk) - _bits(truth)), seed=seed),
        bits_per_byte=bits,
    )


def _bits(walk: Walk) -> Floats:
    """The surprisal of each byte, bits."""
    return np.asarray(-walk.logprobs / math.log(2))
