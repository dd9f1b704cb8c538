"""Log-probabilities of a completion, as its reader sees it.

Several tokens may show the same bytes beyond the prompt: those with equal bytes, and those that
begin in the prompt at different places. The probability of a text is that of all of them.
"""

import math
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from charwise.char_lm import CharLM
from charwise.coverings.bundles import log
from charwise.cursor.generation import Floats
from charwise.cursor.state import State
from charwise.engine import Row
from charwise.serve.prompt import CursorContext
from charwise.serve.task import Alternatives, Piece, Task
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import is_text

#: Stands for all other texts in `top_logprobs`, where they hold a likelier one.
OTHER = b"<other>"


class _Prefix(NamedTuple):
    """A context from which the next token is drawn."""

    weight: float  # its probability, given the prompt
    row: Row
    overlap: bytes  # of the prompt, that its next token begins with


def _prefixes(state: State, logprobs: Floats | None) -> list[_Prefix]:
    shared, index = state.shared, state.shared.index
    if logprobs is not None:
        probs = np.exp(logprobs.astype(np.float64))
        end = float(probs[list(index.vocabulary.end_ids)].sum())
        return [_Prefix(1.0, Row(index.in_order(probs), end), b"")]
    with shared.lock:
        return [
            _Prefix(
                float(np.exp(bundle.log_weight - state.logprob)),
                shared.tree.row(bundle.node),
                index.sorted[bundle.lo][: bundle.depth] if bundle.depth else b"",
            )
            for bundle in state.bundles
        ]


def alternatives(state: State, logprobs: Floats | None, chosen: bytes, most: int) -> Alternatives:
    """Return the text that came, empty for the end of text, and the most probable others there.

    It came after all tokenizations of a prompt's characters; or after given tokens, whose next one
    has these log-probabilities.
    """
    contexts, index = _prefixes(state, logprobs), state.shared.index
    texts = {chosen}
    for _, row, overlap in contexts if most else ():
        lo, hi = index.range(overlap)
        # More are looked at than are listed: their sums may rank otherwise.
        some, least = row.in_order[lo:hi], max(0, hi - lo - 4 * most)
        best = lo + (np.argpartition(some, least)[least:] if least else np.arange(hi - lo))
        texts |= {index.sorted[at][len(overlap) :] for at in best.tolist()} - {b""}
        texts |= set() if overlap else {b""}
    sums = {text: log(sum(_mass(one, text, index) for one in contexts)) for text in texts}
    own = sums.pop(chosen)
    others = [(text, value) for text, value in sums.items() if value > -np.inf]
    others.sort(key=lambda pair: -pair[1])
    room = most if sum(value > own for _, value in others) >= most else most - 1
    return ((chosen, own), *others[: max(0, room)])


def _mass(context: _Prefix, text: bytes, index: SortedVocabulary) -> float:
    """The probability of a context and a token that shows a text after it."""
    weight, row, overlap = context
    if not text:
        return 0.0 if overlap else weight * row.end
    lo, hi = index.same_bytes(overlap + text)
    return weight * float(row.in_order[lo:hi].sum())


def prompt_pieces(lm: CharLM, task: Task, context: CursorContext) -> list[Piece]:
    """Return a prompt's tokens, each with its log-probability given all before; nats.

    That of its characters, whatever tokens they fall into. Where some byte of a token has a
    likelier rival, the other texts together are its alternative. Special tokens at the beginning
    are conditioned on, and have 0.
    """
    vocabulary = lm.vocabulary
    if is_text(task.prompt):  # as it is: an echo takes no template apart
        context = CursorContext((), to_bytes(task.prompt), None)
        opening, ids = list[int](), vocabulary.encode(context.before)
    else:  # its tokens are those given
        ids, at, size = vocabulary.encode_prompt(task.prompt), 0, 0
        while at > -len(ids) and size < len(context.before):
            at -= 1
            size += len(vocabulary.tokens[ids[at]] or b"")
        opening, ids = ids[: len(ids) + at], ids[len(ids) + at :]
    pieces = [Piece(b"", 0.0, id) for id in opening]
    if not ids:
        return pieces
    score = lm.score(context.prompt, entropy="byte")
    assert score.ranks is not None
    tokens = [vocabulary.tokens[id] or b"" for id in ids]
    ends = list(accumulate(map(len, tokens), initial=len(score.raw) - sum(map(len, tokens))))
    for id, (begin, end) in zip(ids, pairwise(ends), strict=True):
        begin = max(0, begin)
        logprob = float(score.logprobs[begin:end].sum())
        rivals = bool((score.ranks[begin:end] > 1).any())
        others = math.log(-math.expm1(min(logprob, -1e-12))) if rivals else 0.0
        raw = score.raw[begin:end]
        rival = ((OTHER, max(others, math.log(0.5))),) if rivals else ()
        pieces.append(Piece(raw, logprob, id, ((raw, logprob), *rival)))
    return pieces
