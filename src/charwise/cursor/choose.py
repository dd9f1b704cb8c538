"""The posterior over a list of continuations: →p(prompt · choice) for each, in common batches.

The choices are known texts after the prompt, so they are branches of its token tree: their rounds
go side by side, and the tokens that several begin with are evaluated once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import choices as choices_of
from charwise.coverings.bundles import log_sum
from charwise.cursor.options import Limit
from charwise.cursor.shared_tree import Cursor, SharedTree
from charwise.errors import (
    LimitError,
    SettingError,
    VocabularyError,
    check_count,
    impossible,
    items,
    quote,
)
from charwise.scoring.rounds import Refinement, refine
from charwise.tokens.canonical import to_bytes
from charwise.tokens.known_text import KnownText
from charwise.tokens.stops import Stops, StopStrings


@dataclass(frozen=True, eq=False)
class ChoicePosterior:
    """The choices with their probabilities, in the order in which they were given.

    Attributes:
        raw: the choices, as bytes.
        logprobs: `[n]` log p(choice, and its end | prompt), nats; −inf for what cannot be.
        error: `[n]` by how much each may be off, nats: an estimate, as `Score.error` is.

    >>> chosen = ChoicePosterior((b"yes", b"no"), np.log([0.3, 0.1]), np.zeros(2))
    >>> chosen.top(1)[0][0], chosen.probs.round(9).tolist(), round(chosen.other, 9)
    ('yes', [0.75, 0.25], 0.6)
    """

    raw: tuple[bytes, ...]
    logprobs: NDArray[np.float64]
    error: NDArray[np.float64]

    @classmethod
    def of(
        cls, state: Cursor, choices: Iterable[str | bytes], stop: StopStrings, ended: bool
    ) -> ChoicePosterior:
        """The posterior over continuations of a text; see `CharLM.choose`."""
        stops = Stops(stop).strings
        raw = _checked(choices, bool(stops) or ended)
        if stops and ended:
            raise SettingError(
                "choices end with a stop string or with the text: give one of the two."
            )
        _refuse_beginnings(stops, "stop string")
        # Each choice with each of its ends.
        texts = [choice + end for choice in raw for end in stops or (b"",)]
        sums = text_logprobs(state, texts, ended)
        assert sums is not None
        logs, errors = (np.reshape(each, (len(raw), -1)) for each in sums)
        logprobs = np.minimum([log_sum(row) for row in logs.tolist()], 0.0)
        if not np.isfinite(logprobs).any():
            raise impossible(state.whole + texts[0])
        return cls(raw, logprobs, errors.max(axis=1))

    @property
    def texts(self) -> list[str]:
        """The choices; bytes that are no part of a character as `\\xNN`."""
        return [choice.decode("utf-8", "backslashreplace") for choice in self.raw]

    @property
    def probs(self) -> NDArray[np.float64]:
        """The p(choice | prompt, one of the choices), `[n]`; they sum to 1."""
        shares = np.exp(self.logprobs - log_sum(self.logprobs.tolist()))
        return np.asarray(shares / shares.sum())

    @property
    def other(self) -> float:
        """The probability p(none of the choices | prompt)."""
        return max(0.0, 1.0 - math.exp(log_sum(self.logprobs.tolist())))

    def top(self, k: int) -> list[tuple[str, float]]:
        """The k most probable, with their share among the choices."""
        check_count("k", k, 0)
        order = np.argsort(-self.probs, kind="stable")[:k].tolist()
        return [(self.texts[at], float(self.probs[at])) for at in order]


def _checked(choices: Iterable[str | bytes], ends: bool) -> tuple[bytes, ...]:
    """The choices as bytes, each once; without an end none may begin another."""
    listed = items(choices)
    strings = choices_of(choices if listed is None else listed).suffixes  # or refused there
    raw = tuple(map(to_bytes, listed or ()))
    if len(strings) < len(raw):
        twice = next(one for n, one in enumerate(raw) if one in raw[:n])
        raise SettingError(f"{quote(twice)} is among the choices twice: give each once.")
    if not ends:
        _refuse_beginnings(strings, "choice")
    return raw


def _refuse_beginnings(strings: Sequence[bytes], what: str) -> None:
    """Refuse strings of which one begins another."""
    for one, other in pairwise(sorted(strings)):
        if other.startswith(one):
            raise SettingError(
                f"the {what} {quote(one)} begins {quote(other)}, so that a text may go on with "
                "both. Say how choices end, with stop=… or ended=True."
                if what == "choice"
                else f"the {what} {quote(one)} begins {quote(other)}: leave out the longer one."
            )


def text_logprobs(
    state: Cursor, texts: Sequence[bytes], ended: bool, limit: Limit | None = None
) -> tuple[list[float], list[float]] | None:
    """log p(text | the text so far) of several texts, and by how much each may be off, nats.

    With `ended` the end of the text comes after each. None if the limit is reached between two
    batches. A text that does not fit the window is a `LimitError`.
    """
    shared, base = state.shared, state.whole[state.shared.start :]
    logs, errors = [-math.inf] * len(texts), [0.0] * len(texts)
    before = list[float]()
    for pack in _packs(shared, base, texts):
        if limit is not None and limit.reached():
            return None
        with shared.lock:
            size = shared.tree.size
            works = [
                Refinement(
                    shared.tree,
                    KnownText.of(base + text, shared.index),
                    canonical,
                    state.effort,
                    through=ended,
                    max_depth=shared.room,
                    shared=True,
                )
                for text, canonical in ((texts[number], ids) for number, ids in pack.items())
            ]
            try:
                refine(works)
            finally:
                shared.drop(range(size, shared.tree.size))
        for number, work in zip(pack, works, strict=True):
            lattice = work.lattice
            end = lattice.end_logprob() if ended and lattice.reached else 0.0
            logs[number] = float(lattice.log_prefix[-1]) + end
            errors[number] = float(work.error[len(base) + 1 :].sum())
            before.append(float(lattice.log_prefix[len(base)]))
    return [log - max(before) if before else log for log in logs], errors


def _packs(shared: SharedTree, base: bytes, texts: Sequence[bytes]) -> list[dict[int, list[int]]]:
    """The texts that some token string spells: numbers and canonical tokens, as go side by side."""
    packs: list[dict[int, list[int]]] = [{}]
    # Canonical tokens side by side; their log-probabilities, of some 8 contexts each, are retained.
    most = min(128, 2**28 // (4 * 8 * shared.index.vocabulary.width))
    for number, text in enumerate(texts):
        try:
            canonical = shared.index.vocabulary.encode_beginning(base + text)
        except VocabularyError:
            continue  # of probability zero
        if shared.room is not None and len(canonical) > shared.room:
            raise LimitError(
                f"the choice {text[:20]!r} needs {len(canonical)} tokens after the prompt, and "
                f"the model's window leaves {shared.room}. Shorten the prompt or the choice."
            )
        if packs[-1] and sum(map(len, packs[-1].values())) + len(canonical) > most:
            packs.append({})
        packs[-1][number] = canonical
    return packs
