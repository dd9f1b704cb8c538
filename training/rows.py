"""Rows of training: a window of the corpus, left to right or with its middle put last.

Everything is a function of numbers that a checkpoint holds (how much of each source was read,
and the number of the row), so a run that is resumed reads on where it stopped, whatever the
number of processes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

PREFIX, SUFFIX, MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
SENTINELS = (PREFIX, SUFFIX, MIDDLE)
SOURCES = ("stdlib", "other")
INFILL_SHARE = 0.45  # of the rows
SPM_SHARE = 0.5  # of the infilled pieces
SHORT_SHARE = 0.6  # of the spans: log-uniform in length; the others have two uniform ends
SHORT_SPAN = (1, 400)  # characters
SLACK = 24  # tokens of a row kept free for sentinels and for tokens that a cut divides
IGNORED = -100  # target of a sentinel: it is always given, never predicted
SEED = 1


class Source:
    """The documents of one source as an endless run of tokens, shuffled anew each time round."""

    def __init__(self, path: Path, number: int) -> None:
        stored = np.load(path)
        self.tokens, self.starts, self.number = stored["tokens"], stored["starts"], number

    @functools.lru_cache(maxsize=2)  # noqa: B019 - as long-lived as the process
    def epoch(self, number: int) -> np.ndarray:
        """Return all tokens, the documents in the order of one time round."""
        rng = np.random.default_rng((SEED, self.number, number))
        order = rng.permutation(len(self.starts) - 1)
        return np.concatenate([self.tokens[self.starts[i] : self.starts[i + 1]] for i in order])

    def window(self, at: int, length: int) -> np.ndarray:
        """Return ``length`` tokens from position ``at`` of the endless run."""
        epoch, offset = divmod(at, len(self.tokens))
        here = self.epoch(epoch)[offset : offset + length]
        if len(here) < length:
            here = np.concatenate([here, self.epoch(epoch + 1)[: length - len(here)]])
        return here.astype(np.int64)


@dataclass(frozen=True)
class RowPlan:
    """Which tokens a row reads, and how: enough to build it in any process."""

    source: int
    at: int
    length: int
    seed: int
    infill: bool


class Plan:
    """Says which rows come next; ``read`` counts the tokens of each source, ``rows`` the rows."""

    def __init__(self, read: tuple[int, ...] = (0, 0), rows: int = 0) -> None:
        self.read, self.rows = list(read), rows

    def take(self, length: int, stdlib_share: float) -> RowPlan:
        """Return the next row of ``length`` inputs."""
        rng = np.random.default_rng((SEED, 7, self.rows))
        source = int(rng.random() >= stdlib_share)
        infill = bool(rng.random() < INFILL_SHARE)
        row = RowPlan(source, self.read[source], length, self.rows, infill)
        self.read[source] += length - SLACK if infill else length
        self.rows += 1
        return row


class Rows:
    """Builds rows: ``[length + 1]`` tokens, and ``[length]`` targets, some ``IGNORED``."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.sources = [Source(folder / f"{name}.npz", i) for i, name in enumerate(SOURCES)]
        self.tokenizer = tokenizer
        self.tokenizer.encode_special_tokens = True  # a sentinel's name in a text is text
        self.end = tokenizer.token_to_id("<|endoftext|>")
        self.prefix, self.suffix, self.middle = map(tokenizer.token_to_id, SENTINELS)

    def build(self, plan: RowPlan) -> tuple[np.ndarray, np.ndarray]:
        """Return a row's inputs and targets, both ``[length]``."""
        source = self.sources[plan.source]
        if not plan.infill:
            run = source.window(plan.at, plan.length + 1)
            return run[:-1], run[1:]
        run = source.window(plan.at, plan.length - SLACK)
        rng = np.random.default_rng((SEED, 11, plan.seed))
        ids: list[int] = []
        for piece in self.pieces(run, rng):
            # a window may begin and end inside a character
            ids += self.infilled(self.tokenizer.decode(piece.tolist()).strip("\ufffd"), rng)
        size = plan.length + 1
        row = np.array([*ids, *[self.end] * (size - len(ids))][:size])
        targets = row[1:].copy()
        targets[np.isin(targets, [self.prefix, self.suffix, self.middle])] = IGNORED
        targets[len(ids) :] = IGNORED  # the end of the last middle still counts
        return row[:-1], targets

    def pieces(self, run: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """Divide a window where documents end, and long pieces now and then once more."""
        marks = np.flatnonzero(run == self.end)
        result = []
        for piece in np.split(run, marks):
            piece = piece[piece != self.end]
            if len(piece) > 128 and rng.random() < 0.5:
                result += np.split(piece, [int(rng.integers(32, len(piece) - 32))])
            elif len(piece):
                result.append(piece)
        return result

    def infilled(self, text: str, rng: np.random.Generator) -> list[int]:
        """Return the ids of a text whose middle comes last, after ``<|endoftext|>``.

        Prefix first (PSM): the three parts are encoded apart, so that tokens are divided at
        both seams. Suffix first (SPM): prefix and middle are encoded together, as in Code Llama.
        """
        first, last = span(len(text), rng)
        before, inside, after = text[:first], text[first:last], text[last:]
        if rng.random() < SPM_SHARE:
            tail = [self.middle, *self.ids(before + inside)]
            return [self.end, self.prefix, self.suffix, *self.ids(after), *tail]
        head = [self.end, self.prefix, *self.ids(before), self.suffix, *self.ids(after)]
        return [*head, self.middle, *self.ids(inside)]

    def ids(self, text: str) -> list[int]:
        """Return the canonical tokens of a text, a sentinel's name being text like any other."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def span(length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the ends of a random middle, in characters: most short, the others of any length."""
    if rng.random() < SHORT_SHARE:
        low, high = map(math.log, SHORT_SPAN)
        size = min(length, round(math.exp(rng.uniform(low, high))))
        first = int(rng.integers(0, length - size + 1))
        return first, first + size
    first, last = sorted(int(end) for end in rng.integers(0, length + 1, 2))
    return first, last
