"""Completions: texts after a prompt, drawn or weighed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import Constraint
from charwise.cursor.distributions import NextBytes
from charwise.errors import ConstraintError
from charwise.tokens.utf8 import decoder_after, pending


class Placed(Protocol):
    """A state, as far as a text after it goes."""

    @property
    def raw(self) -> bytes: ...
    @property
    def exact_from(self) -> int: ...


class Bytewise(Placed, Protocol):
    """A state, as far as going on from it byte by byte goes."""

    def next(self) -> NextBytes: ...
    def __add__(self, more: bytes, /) -> Self: ...


@dataclass(frozen=True)
class Completion:
    """A text after a prompt.

    Attributes:
        text: the completion, without the prompt and without the stop string. A character that
            the prompt began is in it whole.
        raw: its bytes, of which `text` shows what is valid UTF-8.
        logprob: log-probability of the tokens drawn, given the prompt's characters, at
            temperature 1 and without truncation, nats.
        token_ids: the tokens drawn, from `exact_from` on: the covering's member, then the rest.
        exact_from: offset in the prompt, in bytes, before which only its canonical tokenization
            is conditioned on.
        finish: "end" (end of text), "stop" (a stop string), "length", "window", "time",
            "cancelled", "constraint" (nothing more may follow) or "dead end" (nothing that may
            follow has a token, or any probability). Under a JSON schema, "end", "stop" and
            "constraint" say that the text is valid.
        drawn: bytes that the tokens drawn add to the prompt, what `text` leaves off included; the
            end of text counts as one.

    >>> import charwise
    >>> completion = charwise.load().complete("import nump", max_new_bytes=1)[0]
    >>> completion.text, completion.exact_from, completion.finish
    ('y', 0, 'length')
    """

    text: str
    raw: bytes
    logprob: float
    token_ids: list[int]
    exact_from: int
    finish: str
    drawn: int

    @property
    def bits_per_byte(self) -> float:
        """The surprisal of the completion for each of its bytes: comparable across lengths.

        0 if nothing was drawn.
        """
        return -self.logprob / math.log(2) / self.drawn if self.drawn else 0.0


class Weighted(list[Completion]):
    """Completions that satisfy a constraint, the heaviest first, with their weights.

    The `logprob` of a completion is that of its text where sets are added up. Of one that was
    sampled it is that of its tokenizations that were drawn. There are no `token_ids`: weights are
    those of texts.

    Attributes:
        weights: `[n]` p(completion | prompt, C), or the estimate of it.
        logprob: log p(C | prompt), nats, or the log of the unbiased estimate of it.
        effective: effective sample size, (Σ w)² / Σ w²; infinite where nothing was sampled.

    >>> import math
    >>> Weighted([], np.zeros(0), logprob=-1.0, effective=math.inf).logprob
    -1.0
    """

    def __init__(
        self,
        found: Iterable[Completion],
        weights: NDArray[np.float64],
        *,
        logprob: float,
        effective: float,
    ) -> None:
        super().__init__(found)
        self.weights, self.logprob, self.effective = weights, logprob, effective


def weighed_text(state: Placed, raw: bytes, finish: str, logprob: float) -> Completion:
    """A text after a state, without its tokens.

    >>> import charwise
    >>> weighed_text(charwise.load().state("x = "), b"1", "end", -2.0).drawn
    2
    """
    text = decoder_after(state.raw).decode(raw, final=True)
    drawn = len(raw) + (finish == "end")
    return Completion(text, raw, logprob, [], state.exact_from, finish, drawn)


def whole_characters(before: bytes, raw: bytes) -> bytes:
    """A text that was cut, without the character that the cut is in, after other bytes.

    >>> whole_characters(b"", b"a\\xc3"), whole_characters(b"\\xf0\\x9f", b"\\x98")
    (b'a', b'')
    """
    return raw[: max(0, len(raw) - len(pending(before[-3:] + raw)))]


def most_probable(completions: list[Completion]) -> list[Completion]:
    """Completions without those of equal bytes, the most probable for its length first.

    >>> worse, better = (Completion("a", b"a", log, [], 0, "end", 2) for log in (-2.0, -1.0))
    >>> [one.logprob for one in most_probable([worse, better])]
    [-1.0]
    """
    best: dict[bytes, Completion] = {}
    for completion in sorted(completions, key=lambda one: one.bits_per_byte):
        best.setdefault(completion.raw, completion)
    return list(best.values())


def check_begins(raw: bytes, constraint: Constraint) -> None:
    """Refuse a constraint on whole characters after a text that ends inside of one.

    Raises:
        ConstraintError: what the text ends with.
    """
    begun = pending(raw)
    if begun and constraint.characters:
        raise ConstraintError(
            f"the text ends inside a character ({begun!r}), and the constraint begins with a whole "
            "one: give whole characters, or choices(…), which may be any bytes."
        )
