"""Completions that are valid as a whole: those that are not are drawn again.

A constraint says at each step what may follow. A JSON schema has a check of the whole text as
well (`constraints/validity.py`), which some finished texts fail: they lead into a dead end. Texts
that are sampled are then drawn anew, from the beginning, so that those kept have the probabilities
that they had among the valid ones.

Where the likeliest text is searched for, the next candidate is taken. Each step takes the likeliest
beginning that was not gone on with, and goes on greedily, byte by byte. The bytes that came second
on the way are new beginnings. A text that fails its check says from which of its bytes on nothing
can be valid: all beginnings with these bytes are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from charwise.constraints.constraint import END, Constraint, closed
from charwise.constraints.validity import Fault, fault_of, has_check
from charwise.cursor.completion import (
    Bytewise,
    Completion,
    most_probable,
    weighed_text,
    whole_characters,
)
from charwise.cursor.distributions import EOS
from charwise.cursor.options import GenerationOptions, Limit
from charwise.errors import ConstraintError, ZeroProbabilityError, shown
from charwise.tokens.stops import Stops

#: Draws completions as the options say.
Draw = Callable[[GenerationOptions], list[Completion]]


def valid(
    draw: Draw, state: Bytewise, options: GenerationOptions, limit: Limit
) -> list[Completion]:
    """Completions, none of which fails the check of its constraint.

    Args:
        draw: draws completions under the constraint, which may fail it.
        state: the text that they go on with.
        options: how they are drawn. Progress is told of the first draws only.
        limit: when to end the search.

    Raises:
        ConstraintError: if no valid text is found.

    >>> import charwise
    >>> from charwise.constraints import json_schema
    >>> lm, even = charwise.load(), json_schema({"enum": [1, 2], "multipleOf": 2})
    >>> [one] = lm.complete("x = ", constraint=even)
    >>> one.text, one.finish
    ('2', 'constraint')
    """
    constraint = options.constraint
    found = draw(options)
    failed = [place for place, one in enumerate(found) if _failure(constraint, one)]
    if not failed or constraint is None:
        return found
    if not options.temperature:
        kept = [one for place, one in enumerate(found) if place not in failed]
        others = _candidates(state, constraint, options, limit)
        searched = _searched(kept, options.n - len(kept), others)
        if not searched:
            raise _none(found[failed[-1]], _failure(constraint, found[failed[-1]]))
        return most_probable(searched)
    last, since, at_once = found[failed[-1]], len(failed), 1
    rng = np.random.default_rng(options.seed)
    while failed:
        if since > 1000:  # draws after the last valid text
            raise _none(last, _failure(constraint, last))
        count = min(len(failed) * at_once, max(len(failed), 64))
        seed = int(rng.integers(2**62))
        for one in draw(replace(options, n=count, seed=seed, progress=None)):
            since += 1
            if _failure(constraint, one):
                last = one
            elif failed:
                found[failed.pop(0)], since = one, 0
        at_once *= 2
    return found


def _failure(constraint: Constraint | None, completion: Completion) -> Fault | None:
    """Why a completion that is over fails the check of its constraint; None if it does not.

    One that was cut, by its length or by the time, is not over.
    """
    if constraint is None or not has_check(constraint):
        return None
    if completion.finish not in ("stop", "dead end"):
        return None
    return fault_of(constraint.after(completion.raw))


def _searched(
    kept: list[Completion], missing: int, candidates: Iterator[Completion]
) -> list[Completion]:
    """Completions with so many candidates more; those that were cut only if there are no others."""
    known = {one.raw for one in kept}
    cut: list[Completion] = []
    for one in candidates:
        if one.raw in known:
            continue
        known.add(one.raw)
        (cut if one.finish == "length" else kept).append(one)
        missing -= one.finish != "length"
        if not missing:
            break
    return kept + cut[:missing]


def _candidates(
    state: Bytewise, constraint: Constraint, options: GenerationOptions, limit: Limit
) -> Iterator[Completion]:
    """Texts that satisfy a constraint, or were cut at their length, likely ones first."""
    search = _Search(state, constraint, options, limit)
    for _ in range(100):  # beginnings that are gone on with
        if not search.heap:
            return
        found = search.step()
        if found is not None:
            yield found
            if found.finish in ("time", "cancelled"):
                return


class _Search:
    """Beginnings that wait, the likeliest first."""

    def __init__(
        self, state: Bytewise, constraint: Constraint, options: GenerationOptions, limit: Limit
    ) -> None:
        self.state, self.constraint, self.limit = state, constraint, limit
        self.most, self.stops = options.max_new_bytes, Stops(options.stop)
        self.heap: list[tuple[float, int, bytes, bool]] = [(0.0, 0, b"", False)]
        self.pushed = 0

    def step(self) -> Completion | None:
        """Go on with the likeliest beginning; the text that it leads to, if that is valid."""
        cost, _, raw, ended = heapq.heappop(self.heap)
        try:
            here, left = self.state + raw, self.constraint.after(raw)
            while not ended:
                finish, raw = self._finish(raw, left)
                if finish:
                    return None if finish == "dead end" else self._text(raw, finish, cost)
                logs = np.where(left.allowed(), here.next().logprobs, -np.inf)
                # The best byte, and those that are kept as other ways to go on.
                codes = np.argsort(-logs, kind="stable")[:9].tolist()
                best, *others = [code for code in codes if logs[code] > -np.inf] or [None]
                if best is None:
                    return None
                for code in others:
                    self._push(cost - float(logs[code]), raw, code)
                cost, ended = cost - float(logs[best]), best == EOS
                if not ended:
                    byte = bytes([best])
                    raw, here, left = raw + byte, here + byte, left.after(byte)
        except ZeroProbabilityError:
            return None
        return self._text(raw, "end", cost)

    def _finish(self, raw: bytes, left: Constraint) -> tuple[str, bytes]:
        """Why a text ends here ("" if it goes on), and the part that is kept."""
        match = self.stops.first(raw)
        if match is not None:
            valid = fault_of(self.constraint.after(raw[: match[0]])) is None
            return ("stop" if valid else "dead end"), raw[: match[0]]
        if len(raw) >= self.most:
            return "length", whole_characters(self.state.raw, raw)
        if closed(left):
            if left.allowed()[END]:
                return "constraint", raw
            fault = fault_of(left)
            self._leave_out(raw if fault is None else raw[: fault.dead])
            return "dead end", raw
        return self.limit.reached(), raw

    def _push(self, cost: float, raw: bytes, code: int) -> None:
        ended = code == EOS
        beginning = raw if ended else raw + bytes([code])
        self.pushed += 1
        heapq.heappush(self.heap, (cost, self.pushed, beginning, ended))

    def _leave_out(self, beginning: bytes) -> None:
        """Drop the texts that begin with these bytes."""
        self.heap = [entry for entry in self.heap if not entry[2].startswith(beginning)]
        heapq.heapify(self.heap)

    def _text(self, raw: bytes, finish: str, cost: float) -> Completion:
        return weighed_text(self.state, raw, finish, -cost)


def _none(last: Completion, fault: Fault | None) -> ConstraintError:
    why = fault.why if fault else "it is not complete"
    return ConstraintError(
        f"no text that was drawn is valid JSON of the schema. The last was {shown(last.text)}: "
        f"{why}. Loosen the schema, or show the model an example in the prompt."
    )
