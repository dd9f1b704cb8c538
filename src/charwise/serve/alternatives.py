"""What may come at a place of a completion, as its reader sees it: texts, with log-probabilities.

A token of a completion shows the bytes that it has beyond the prompt. Several tokens may show the
same: those with equal bytes, and, at the end of a prompt that is conditioned on as characters,
those that begin in it at different places. The probability of a text is that of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from charwise.coverings.log_sums import log
from charwise.coverings.rows import Row
from charwise.cursor.drafts import Cursor
from charwise.serve.task import Alternatives
from charwise.tokens.index import SortedVocabulary

#: Texts of each context that are looked at, for each that is listed: their sums may rank otherwise.
_LOOKED = 4


class Context(NamedTuple):
    """A context from which the next token is drawn.

    Attributes:
        weight: its probability, given the prompt.
        row: of its next tokens.
        begun: bytes that its next token begins with, and that are not shown.

    >>> Context(1.0, Row(np.array([0.5, 0.25]), end=0.25), b"").row.end
    0.25
    """

    weight: float
    row: Row
    begun: bytes


def after_characters(state: Cursor) -> list[Context]:
    """Return the contexts after a prompt's characters: those of all its tokenizations.

    >>> import charwise
    >>> state = charwise.load().state("import nump")
    >>> contexts = after_characters(state)
    >>> alternatives(contexts, b"y", 1, state.shared.index)[0][0]
    b'y'
    """
    shared, index = state.shared, state.shared.index
    with shared.lock:
        return [
            Context(
                float(np.exp(bundle.log_weight - state.logprob)),
                shared.evaluated.row(bundle.node),
                index.sorted[bundle.lo][: bundle.depth] if bundle.depth else b"",
            )
            for bundle in state.bundles
        ]


def after_tokens(logprobs: torch.Tensor, begun: bytes, index: SortedVocabulary) -> list[Context]:
    """Return the context after given tokens.

    Args:
        logprobs: `[width]` of the next token; −inf for one that is masked.
        begun: what the next token begins with, of the text that it writes again.
        index: of the model's vocabulary.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2]))
    >>> round(after_tokens(torch.tensor([0.5, 0.25, 0.25]).log(), b"a", index)[0].row.end, 6)
    0.25
    """
    probs = logprobs.double().exp().cpu().numpy()
    end = float(probs[list(index.vocabulary.end_ids)].sum())
    return [Context(1.0, Row(index.in_order(probs), end), begun)]


def alternatives(
    contexts: Sequence[Context], chosen: bytes, most: int, index: SortedVocabulary
) -> Alternatives:
    """Return the text that came, then the most probable others of the same place.

    Args:
        contexts: from which the token was drawn.
        chosen: what it shows; empty for the end of the text.
        most: texts to list; the one that came is listed beside them where it is none of them.
        index: of the model's vocabulary.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"a", b"ab", b"ac", b"ab"]))
    >>> contexts = [Context(1.0, Row(np.array([0.5, 0.125, 0.125, 0.25]), end=0.0), b"a")]
    >>> [(text, round(float(np.exp(p)), 3)) for text, p in alternatives(contexts, b"c", 2, index)]
    [(b'c', 0.25), (b'b', 0.25)]
    """
    texts = {chosen}
    for _, row, begun in contexts if most else ():
        lo, hi = index.range(begun)
        some, least = row.in_order[lo:hi], max(0, hi - lo - _LOOKED * most)
        best = lo + (np.argpartition(some, least)[least:] if least else np.arange(hi - lo))
        texts |= {index.sorted[at][len(begun) :] for at in best.tolist()} - {b""}
        texts |= set() if begun else {b""}
    found = {text: log(sum(_mass(one, text, index) for one in contexts)) for text in texts}
    own = found.pop(chosen)
    others = [(text, value) for text, value in found.items() if value > -np.inf]
    others.sort(key=lambda pair: -pair[1])
    room = most if sum(value > own for _, value in others) >= most else most - 1
    return ((chosen, own), *others[: max(0, room)])


def _mass(context: Context, text: bytes, index: SortedVocabulary) -> float:
    """The probability of a context and a token that shows a text after it."""
    weight, row, begun = context
    if not text:
        return 0.0 if begun else weight * row.end
    lo, hi = index.twins(begun + text)
    return weight * float(row.in_order[lo:hi].sum())
