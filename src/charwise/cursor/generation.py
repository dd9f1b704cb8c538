"""Conditional generation: samples from p(completion | the prompt's characters).

Vieira et al. 2025, §3.4 and Prop. 2: draw a member of the prompt's covering in proportion to its
prefix probability, then go on token by token, as the model always does. The member's last token
may run past the prompt, so there is no boundary at the cursor. docs/generation.md derives it, and
shows how masking (token healing) differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from charwise.constraints.constraint import Constraint, closed
from charwise.constraints.validity import fault_of, has_check
from charwise.cursor.distributions import EOS, NextBytes
from charwise.cursor.drafts import Bytewise, Completion, Drafts, Typed
from charwise.cursor.following import check_begins
from charwise.cursor.limit import Limit
from charwise.cursor.rejection import valid
from charwise.cursor.sampling import Sampling, draw_tokens
from charwise.errors import ConstraintError, SettingError, check_count, shown
from charwise.tokens.stops import StopStrings
from charwise.tokens.utf8 import decoder_after

#: Told how much is done, and of how much.
Report = Callable[[int, int], object]


def complete(
    state: Typed,
    *,
    n: int = 1,
    max_new_bytes: int = 64,
    stop: StopStrings = (),
    sampling: Sampling | None = None,
    limit: Limit | None = None,
    constraint: Constraint | None = None,
    progress: Report | None = None,
) -> list[Completion]:
    """n completions of a state's text; see `CharLM.complete`."""
    check_report(progress)
    sampling, limit = sampling or Sampling(), limit or Limit()
    told = progress

    def draw(count: int, sampling: Sampling) -> list[Completion]:
        nonlocal told
        generator = Drafts(state, count, max_new_bytes, stop, sampling, limit, constraint)
        try:
            while generator.active():
                generator.advance()
                if told is not None:
                    told(generator.done(), n * max_new_bytes)
            told = None  # what is drawn again is not counted
            return [generator.completion(draft) for draft in generator.drafts]
        finally:
            generator.close()

    completions = valid(
        draw,
        state,
        constraint,
        n=n,
        max_new_bytes=max_new_bytes,
        stop=stop,
        sampling=sampling,
        limit=limit,
    )
    return completions if sampling.temperature else most_probable(completions)


def check_report(progress: object) -> None:
    """Refuse a `progress` that cannot be called.

    Raises:
        SettingError: what was given.

    >>> check_report(print)
    """
    if progress is not None and not callable(progress):
        raise SettingError(f"progress is {shown(progress)}: give a function of (done, total).")


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


def stream(
    state: Typed,
    *,
    max_new_bytes: int = 64,
    stop: StopStrings = (),
    sampling: Sampling | None = None,
    limit: Limit | None = None,
    constraint: Constraint | None = None,
) -> Iterator[str]:
    """The pieces of one completion as they are drawn; no piece ends inside a character.

    Text that may turn out to begin a stop string is held back until that is known. Under a JSON
    schema all of it is, until it is known to be valid.
    """
    # What is wrong with the arguments is said here, not when the first piece is asked for.
    sampling, limit = sampling or Sampling(), limit or Limit()
    generator = Drafts(state, 1, max_new_bytes, stop, sampling, limit, constraint)
    if not has_check(constraint):
        return _pieces(generator)
    generator.close()
    return in_one_piece(
        lambda: complete(
            state,
            max_new_bytes=max_new_bytes,
            stop=stop,
            sampling=sampling,
            limit=limit,
            constraint=constraint,
        )
    )


def in_one_piece(draw: Callable[[], list[Completion]]) -> Iterator[str]:
    """The text of a completion that is checked as a whole, once it is valid.

    >>> list(in_one_piece(lambda: [Completion("a", b"a", -1.0, [], 0, "constraint", 1)]))
    ['a']
    """
    yield from (one.text for one in draw() if one.text)


def _pieces(generator: Drafts) -> Iterator[str]:
    draft = generator.drafts[0]
    decoder = decoder_after(generator.state.raw)
    exiting = sys.is_finalizing  # modules are gone by then
    sent = 0
    try:
        while True:
            done = not generator.active()
            end = len(generator.kept(draft)) if done else generator.safe(draft)
            piece = decoder.decode(generator.kept(draft)[sent:end])
            sent = max(sent, end)
            if piece:
                yield piece
            if done:
                return
            generator.advance()
    finally:
        if not exiting():
            generator.close()


@dataclass(frozen=True)
class Drawn:
    """One character drawn byte by byte, and the distribution of each of its bytes.

    `character` is "" at the end of text.
    """

    character: str
    distributions: list[NextBytes]


def characters(
    state: Bytewise,
    *,
    max_new_bytes: int = 64,
    sampling: Sampling | None = None,
    constraint: Constraint | None = None,
) -> Iterator[Drawn]:
    """A completion a character at a time, each with the distributions it was drawn from.

    Slower than `complete`, which draws tokens, but with the same result in distribution, for
    callers who look at every distribution. `top_k` and `top_p` apply to bytes.
    """
    check_count("max_new_bytes", max_new_bytes, 0)
    if constraint is not None:
        check_begins(state.raw, constraint)
    return _drawn(state, max_new_bytes, sampling or Sampling(), constraint)


def _drawn(
    state: Bytewise, max_new_bytes: int, sampling: Sampling, constraint: Constraint | None
) -> Iterator[Drawn]:
    rng = np.random.default_rng(sampling.seed)
    decoder = decoder_after(state.raw)
    seen: list[NextBytes] = []
    for _ in range(max_new_bytes):
        distribution = state.next()
        if constraint is not None:
            if closed(constraint):
                if fault := fault_of(constraint):
                    raise ConstraintError(
                        f"the characters drawn are no valid JSON of the schema: {fault.why}. "
                        "Draw again with another seed."
                    )
                return
            distribution = distribution.under(constraint)
        seen.append(distribution)
        code = draw_byte(distribution, sampling, rng)
        if code == EOS:
            yield Drawn(decoder.decode(b"", final=True), seen)
            return
        text = decoder.decode(bytes([code]))
        if text:
            yield Drawn(text, seen)
            seen = []
        state = state + bytes([code])
        if constraint is not None:
            constraint = constraint.after(bytes([code]))


def draw_byte(distribution: NextBytes, sampling: Sampling, rng: np.random.Generator) -> int:
    """A byte, or `EOS`, as `Sampling` says.

    >>> certain = NextBytes(np.eye(257)[100], missing=0.0)
    >>> draw_byte(certain, Sampling(temperature=1.0), np.random.default_rng(0))
    100
    """
    if sampling.temperature == 0:
        return int(distribution.probs.argmax())
    scores = torch.from_numpy(distribution.logprobs)[None]
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return int(draw_tokens(scores, sampling, generator)[0])
