"""Respelling: other tokens for what occurs again, tried at all its occurrences at once.

An unusual split of a word may cost nats where it occurs first and save more at each later
occurrence, since the model copies it. No share shows that at the first occurrence. So each stretch
of up to three tokens of the base path that occurs again is tried in its likeliest other spelling.
A trial is followed to its 1st, 2nd, 4th, … occurrence while its gain so far, and all that the base
path spends on the occurrences to come, is above 0. The trials that gain to the last occurrence are
applied together, and are the new base path if that is likelier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from charwise.scoring.contexts import Branch, Contexts

#: Most tokens of the base path that are respelled together.
SPAN = 3

#: Contexts that trials may take, for each token of the base path.
ROOM = 8


#: Most passes of trials: the second begins with the better base path of the first.
PASSES = 2


class Swap(NamedTuple):
    """Other tokens for the text between two boundaries of the base path.

    >>> Swap(0, 4, [7]).end
    4
    """

    begin: int
    end: int
    tokens: list[int]


class Trial(NamedTuple):
    """A respelling of a stretch at all its occurrences.

    >>> Trial(0.5, [Swap(0, 4, [7])], [7, 8], [1]).swaps[0].begin
    0
    """

    hope: float  # nats it may gain, if later occurrences cost nothing
    swaps: list[Swap]
    tokens: list[int]  # of the base path from the first swap on, respelled
    lengths: list[int]  # how many of them go to the end of each swap


def respell(
    contexts: Contexts,
    path: list[int],
    deepest: float,
    spent: Callable[[list[Branch]], bool] = lambda _: False,
) -> Generator[list[Branch], None, list[int]]:
    """Try other spellings of a base path; yields what to evaluate, and returns the better path.

    Args:
        contexts: the evaluated ones; those that are tried are added.
        path: contexts of the base path, each the child of the one before.
        deepest: most tokens after the root that fit the window.
        spent: whether a limit forbids to evaluate some branches.

    >>> import charwise
    >>> from charwise.coverings.rows import EvaluatedRows
    >>> from charwise.tokens.known_text import KnownText
    >>> lm = charwise.load()
    >>> rows = EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids)
    >>> contexts = Contexts(rows, KnownText.of(b"", lm.index))
    >>> list(respell(contexts, [0], 10))
    []
    """
    for _ in range(PASSES):
        better = yield from _race(contexts, path, deepest, spent)
        if better == path:
            break
        path = better
    return path


def _race(
    contexts: Contexts,
    path: list[int],
    deepest: float,
    spent: Callable[[list[Branch]], bool],
) -> Generator[list[Branch], None, list[int]]:
    """One pass of trials; returns the better path, or the same."""
    base, room = _Base(contexts, path), ROOM * (len(path) - 1)
    race, won = base.trials(), list[tuple[float, Trial]]()
    occurrences = 1
    while race:
        running = list[tuple[Trial, int, Branch]]()
        for trial in sorted(race, key=lambda trial: -trial.hope):
            done = min(occurrences, len(trial.swaps))
            length = trial.lengths[done - 1]
            before = trial.lengths[occurrences // 2 - 1] if occurrences > 1 else 0
            room -= length - before
            begin = base.context_at(trial.swaps[0].begin)
            if trial.hope <= 0 or room < 0 or contexts.depth[begin] + length > deepest:
                break
            running.append((trial, done, Branch(begin, trial.tokens[:length])))
        race = []
        if running:
            branches = [branch for _, _, branch in running]
            if spent(branches):
                return path
            yield branches
        for trial, done, branch in running:
            *_, last = contexts.follow(*branch)
            gain = float(contexts.log_p[last]) - base.log_p_at(trial.swaps[done - 1].end)
            if done < len(trial.swaps):
                race.append(trial._replace(hope=gain + base.spent_on(trial.swaps[done:])))
            elif gain > 0:
                won.append((gain, trial))
        occurrences *= 2
    taken, swaps = set[int](), list[Swap]()
    for _, trial in sorted(won, key=lambda one: -one[0]):
        for swap in trial.swaps:
            if taken.isdisjoint(range(swap.begin, swap.end)):
                taken.update(range(swap.begin, swap.end))
                swaps.append(swap)
    if not swaps:
        return path
    tokens, _ = base.respelled([Swap(base.begin, base.begin, []), *sorted(swaps)])
    if contexts.depth[path[0]] + len(tokens) > deepest:
        return path
    yield [Branch(path[0], tokens)]
    better = [path[0], *contexts.follow(path[0], tokens)]
    return better if contexts.log_p[better[-1]] > contexts.log_p[path[-1]] else path


class _Base:
    """The base path: its boundaries in the text, and its tokens between them."""

    def __init__(self, contexts: Contexts, path: Sequence[int]) -> None:
        self.contexts, self.path = contexts, path
        self.bounds: list[int] = contexts.position[list(path)].tolist()
        self.number = {at: n for n, at in enumerate(self.bounds)}
        self.begin = self.bounds[0]
        self._log_p: list[float] = contexts.log_p[list(path)].tolist()
        # (end, …) → token: the edges of a position spell the same tokens after every context.
        self._edges = [contexts.edges(context) for context in path]
        self.tokens = [
            self.token(at, end) or 0 for at, end in zip(self.bounds, self.bounds[1:], strict=False)
        ]

    def context_at(self, at: int) -> int:
        return self.path[self.number[at]]

    def log_p_at(self, at: int) -> float:
        return float(self.contexts.log_p[self.context_at(at)])

    def spent_on(self, swaps: Sequence[Swap]) -> float:
        """Nats that the base path spends on some stretches, each with the token after it."""
        spent, at = 0.0, 0
        for swap in swaps:
            at = max(at, self.number[swap.begin])
            end = min(self.number[swap.end] + 1, len(self.path) - 1)
            spent += self._log_p[at] - self._log_p[max(at, end)]
            at = end
        return spent

    def token(self, begin: int, end: int) -> int | None:
        """The token that is the text between two positions, or None."""
        found = self.contexts.known.index.twins(self.contexts.known.text[begin:end])
        return int(self.contexts.known.index.ids[found[0]]) if found[0] < found[1] else None

    def trials(self) -> list[Trial]:
        """The likeliest other spelling of each stretch, wherever the stretch occurs."""
        found = dict[tuple[bytes, int], list[Swap]]()
        text = self.contexts.known.text
        for n, begin in enumerate(self.bounds[:-1]):
            likely = sorted(self._edges[n], key=lambda edge: -edge[2])
            for stop in self.bounds[n + 1 : n + 1 + SPAN]:
                for _, end, _ in likely:
                    if end != self.bounds[n + 1] and end <= stop and self._joins(end, stop):
                        word = text[begin:stop].lstrip(b" ") or text[begin:stop]
                        if (word, stop - end) not in found:
                            found[word, stop - end] = self._occurrences(word, stop - end)
                        break
        # The first occurrence may keep its tokens: the model prefers others once it has seen those.
        return [
            self._trial(swaps[first:])
            for swaps in found.values()
            for first in (0, 1)
            if len(swaps) > 2 * first
        ]

    def _joins(self, end: int, stop: int) -> bool:
        return end == stop or self.token(end, stop) is not None

    def _trial(self, swaps: list[Swap]) -> Trial:
        first = swaps[0]
        edges = self._edges[self.number[first.begin]]
        mass = sum(mass for token, _, mass in edges if token == first.tokens[0])
        hope = math.log(max(mass, 1e-300)) + self.spent_on(swaps)
        return Trial(hope, swaps, *self.respelled(swaps))

    def _occurrences(self, word: bytes, cut: int) -> list[Swap]:
        """Where the base path can be respelled with a boundary `cut` bytes before a word's end."""
        text, found, at = self.contexts.known.text, list[Swap](), self.begin
        while (at := text.find(word, at, self.bounds[-1])) >= 0:
            begin, stop = at, at + len(word)
            at += 1
            if begin not in self.number and text[begin - 1 : begin] == b" ":
                begin -= 1
            if begin not in self.number or stop not in self.number or begin >= stop - cut:
                continue
            tokens = [self.token(begin, stop - cut)] + ([self.token(stop - cut, stop)] * bool(cut))
            now = self.tokens[self.number[begin] : self.number[stop]]
            if None not in tokens and tokens != now:
                found.append(Swap(begin, stop, [token for token in tokens if token is not None]))
                at = stop
        return found

    def respelled(self, swaps: Sequence[Swap]) -> tuple[list[int], list[int]]:
        """Respelled tokens from the first swap on, and how many of them go to each end."""
        at, tokens, counts = swaps[0].begin, list[int](), dict[int, int]()
        later = {swap.begin: swap for swap in swaps if swap.end > swap.begin}
        while at < self.bounds[-1]:
            swap = later.get(at)
            if swap is None:
                n = self.number[at]
                tokens.append(self.tokens[n])
                at = self.bounds[n + 1]
            else:
                tokens += swap.tokens
                at = swap.end
            counts[at] = len(tokens)
        return tokens, [counts.get(swap.end, 0) for swap in swaps]
