"""What may come at every byte of a known text, from its finished lattice.

The sums of a lattice are of what did come. For what might have, each evaluated context keeps a row
for its own position, and one for each byte of the text that its next token may begin with: how the
mass of the tokens that agree so far divides over the byte after that. Then, by (*),

    →p(σ[:t]·b) = Σ_δ w(δ) · m_δ(σ[|κ(δ)|:t]·b)

is one sum of rows for each t, over the contexts that the text needed anyway.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import Ints, KnownText
from charwise.tokens.index import END_OF_TOKEN

Floats = NDArray[np.float64]


def rows_of(known: KnownText, logprobs: torch.Tensor, positions: Ints) -> list[Floats]:
    """For each context `[depths + 1, 257]`: row d is after the first d bytes of its next token.

    Args:
        known: the text.
        logprobs: `[n, width]` log p_Δ of the contexts, on any device.
        positions: `[n]` where in the text they end.

    Returns:
        Masses of the next byte; at 256 that of the end tokens, in row 0 only.

    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> known = KnownText.of(b"aa", SortedVocabulary(vocabulary))
    >>> [rows] = rows_of(known, torch.tensor([[0.5, 0.25, 0.25]]).log(), np.array([0]))
    >>> rows[:, [ord("a"), ord("b"), 256]].round(6).tolist()
    [[0.75, 0.0, 0.25], [0.0, 0.25, 0.0]]
    """
    index, ends = known.index, list(known.index.vocabulary.end_ids)
    order = index.ids_on(logprobs.device)
    found = []
    for one, at, depths in zip(logprobs, positions, known.depths_at(positions), strict=True):
        in_order = one[order].double().exp_().cpu().numpy()
        rows = np.empty((depths + 1, 257))
        rows[0] = index.next_byte_masses(in_order, 0, len(in_order), 0)
        for d in range(int(depths)):
            rows[d + 1] = index.next_byte_masses(
                in_order, int(known.lo[at, d]), int(known.hi[at, d]), d + 1
            )
        rows[:, END_OF_TOKEN] = 0.0  # what follows those tokens is another context's business
        rows[0, END_OF_TOKEN] = float(one[ends].double().exp().sum())
        found.append(rows)
    return found


def distributions(lattice: Lattice) -> Floats:
    """`[n, 257]` p(byte | text[:t]) at each byte of the text, at 256 of its end.

    Each is divided by its sum: what was left out counts as if it divided likewise.

    >>> import charwise
    >>> from charwise.known_text.windows import stretches
    >>> from charwise.tokens.prompts import split
    >>> lm = charwise.load()
    >>> text, opening = b"import os", split(lm.vocabulary, "")[0]
    >>> done = stretches(lm.engine, lm.index, opening, text, lm.effort, distributions=True)
    >>> _, rounds = next(done)
    >>> distributions(rounds.lattice).shape
    (9, 257)
    """
    size = len(lattice.known.text)
    masses = np.zeros((size, 257))
    for vertex in lattice.vertices:
        log_weight = lattice.log_weight(vertex)
        if vertex.next_bytes is None or log_weight == -math.inf:
            continue
        at = vertex.position
        rows = vertex.next_bytes[: size - at]  # none at the end of the text
        scale = np.exp(log_weight - lattice.log_prefix[at : at + len(rows)])
        masses[at : at + len(rows)] += rows * scale[:, None]
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


def entropies(rows: Floats) -> Floats:
    """`[n]` entropies of `[n, m]` distributions, bits.

    >>> entropies(np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])).tolist()
    [1.5, 0.0]
    """
    logs = np.log2(rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(np.maximum(0.0, -(rows * logs).sum(axis=1)) + 0.0)


def ranks(rows: Floats, came: bytes) -> NDArray[np.int64]:
    """`[n]` rank of the byte that came in each of `[n, 257]` distributions; 1 is the likeliest.

    >>> rows = np.zeros((1, 257))
    >>> rows[0, [97, 98, 256]] = 0.25, 0.5, 0.25
    >>> ranks(rows, b"a")
    array([2])
    """
    codes = np.frombuffer(came, dtype=np.uint8).astype(np.int64)
    chosen = rows[np.arange(len(codes)), codes]
    return np.asarray(1 + (rows > chosen[:, None]).sum(axis=1), dtype=np.int64)
