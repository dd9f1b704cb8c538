"""Respelling: other tokens for a recurring stretch, tried at all its occurrences at once.

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


class _Swap(NamedTuple):
    """Other tokens for the text between two boundaries of the base path."""

    begin: int
    end: int
    tokens: list[int]


class _Trial(NamedTuple):
    """A respelling of a stretch at all its occurrences."""

    hope: float  # nats it may gain, if later occurrences cost nothing
    swaps: list[_Swap]
    tokens: list[int]  # of the base path from the first swap on, respelled
    lengths: list[int]  # how many of them go to the end of each swap


def respell(
    contexts: Contexts,
    path: list[int],
    deepest: float,
    spent: Callable[[list[Branch]], bool] = lambda _: False,
) -> Generator[list[Branch], None, list[int]]:
    """Try other spellings of a base path: yield contexts to evaluate, and return the better path.

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
    race, won, occurrences = base.trials(), list[tuple[float, _Trial]](), 1
    while race:
        running = list[tuple[_Trial, int, Branch]]()
        for trial in sorted(race, key=lambda trial: -trial.hope):
            done = min(occurrences, len(trial.swaps))
            length = trial.lengths[done - 1]
            begin = path[base.number[trial.swaps[0].begin]]
            if contexts.depth[begin] + length > deepest:
                continue
            room -= length - (trial.lengths[occurrences // 2 - 1] if occurrences > 1 else 0)
            if trial.hope <= 0 or room < 0:
                break
            running.append((trial, done, Branch(begin, trial.tokens[:length])))
        branches = [branch for _, _, branch in running]
        if branches and spent(branches):
            return path
        if branches:
            yield branches
        race = []
        for trial, done, branch in running:
            *_, last = contexts.follow(*branch)
            gain = float(contexts.log_p[last]) - base.log_p[base.number[trial.swaps[done - 1].end]]
            if done < len(trial.swaps):
                race.append(trial._replace(hope=gain + base.spent_on(trial.swaps[done:])))
            elif gain > 0:
                won.append((gain, trial))
        occurrences *= 2
    return (yield from _applied(base, path, won, deepest, spent))


def _applied(
    base: _Base,
    path: list[int],
    won: list[tuple[float, _Trial]],
    deepest: float,
    spent: Callable[[list[Branch]], bool],
) -> Generator[list[Branch], None, list[int]]:
    """The path with all that won, those that gain most first, if that is likelier."""
    contexts = base.contexts
    swaps = list[_Swap]()
    for _, trial in sorted(won, key=lambda one: -one[0]):
        swaps += [
            swap
            for swap in trial.swaps
            if all(swap.end <= other.begin or other.end <= swap.begin for other in swaps)
        ]
    tokens, _ = base.respelled([_Swap(base.bounds[0], base.bounds[0], []), *sorted(swaps)])
    branch = Branch(path[0], tokens)
    if not swaps or contexts.depth[path[0]] + len(tokens) > deepest or spent([branch]):
        return path
    yield [branch]
    better = [path[0], *contexts.follow(*branch)]
    return better if contexts.log_p[better[-1]] > contexts.log_p[path[-1]] else path


class _Base:
    """The base path: its boundaries in the text, and its tokens between them."""

    def __init__(self, contexts: Contexts, path: Sequence[int]) -> None:
        self.contexts, self.known = contexts, contexts.known
        self.bounds: list[int] = contexts.position[list(path)].tolist()
        self.number = {at: n for n, at in enumerate(self.bounds)}
        self.log_p: list[float] = contexts.log_p[list(path)].tolist()
        self.tokens: list[int] = contexts.tail[list(path[1:]), 0].tolist()
        self._edges = [contexts.edges(context) for context in path]

    def spent_on(self, swaps: Sequence[_Swap]) -> float:
        """Nats that the base path spends on some stretches, each with the token after it."""
        spent, at = 0.0, 0
        for swap in swaps:
            at = max(at, self.number[swap.begin])
            end = min(self.number[swap.end] + 1, len(self.tokens))
            spent += self.log_p[at] - self.log_p[max(at, end)]
            at = end
        return spent

    def token(self, begin: int, end: int) -> int | None:
        """The token that is the text between two positions, or None."""
        index = self.known.index
        first, last = index.twins(self.known.text[begin:end])
        return int(index.ids[first]) if first < last else None

    def trials(self) -> list[_Trial]:
        """The likeliest other spelling of each stretch, wherever the stretch occurs."""
        found = dict[tuple[bytes, int], list[_Swap]]()
        text = self.known.text
        for n, begin in enumerate(self.bounds[:-1]):
            likely = sorted(self._edges[n], key=lambda edge: -edge[2])
            for stop in self.bounds[n + 1 : n + 1 + SPAN]:
                for _, end, _ in likely:
                    joins = end == stop or self.token(end, stop) is not None
                    if end != self.bounds[n + 1] and end <= stop and joins:
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

    def _trial(self, swaps: list[_Swap]) -> _Trial:
        first = swaps[0]
        edges = self._edges[self.number[first.begin]]
        mass = sum(mass for token, _, mass in edges if token == first.tokens[0])
        hope = math.log(max(mass, 1e-300)) + self.spent_on(swaps)
        return _Trial(hope, swaps, *self.respelled(swaps))

    def _occurrences(self, word: bytes, cut: int) -> list[_Swap]:
        """Where the base path can be respelled with a boundary `cut` bytes before a word's end."""
        text, found, at = self.known.text, list[_Swap](), self.bounds[0]
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
                found.append(_Swap(begin, stop, [token for token in tokens if token is not None]))
                at = stop
        return found

    def respelled(self, swaps: Sequence[_Swap]) -> tuple[list[int], list[int]]:
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
