"""The oracle: the published enumeration, and the definitions themselves, as short as they read.

Slow and obvious on purpose. Every fast path in charwise is tested against these functions; none
uses them. Where to find Vieira et al. 2025, over bytes:

    eq. 10, 11   p(σ) and →p(σ) over all token strings     by_enumeration
    eq. 7        →p(σ), by total probability               by_definition
    eq. 12       the covering C(σ)                         enum_cover
    eq. 13, 14   →p(σ) and p(σ) over the covering          prefix_probability, string_probability
    §3.2         buckets; beam.py has the bundled beam     prune_top_k_buckets
    §3.3         →p(· | σ), eq. 8 and 9                    next_character_probability
    §3.4         Proposition 2                             conditional_token_generation

>>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2])
>>> p = lambda tokens: np.array([0.5, 0.25, 0.25])
>>> [(member.p, member.tokens) for member in enum_cover(b"aa", p, vocabulary)]
[(0.25, (0, 0)), (0.125, (0, 1))]
>>> prefix_probability(b"aa", p, vocabulary), string_probability(b"aa", p, vocabulary)
(0.375, 0.0625)
>>> next_character_probability(b"", p, vocabulary)[[ord("a"), 256]]
array([0.75, 0.25])
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.engine import TokenLM
from charwise.errors import ZeroProbabilityError
from charwise.tokens.vocabulary import Vocabulary

#: p_Δ(· | δ): probabilities `[width]` of what follows a token string.
Conditional = Callable[[tuple[int, ...]], NDArray[np.float64]]


class TokenString(NamedTuple):
    """A token string with its decoding and its prefix probability →p_Δ."""

    p: float
    raw: bytes
    tokens: tuple[int, ...]


Prune = Callable[[bytes, list[TokenString]], list[TokenString]]


def conditional(lm: TokenLM, prompt_ids: Sequence[int] | None = None) -> Conditional:
    """p_Δ(· | δ) of an engine as a plain function of the token string δ."""
    tree = lm.tree(lm.vocabulary.bos_ids if prompt_ids is None else prompt_ids)

    def row(tokens: tuple[int, ...]) -> NDArray[np.float64]:
        node = [0, *tree.extend([(0, tokens)])[0]][-1]
        logs = tree.logprobs([node])[0]
        return np.asarray(logs.double().exp().cpu().numpy())

    return row


def prune_top_k_buckets(k: int) -> Prune:
    """Keep the `k` heaviest buckets: members that agree up to a partially matched last token."""

    def prune(text: bytes, out: list[TokenString]) -> list[TokenString]:
        buckets: dict[tuple[int, ...], list[TokenString]] = defaultdict(list)
        for member in out:
            partial = len(member.raw) > len(text)
            buckets[member.tokens[:-1] if partial else member.tokens].append(member)
        heaviest = sorted(buckets.values(), key=lambda b: -sum(member.p for member in b))
        return [member for bucket in heaviest[:k] for member in bucket]

    return prune


def enum_cover(
    text: bytes, p: Conditional, vocabulary: Vocabulary, prune: Prune | None = None
) -> list[TokenString]:
    """Return the members of the covering C(text) (eq. 12) that survive `prune` (§3.2)."""
    size = len(text)
    if size == 0:
        return [TokenString(1.0, b"", ())]
    out = []
    for member in enum_cover(text[:-1], p, vocabulary, prune):
        if len(member.raw) < size:  # extend
            row = p(member.tokens)
            for id, token in enumerate(vocabulary.tokens):
                if token is not None:
                    longer = member.raw + token
                    if longer[size - 1] == text[-1]:  # filter
                        weight = member.p * float(row[id])
                        out.append(TokenString(weight, longer, (*member.tokens, id)))
        elif member.raw[size - 1] == text[-1]:
            out.append(member)
    return prune(text, out) if prune else out


def prefix_probability(text: bytes, p: Conditional, vocabulary: Vocabulary) -> float:
    """→p(text), summed over the covering (Vieira et al. 2025, eq. 13)."""
    return sum(member.p for member in enum_cover(text, p, vocabulary))


def string_probability(text: bytes, p: Conditional, vocabulary: Vocabulary) -> float:
    """p(text), end of text included (Vieira et al. 2025, eq. 14)."""
    return sum(
        member.p * _end(p(member.tokens), vocabulary)
        for member in enum_cover(text, p, vocabulary)
        if member.raw == text
    )


def next_character_probability(
    text: bytes, p: Conditional, vocabulary: Vocabulary, prune: Prune | None = None
) -> NDArray[np.float64]:
    """`[257]`: p(byte | text), and at 256 p(EOS | text) (§3.3, eq. 8 and 9)."""
    size = len(text)
    masses = np.zeros(257)
    total = 0.0
    for member in enum_cover(text, p, vocabulary, prune):
        total += member.p
        if len(member.raw) > size:
            masses[member.raw[size]] += member.p
            continue
        row = p(member.tokens)
        masses[256] += member.p * _end(row, vocabulary)
        for id, token in enumerate(vocabulary.tokens):
            if token is not None:
                masses[token[0]] += member.p * row[id]
    if total == 0:
        raise ZeroProbabilityError(f"what is not pruned of {str(text)[1:]} has probability zero.")
    return masses / total


def conditional_token_generation(
    text: bytes, p: Conditional, vocabulary: Vocabulary, rng: np.random.Generator
) -> tuple[int, ...]:
    """Draw a token string given that its text starts with `text` (§3.4, Proposition 2).

    A member of the covering in proportion to its prefix probability (eq. 15), then a completion
    from the model. `State.complete` does so on engines.
    """
    members = enum_cover(text, p, vocabulary)
    weights = np.array([member.p for member in members])
    tokens = members[rng.choice(len(members), p=weights / weights.sum())].tokens
    while (token := int(rng.choice(vocabulary.width, p=p(tokens)))) not in vocabulary.end_ids:
        tokens = (*tokens, token)
    return tokens


def by_definition(text: bytes, p: Conditional, vocabulary: Vocabulary) -> float:
    """→p(text) = P[κ(Y) ⪰ text] (eq. 7), by total probability over the first token, and so on.

    Uses no covering: only that a token string whose decoding departs from `text` can never come
    back, and that one which has reached its end has succeeded.
    """

    def succeed(tokens: tuple[int, ...], decoded: bytes) -> float:
        if decoded.startswith(text):
            return 1.0
        if not text.startswith(decoded):
            return 0.0
        row = p(tokens)
        return sum(
            float(row[id]) * succeed((*tokens, id), decoded + token)
            for id, token in enumerate(vocabulary.tokens)
            if token is not None and row[id] > 0
        )

    return succeed((), b"")


def by_enumeration(text: bytes, p: Conditional, vocabulary: Vocabulary) -> tuple[float, float]:
    """→p(text) and p(text) from all token strings that matter, one by one (eq. 11 and 10).

    A token string of n tokens has at least n bytes. So whether a complete string starts with
    `text` is known from its first |text| tokens, and no string longer than that decodes to it:
    the sums below go over every token string of up to |text| tokens, without any pruning.
    """
    starts, equals = 0.0, 0.0
    texts = [id for id, token in enumerate(vocabulary.tokens) if token is not None]
    for tokens in chain.from_iterable(product(texts, repeat=n) for n in range(len(text) + 1)):
        decoded = vocabulary.decode(tokens)
        weight = _prefix_weight(tokens, p)
        if weight == 0.0:
            continue
        ended = weight * _end(p(tokens), vocabulary)
        if decoded == text:
            equals += ended
        if decoded.startswith(text):
            # Shorter strings count when they end here; full-length ones whatever follows.
            starts += ended if len(tokens) < len(text) else weight
    return starts, equals


def _prefix_weight(tokens: tuple[int, ...], p: Conditional) -> float:
    weight = 1.0
    for n, id in enumerate(tokens):
        weight *= float(p(tokens[:n])[id])
        if weight == 0.0:
            break
    return weight


def _end(row: NDArray[np.float64], vocabulary: Vocabulary) -> float:
    return float(row[list(vocabulary.end_ids)].sum())
