"""The tokens of a prompt with their log-probabilities, as `echo` and `logprobs` ask for them."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

from charwise.char_lm import CharLM
from charwise.serve.alternatives import after_tokens, alternatives
from charwise.serve.prompts import Sides, sides_of
from charwise.serve.task import CompletionTask, Piece
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompts import split

#: Stands for all other texts in `top_logprobs`, where they hold a likelier one.
OTHER = b"<other>"


def prompt_pieces(lm: CharLM, task: CompletionTask) -> list[Piece]:
    """A prompt's tokens, each with its log-probability given all before; nats.

    In the mode "exact" that of its characters, whatever tokens they fall into: the sum over a text
    is the same wherever tokens begin. Where some byte of a token has a likelier rival, the other
    texts together are listed as its alternative. In the other modes it is the model's own, of the
    token.

    Special tokens at the beginning are conditioned on, and have no log-probability.

    >>> import charwise
    >>> pieces = prompt_pieces(charwise.load(), CompletionTask("import os", top=1))
    >>> [piece.raw for piece in pieces]
    [b'import', b' os']
    """
    sides = (  # a text as it is: an echo takes no template apart
        Sides((), to_bytes(task.prompt), None)
        if isinstance(task.prompt, str | bytes)
        else sides_of(task, lm.vocabulary)
    )
    before, ids = _ids(lm, task, sides)
    opening = [Piece(b"", 0.0, id) for id in before]
    if not ids:
        return opening
    return opening + (
        _of_characters(lm, sides, ids)
        if task.mode == "exact"
        else _of_tokens(lm, sides, ids, task.top or 0)
    )


def _ids(lm: CharLM, task: CompletionTask, sides: Sides) -> tuple[list[int], list[int]]:
    """What comes before the text, and the tokens of it: as they were given, or canonical."""
    vocabulary = lm.vocabulary
    if isinstance(task.prompt, str | bytes):
        return [], vocabulary.encode(sides.before)
    given = vocabulary.encode_prompt(task.prompt)
    size, at = 0, len(given)
    while at > 0 and size < len(sides.before):
        at -= 1
        size += len(vocabulary.tokens[given[at]] or b"")
    return given[:at], given[at:]


def _of_characters(lm: CharLM, sides: Sides, ids: list[int]) -> list[Piece]:
    score = lm.score(sides.prompt, entropy="byte")
    assert score.ranks is not None
    tokens = [lm.vocabulary.tokens[id] or b"" for id in ids]
    ends = list(accumulate(map(len, tokens), initial=len(score.raw) - sum(map(len, tokens))))
    pieces = []
    for id, (begin, end) in zip(ids, pairwise(ends), strict=True):
        begin = max(0, begin)
        logprob = float(score.logprobs[begin:end].sum())
        rivals = bool((score.ranks[begin:end] > 1).any())
        others = math.log(-math.expm1(min(logprob, -1e-12))) if rivals else 0.0
        raw = score.raw[begin:end]
        rival = ((OTHER, max(others, math.log(0.5))),) if rivals else ()
        pieces.append(Piece(raw, logprob, id, ((raw, logprob), *rival)))
    return pieces


def _of_tokens(lm: CharLM, sides: Sides, ids: list[int], most: int) -> list[Piece]:
    opening, whole = split(lm.vocabulary, sides.prompt)
    if isinstance(whole, bytes) and lm.vocabulary.decode(ids) != whole:
        ids = lm.vocabulary.encode(whole)
    tree = lm.engine.tree(opening.ids, list(enumerate(ids)))
    rows = tree.logprobs(range(len(ids)))
    pieces = []
    for row, id in zip(rows, ids, strict=True):
        raw = lm.vocabulary.tokens[id] or b""
        top = alternatives(after_tokens(row, b"", lm.index), raw, most, lm.index)
        pieces.append(Piece(raw, top[0][1], id, top))
    return pieces
