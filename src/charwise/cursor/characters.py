"""Unicode characters out of bytes: sums along the UTF-8 tree, and draws one at a time."""

from __future__ import annotations

import codecs
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from charwise.cursor.distributions import EOS, NextBytes, NextChars
from charwise.cursor.sampling import Sampling, draw_tokens
from charwise.errors import SettingError, ZeroProbabilityError

if TYPE_CHECKING:
    from charwise.cursor.state import State


def pending(text: bytes) -> bytes:
    """The bytes of the character that a text ends inside of; empty if it ends between two.

    >>> pending("naï".encode()[:-1]), pending("naï".encode())
    (b'\\xc3', b'')
    """
    for size in range(1, min(4, len(text) + 1)):
        start = text[len(text) - size :]
        if _needs(start) > 0:
            return start
        if start[0] & 0xC0 != 0x80:
            break
    return b""


def _needs(start: bytes) -> int:
    """How many bytes a character's start still needs; −1 if no character starts so."""
    try:
        start.decode("utf-8")
        return 0 if len(start) else -1
    except UnicodeDecodeError as error:
        # "unexpected end of data" is how the decoder calls a correct but incomplete start.
        if error.reason != "unexpected end of data" or error.start != 0:
            return -1
    lead = start[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return length - len(start)


def next_chars(state: State, coverage: float = 0.99) -> NextChars:
    """The body of `State.next_chars`: best-first search down the UTF-8 tree."""
    if not 0 < coverage <= 1:
        raise SettingError(f"coverage is {coverage}: it must lie in (0, 1].")
    begun = pending(state.text)
    listed: dict[str, float] = {}
    eos = held = 0.0
    # Entries: (−probability, bytes so far); probability bounds what is below.
    heap = [(-1.0, begun)]
    states = {begun: state}
    first = True
    while heap and held < coverage:
        negative, start = heapq.heappop(heap)
        if start and not first and _needs(start) == 0:
            listed[start.decode()] = -negative
            held -= negative
            continue
        first = False
        if start not in states:
            try:
                states[start] = states[start[:-1]] + start[-1:]
            except ZeroProbabilityError:
                continue
        probs = states[start].next().probs * -negative
        if start == begun:
            eos = float(probs[EOS])
            held += eos
        for byte in range(256):
            longer = start + bytes([byte])
            if probs[byte] > 0 and _needs(longer) >= 0:
                heapq.heappush(heap, (-float(probs[byte]), longer))
    return NextChars(listed, eos, max(0.0, 1.0 - held * (1.0 - state.missing)))


@dataclass(frozen=True)
class Drawn:
    """One character drawn byte by byte, and the distribution of each of its bytes.

    `character` is "" at the end of text.
    """

    character: str
    distributions: list[NextBytes]


def characters(
    state: State, *, max_new_bytes: int = 64, sampling: Sampling | None = None
) -> Iterator[Drawn]:
    """A completion a character at a time, each with the distributions it was drawn from.

    Slower than `complete`, which draws tokens, but with the same result in distribution, for
    callers who look at every distribution. `top_k` and `top_p` apply to bytes.
    """
    sampling = sampling or Sampling()
    if max_new_bytes < 0:
        raise SettingError(f"max_new_bytes is {max_new_bytes}: it must be 0 or more.")
    rng = np.random.default_rng(sampling.seed)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(pending(state.text))  # a character that the prompt began is returned whole
    seen: list[NextBytes] = []
    for _ in range(max_new_bytes):
        distribution = state.next()
        seen.append(distribution)
        code = _draw_byte(distribution, sampling, rng)
        if code == EOS:
            yield Drawn(decoder.decode(b"", final=True), seen)
            return
        text = decoder.decode(bytes([code]))
        if text:
            yield Drawn(text, seen)
            seen = []
        state = state + bytes([code])


def _draw_byte(distribution: NextBytes, sampling: Sampling, rng: np.random.Generator) -> int:
    probs = distribution.probs
    if sampling.temperature == 0:
        return int(probs.argmax())
    scores = torch.from_numpy(distribution.logprobs)[None]
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return int(draw_tokens(scores, sampling, generator)[0])
