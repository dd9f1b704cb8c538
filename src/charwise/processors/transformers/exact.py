"""Exact healing in transformers: a member of each forced text's covering, before `generate` runs.

The kept ids of all prompts are evaluated once. What a covering asks of them, a few
contexts at a time, is one call for each batch, on copies of their cache. Where the model has
another kind of cache than keys and values, every call reads the kept ids again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from charwise.boundary import Members, boundary_covering
from charwise.coverings.covering import Query
from charwise.errors import SettingError, VocabularyError
from charwise.healing import Cut
from charwise.processors.transformers.arguments import cache_name_of, filler_of, left_padded
from charwise.tokens.index import SortedVocabulary


class _Sampling(NamedTuple):
    """The way in which `generate` changes a step's probabilities, and its number of texts.

    >>> _Sampling(0.0).copies
    1
    """

    temperature: float
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    copies: int = 1


def sampling_of(model: Any, given: dict[str, Any]) -> _Sampling:
    """How members are to be chosen, and how many for each prompt, by the arguments of `generate`.

    Raises:
        SettingError: a search over several texts at once.
    """
    defaults: dict[str, Any] = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1}
    defaults |= {"temperature": 1.0, "top_k": 50, "top_p": None, "min_p": None}  # transformers'
    configs = (given.get("generation_config"), model.generation_config)
    values = {}
    for name, default in defaults.items():
        sources = [given.get(name), *(getattr(config, name, None) for config in configs)]
        values[name] = next((value for value in sources if value is not None), default)
    if values["num_beams"] != 1:
        raise SettingError(
            "method='exact' draws a member or takes the best, and beams are for neither: leave "
            "num_beams out, or use method='mask'."
        )
    if not values["do_sample"]:
        if values["num_return_sequences"] != 1:
            raise SettingError("num_return_sequences needs do_sample=True: the best is one.")
        return _Sampling(0.0)
    names = ("temperature", "top_k", "top_p", "min_p")
    chosen = {name: values[name] for name in names}
    return _Sampling(**chosen, copies=values["num_return_sequences"])


class Begun(NamedTuple):
    """The first tokens after each prompt's kept ids, and the cache of those ids if it can be used.

    >>> Begun([[3, 4]], None).tokens
    [[3, 4]]
    """

    tokens: list[list[int]]  # one list for each row of `generate`
    cache: Any


def begin(
    model: Any,
    index: SortedVocabulary,
    cuts: Sequence[Cut],
    sampling: _Sampling,
    window: int | None,
) -> Begun:
    """Choose members for each cut prompt; nothing for those that gave nothing back.

    Random numbers are torch's, of the CPU, so its seed decides.

    Raises:
        VocabularyError: the members of some prompt cannot be found; see `boundary.Members`.
    """
    copies = sampling.copies
    healed = [at for at, each in enumerate(cuts) if each.forced]
    if not healed:
        return Begun([[] for _ in cuts for _ in range(copies)], None)
    coverings = {}
    for at in healed:
        room = None if window is None else window - 1 - len(cuts[at].kept)
        coverings[at] = boundary_covering(index, cuts[at].forced, room=room)
    with torch.no_grad():
        kept = _Kept(model, [each.kept for each in cuts], filler_of(index.vocabulary, model))
        while asked := [(at, q) for at, s in coverings.items() for q in s.queries()]:
            for at, query, logprobs in kept.answers(asked):
                coverings[at].answer(query.context, logprobs)
    tokens: list[list[int]] = []
    for at in range(len(cuts)):
        if at in coverings:
            tokens += _chosen(Members(coverings[at]), sampling)
        else:
            tokens += [[]] * copies
    return Begun(tokens, kept.cache_for(tokens, copies))


def _chosen(members: Members, sampling: _Sampling) -> list[list[int]]:
    options = sampling._asdict()
    drawn = torch.rand(options.pop("copies")).double().tolist()
    return [list(ids) for ids in members.draw(members.weights(**options), drawn)]


class _Kept:
    """The evaluated kept ids of a batch of prompts.

    Args:
        model: of transformers.
        kept: ids of each prompt.
        filler: an id to pad with.
    """

    def __init__(self, model: Any, kept: Sequence[list[int]], filler: int) -> None:
        self._model, self._filler = model, filler
        self._takes = set(inspect.signature(model.forward).parameters)
        self._cache_name = cache_name_of(model)
        self._ids, self._mask = left_padded(kept, filler)  # [prompts, longest]
        output = self._call(self._ids, self._mask, None, last=1)
        self._first = output.logits[:, -1]  # [prompts, width]
        self._cache = _copied(getattr(output, self._cache_name, None))

    def answers(
        self, asked: Sequence[tuple[int, Query]]
    ) -> list[tuple[int, Query, np.ndarray[Any, np.dtype[np.float64]]]]:
        """Return answers to queries after each prompt; the prompt's number comes first."""
        found = []
        for first in range(0, len(asked), 16):  # each with a copy of the cache
            some = asked[first : first + 16]
            rows = self._logits([(at, query.context) for at, query in some])
            for (at, query), logits in zip(some, rows, strict=True):
                logs = logits.double() if logits.device.type != "mps" else logits.float()
                logs = logs[torch.from_numpy(query.ids.copy()).to(logs.device)] - logs.logsumexp(-1)
                if logs.isnan().any():
                    raise VocabularyError(
                        "the model's logits are not numbers here: load it in bfloat16 or float32."
                    )
                found.append((at, query, logs.cpu().numpy()))
        return found

    def _logits(self, contexts: Sequence[tuple[int, tuple[int, ...]]]) -> list[torch.Tensor]:
        """`[width]` of each context (prompt, tokens after it)."""
        rows: list[torch.Tensor | None] = [
            None if tokens else self._first[at] for at, tokens in contexts
        ]
        wanted = [n for n, row in enumerate(rows) if row is None]
        if wanted:
            some = [contexts[n] for n in wanted]
            for n, row in zip(wanted, self._after(some), strict=True):
                rows[n] = row
        return [row for row in rows if row is not None]

    def _after(self, contexts: Sequence[tuple[int, tuple[int, ...]]]) -> list[torch.Tensor]:
        """The logits after contexts that have tokens: one call."""
        longest = max(len(tokens) for _, tokens in contexts)
        fill = [longest - len(tokens) for _, tokens in contexts]
        prompts = torch.tensor([at for at, _ in contexts])
        new = [
            [*tokens, *[self._filler] * n] for (_, tokens), n in zip(contexts, fill, strict=True)
        ]
        seen = torch.tensor([[1] * (longest - n) + [0] * n for n in fill])
        mask = torch.cat((self._mask[prompts], seen), 1)
        ids = torch.tensor(new)
        cache = _copied(self._cache, prompts.to(self._model.device))
        if cache is None:
            ids = torch.cat((self._ids[prompts], ids), 1)
        logits = self._call(ids, mask, cache, last=longest).logits[:, -longest:]
        return [logits[row, longest - 1 - n] for row, n in enumerate(fill)]

    def _call(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, last: int) -> Any:
        given: dict[str, Any] = {"attention_mask": mask, "use_cache": True}
        if "position_ids" in self._takes:
            given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if "logits_to_keep" in self._takes:
            given["logits_to_keep"] = last
        device = self._model.device
        given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        if cache is not None:
            given[self._cache_name] = cache
        return self._model(input_ids=ids.to(device), **given)

    def cache_for(self, tokens: Sequence[list[int]], copies: int) -> Any:
        """The cache of the kept ids for each row of `generate`; None if the rows do not allow it.

        `generate` pads on the left, before the kept ids: they stay where they are only if as many
        tokens follow in every row.
        """
        if len({len(each) for each in tokens}) > 1:
            return None
        prompts = torch.arange(len(self._ids)).repeat_interleave(copies)
        return _copied(self._cache, prompts.to(self._model.device))


def _copied(cache: Any, rows: torch.Tensor | None = None) -> Any:
    """A copy of these rows of a cache, which can grow by itself; None of a kind not known."""
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    if type(cache) is not DynamicCache or any(type(each) not in known for each in cache.layers):
        return None
    copied = copy.copy(cache)  # tensors are shared until a layer grows, which makes new ones
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    if rows is not None:
        copied.batch_select_indices(rows)
    return copied
