"""Several models on the same texts, with any tokenizers: bits a byte, and which is better.

Over bytes all models assign probabilities to the same events, so their surprisals compare byte by
byte, and a difference has the interval of pairs (`resampling`). The error beside an interval is
that of approximate sums (`Score.error`): a difference is `clear` only if it exceeds both.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from charwise.char_lm import CharLM, load, scores_or_errors
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import CharwiseError, SettingError, check_count, items, quote
from charwise.evaluation.comparison import Comparison, ComparisonRow
from charwise.evaluation.resampling import Floats, intervals, units_of
from charwise.scoring.effort import Effort
from charwise.tokens.canonical import to_bytes
from charwise.tokens.utf8 import pieces

if TYPE_CHECKING:
    from charwise.engines.load import LoadKeywords

Model = str | os.PathLike[str] | CharLM
Text = str | bytes
Report = Callable[[str, int, int], object]  # takes a name, the bytes done, and all bytes


def compare(
    models: Mapping[str, Model] | Sequence[Model],
    texts: Mapping[str, Text] | Sequence[Text] | Text,
    *,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    resamples: int = 10_000,
    seed: int = 0,
    progress: Report = lambda name, done, total: None,
    **settings: Unpack[LoadKeywords],
) -> Comparison:
    """Return bits a byte of several models, and of their differences, with 95 % intervals.

    Named models are loaded one after another, so that only one must fit into memory. A long text is
    scored in pieces (`tokens.pieces`).

    Args:
        models: names, folders, files, or `CharLM` objects; a mapping gives them other names.
        texts: one, or several, each scored by itself; a mapping gives them names.
        preset, tolerance: how much to spend, as in `CharLM.score`; the same for all models.
        resamples: how often texts are drawn again for the intervals, or parts of texts where
            there are fewer than 20.
        seed: of the draws.
        progress: called with a model's name, how many bytes it has scored, and of how many.
        settings: `device`, `dtype` and the like, as in `charwise.load`, of the models that are
            given by name.

    Raises:
        SettingError: fewer than one model, two of one name, no text, an empty one, or an option
            that is none.
        ModelError: a model that is not there; before any is loaded.
        ZeroProbabilityError, VocabularyError: which model cannot write which text.

    >>> comparison = compare(["embedded"], ["import os\\n", "import sys\\n"], resamples=100)
    >>> comparison.models[0].name, comparison.bytes
    ('embedded', 21)
    """
    named, data = _named_models(models), _named_texts(texts)
    check_count("resamples", resamples, 1)
    check_count("seed", seed, 0)
    if preset is None and tolerance is None:
        preset = "default"
    effort = Effort.of(preset, tolerance)
    for model in named.values():
        if not isinstance(model, CharLM):
            read_vocabulary(
                os.fspath(model),
                revision=settings.get("revision"),
                trust_remote_code=settings.get("trust_remote_code", False),
            )
    scored, windows = [], []
    for name, model in named.items():
        lm = model if isinstance(model, CharLM) else load(model, **settings)
        scored.append(_scored(lm, name, data, effort, progress))
        windows.append(lm.info().get("window"))
        del lm
        gc.collect()  # an engine and its model hold each other
    bits, errors = np.stack(scored, axis=1)  # [models, bytes] each
    names, pairs = list(named), [(a, b) for b in range(len(named)) for a in range(b)]
    columns = [*bits, *(bits[a] - bits[b] for a, b in pairs)]
    edges = np.cumsum([len(text) for text in data.values()])[:-1]
    units = units_of(np.split(np.column_stack(columns), edges))
    means = iter(intervals(units, resamples, seed))  # all columns are drawn together
    error = errors.mean(axis=1).tolist()
    rows = [
        ComparisonRow(names[n], *next(means), error[n], window=windows[n])
        for n in range(len(names))
    ]
    differences = []
    for a, b in pairs:
        mean, off = next(means), error[a] + error[b]
        clear = mean.low > off or mean.high < -off
        differences.append(ComparisonRow(f"{names[a]} − {names[b]}", *mean, off, clear))
    spent = f"tolerance {tolerance:g}" if tolerance is not None else f"preset {preset}"
    return Comparison(rows, differences, bits, errors, data, len(units), resamples, seed, spent)


def _scored(
    lm: CharLM,
    name: str,
    texts: dict[str, bytes],
    effort: Effort,
    progress: Report,
) -> Floats:
    """`[2, bytes]` surprisals and errors by a model, which scores a few pieces at a time; bits."""
    bits, errors = list[Floats](), list[Floats]()
    done, total = 0, sum(map(len, texts.values()))
    for batch in _batches(texts):
        progress(name, done, total)
        names, parts, contexts = zip(*batch, strict=True)
        scores = scores_or_errors(lm, parts, contexts, preset=effort)
        for text, score in zip(names, scores, strict=True):
            if isinstance(score, CharwiseError):
                score.args = f"the model {name} cannot score {text}: {score}", *score.args[1:]
                raise score
            bits.append(-score.logprobs / math.log(2))
            errors.append(score.error / math.log(2))
        done += sum(map(len, parts))
    progress(name, done, total)
    return np.stack([np.concatenate(bits), np.concatenate(errors)])


def _batches(texts: dict[str, bytes]) -> Iterator[list[tuple[str, bytes, bytes]]]:
    """Yield pieces that are scored together: name of the text, piece, text before it."""
    batch: list[tuple[str, bytes, bytes]] = []
    size = 0
    for name, text in texts.items():
        for _, part, before in pieces(text):
            batch.append((name, part, before))
            size += len(part)
            if size >= 2**15:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _named_models(models: Any) -> dict[str, Model]:
    """The models by the names that tables show: the last part of a path, numbered if need be."""
    named: dict[str, Model] = {}
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    elif (listed := items(models)) is None:
        raise SettingError(f"models are a list, not {quote(models)}: put one into a list.")
    else:
        for model in listed:
            known = isinstance(model, str | os.PathLike)
            base = (Path(model).name or str(model)) if known else "a model"
            names = chain([base], (f"{base} ({number})" for number in count(2)))
            named[next(name for name in names if name not in named)] = model
    if not named:
        raise SettingError("there is no model to compare: give two or more.")
    return named


def _named_texts(texts: Any) -> dict[str, bytes]:
    """The texts by name."""
    if isinstance(texts, str | bytes):
        texts = {"the text": texts}
    if not isinstance(texts, Mapping):
        texts = {f"text {n}": text for n, text in enumerate(texts, 1)}
    named = {str(name): to_bytes(text) for name, text in texts.items()}
    if not named:
        raise SettingError("there is no text to compare the models on.")
    for name, text in named.items():
        if not text:
            raise SettingError(f"{name} is empty: there is nothing to compare the models on.")
    return named
