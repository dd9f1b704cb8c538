"""Several models on the same texts, with any tokenizers: bits a byte, and who is better.

Over bytes, all models speak of the same events, so their surprisals can be compared byte by byte,
and the difference of two models has the interval of pairs (`resampling`). Beside each interval
stands what no resampling knows of: by how much the numbers themselves may be off, since sums over
tokenizations are approximate (`Score.error`). A difference is `clear` only if it exceeds both.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import numpy as np

from charwise.char_lm import CharLM
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import CharwiseError, SettingError, check_count, items, shown
from charwise.evaluation.comparison import Comparison, Difference, Measured
from charwise.evaluation.resampling import Floats, by_blocks, by_texts
from charwise.model import load
from charwise.scoring.effort import Effort, effort_of
from charwise.tokens.canonical import to_bytes
from charwise.tokens.utf8 import pieces

if TYPE_CHECKING:
    from charwise.engines.load import LoadKeywords

#: What is drawn again for the intervals; "auto" is texts if there are 20 or more.
Over = Literal["auto", "texts", "blocks"]

Model = str | os.PathLike[str] | CharLM
Text = str | bytes


class _Read(NamedTuple):
    """The numbers of one model for all texts."""

    bits: Floats  # [n_bytes]
    errors: Floats  # [n_bytes] bits
    contexts: int
    info: dict[str, str]


def compare(
    models: Mapping[str, Model] | Sequence[Model],
    texts: Mapping[str, Text] | Sequence[Text] | Text,
    *,
    preset: str | Effort | None = None,
    tolerance: float | None = None,
    over: Over = "auto",
    resamples: int = 10_000,
    seed: int = 0,
    progress: Callable[[str, int, int], object] = lambda name, done, total: None,
    **settings: Unpack[LoadKeywords],
) -> Comparison:
    """Return bits a byte of several models, and of their differences, with 95 % intervals.

    Models that are given by name are loaded one after another, and let go: only one of them need
    fit at a time. A long text is scored in pieces (`tokens.pieces`).

    Args:
        models: names, folders, files, or `CharLM` objects; a mapping gives them other names.
        texts: one, or several, each scored by itself; a mapping gives them names.
        preset, tolerance: how much to spend, as in `CharLM.score`; the same for all models.
        over: what is drawn again for the intervals: whole "texts", or "blocks" of bytes within
            each; "auto" takes texts if there are 20 or more.
        resamples: how often.
        seed: of the draws.
        progress: called with a model's name, how many bytes it has scored, and of how many.
        settings: `device`, `dtype` and the like, as in `charwise.load`, of the models that are
            given by name.

    Raises:
        SettingError: fewer than one model, two of one name, no text, an empty one, or an option
            that is none.
        ModelError: a model that is not there; before any is loaded.
        ZeroProbabilityError, VocabularyError: which model cannot write which text.

    >>> found = compare(["embedded"], ["import os\\n", "import sys\\n"], resamples=100)
    >>> found.models[0].name, found.bytes
    ('embedded', 21)
    """
    named, data = _named(models), _texts(texts)
    if not isinstance(over, str) or over not in ("auto", "texts", "blocks"):
        raise SettingError(f"over is {shown(over)}: choose 'auto', 'texts' or 'blocks'.")
    check_count("resamples", resamples, 1)
    check_count("seed", seed, 0)
    given = preset is not None or tolerance is not None
    effort = effort_of(preset if given else "default", tolerance)
    for model in named.values():
        if not isinstance(model, CharLM):
            read_vocabulary(
                os.fspath(model),
                revision=settings.get("revision"),
                trust_remote_code=settings.get("trust_remote_code", False),
            )
    found: dict[str, _Read] = {}
    for name, model in named.items():
        lm = model if isinstance(model, CharLM) else load(model, **settings)
        found[name] = _read(lm, name, data, effort, progress)
        del lm
        gc.collect()  # an engine and its model hold each other
    if over == "auto":
        over = "texts" if len(data) >= 20 else "blocks"
    what = f"tolerance {tolerance:g}" if tolerance is not None else f"preset {preset or 'default'}"
    return _compared(found, data, over, resamples, seed, what)


def _compared(
    found: dict[str, _Read],
    texts: dict[str, bytes],
    over: Literal["texts", "blocks"],
    resamples: int,
    seed: int,
    effort: str,
) -> Comparison:
    """Return means and intervals, all columns drawn together."""
    names = list(found)
    pairs = [(a, b) for n, b in enumerate(names) for a in names[:n]]
    columns = [found[name].bits for name in names]
    columns += [found[a].bits - found[b].bits for a, b in pairs]
    edges = np.cumsum([len(text) for text in texts.values()])[:-1]
    series = np.split(np.column_stack(columns), edges)
    drawn = (by_texts if over == "texts" else by_blocks)(series, resamples, seed)
    means = iter(drawn.means)
    measured = tuple(
        Measured(
            name,
            next(means),
            float(read.errors.mean()),
            read.contexts,
            read.info,
            read.bits,
            read.errors,
        )
        for name, read in found.items()
    )
    differences = tuple(
        Difference(a, b, next(means), float((found[a].errors + found[b].errors).mean()))
        for a, b in pairs
    )
    return Comparison(
        measured,
        differences,
        texts,
        over,
        drawn.units,
        drawn.lengths,
        resamples,
        seed,
        effort,
    )


def _read(
    lm: CharLM,
    name: str,
    texts: dict[str, bytes],
    effort: Effort,
    progress: Callable[[str, int, int], object],
) -> _Read:
    """Score all texts with a model, a few pieces at a time.

    Raises:
        ZeroProbabilityError, VocabularyError: which model, which text.
    """
    bits, errors = list[Floats](), list[Floats]()
    contexts, done = 0, 0
    total = sum(map(len, texts.values()))
    for batch in _batches(texts):
        progress(name, done, total)
        parts, contexts_of = [part for _, part, _ in batch], [before for _, _, before in batch]
        try:
            scores = lm.scores(parts, contexts=contexts_of, preset=effort)
        except CharwiseError as error:
            which = ", ".join(dict.fromkeys(text for text, _, _ in batch))
            error.args = (f"the model {name} cannot score {which}: {error}", *error.args[1:])
            raise
        for score in scores:
            bits.append(-score.logprobs / math.log(2))
            errors.append(score.error / math.log(2))
            contexts += score.contexts
        done += sum(map(len, parts))
    progress(name, done, total)
    return _Read(np.concatenate(bits), np.concatenate(errors), contexts, lm.info())


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


def _named(models: Any) -> dict[str, Model]:
    """The models by the names that tables show: the last part of a path, numbered if need be."""
    if isinstance(models, Mapping):
        found = {str(name): model for name, model in models.items()}
    else:
        listed = None if isinstance(models, str | bytes) else items(models)
        if listed is None:
            raise SettingError(f"models are a list, not {shown(models)}: put one into a list.")
        found = {}
        for model in listed:
            name = base = _name_of(model)
            number = 1
            while name in found:
                number += 1
                name = f"{base} ({number})"
            found[name] = model
    for model in found.values():
        if not isinstance(model, str | os.PathLike | CharLM):
            raise SettingError(
                f"a model is a name, a folder, a file or a CharLM, not {shown(model)}."
            )
    if not found:
        raise SettingError("there is no model to compare: give two or more.")
    return found


def _name_of(model: Any) -> str:
    if isinstance(model, str | os.PathLike):
        return Path(os.fspath(model)).name or str(model)
    return "a model"


def _texts(texts: Any) -> dict[str, bytes]:
    """The texts by name.

    Raises:
        SettingError: none, or an empty one.
    """
    if isinstance(texts, str | bytes):
        texts = {"the text": texts}
    if not isinstance(texts, Mapping):
        listed = items(texts)
        if listed is None:
            raise SettingError(f"texts are a list of texts, not {shown(texts)}.")
        texts = {f"text {n}": text for n, text in enumerate(listed, 1)}
    found = {str(name): to_bytes(text) for name, text in texts.items()}
    if not found:
        raise SettingError("there is no text to compare the models on.")
    for name, text in found.items():
        if not text:
            raise SettingError(f"{name} is empty: there is nothing to compare the models on.")
    return found
