"""Several models as one: mixtures, products and more, with any tokenizers, as a plain `CharLM`.

Over bytes every model has the same 257 outcomes. With n members, a combination gives to the next
byte c (or the end) of a text σ

    mixture            Σ λ_i(σ) p_i(c | σ),  λ_i(σ) ∝ λ_i →p_i(σ)   one member writes the text
    product            ∝ Π p_i(c | σ)^{w_i}                         texts that all find likely
    minimum, maximum   ∝ min_i p_i(c | σ), max_i p_i(c | σ)

where →p_i(σ) is the probability that a text of member i begins with σ. docs/combine.md says more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from charwise.byte_engine import CombinedLM, Floats, Kind, Member, Rule, shares_of
from charwise.char_lm import CharLM
from charwise.errors import SettingError, check_number
from charwise.tokens.canonical import to_bytes

__all__ = ["Member", "contrast", "maximum", "minimum", "mixture", "product", "shares"]


def mixture(members: Sequence[CharLM | Member], weights: Sequence[float] | None = None) -> CharLM:
    """Return the mixture Σ_i λ_i p_i of distributions over texts: one member writes the whole text.

    At each byte the members count by λ_i(σ) ∝ λ_i →p_i(σ), Bayes' rule: see `shares`.

    Args:
        members: models, or `Member`s.
        weights: λ, none negative; divided by their sum. By default equal.

    Raises:
        SettingError: no members, or no such weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> mixture([lm, Member(lm, "import numpy as np\\n")], [3, 1]).next("x = n").top(1)[0][0]
    'p'
    """
    given = [1.0] * len(members) if weights is None else list(weights)
    if given and not (min(given) >= 0 and 0 < sum(given) < math.inf):
        raise SettingError(f"weights {given}: of a mixture, none is negative, and one is above 0.")
    return _combined(members, "mixture", [weight / sum(given) for weight in given])


def product(members: Sequence[CharLM | Member], weights: Sequence[float] | None = None) -> CharLM:
    """Return the product ∝ Π_i p_i^{w_i}, normalised at each byte: what all members find likely.

    What a member gives probability zero is impossible, whatever its weight's sign.

    Args:
        members: models, or `Member`s.
        weights: w, any numbers; by default 1/n each, the geometric mean. Of weights 1, α and −α
            the product is proxy tuning (Liu et al., COLM 2024).

    Raises:
        SettingError: no members, or not as many weights.

    >>> import charwise
    >>> lm = charwise.load()
    >>> product([lm, lm]).next("import nump").top(1)[0][0]
    'y'
    """
    equal = [1 / max(1, len(members))] * len(members)
    return _combined(members, "product", equal if weights is None else list(weights))


def minimum(members: Sequence[CharLM | Member]) -> CharLM:
    """Return the minimum ∝ min_i p_i: a byte is as likely as to the most doubtful member.

    >>> import charwise
    >>> minimum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return _combined(members, "minimum", [1.0] * len(members))


def maximum(members: Sequence[CharLM | Member]) -> CharLM:
    """Return the maximum ∝ max_i p_i: a byte is as likely as to the most confident member.

    >>> import charwise
    >>> maximum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return _combined(members, "maximum", [1.0] * len(members))


def contrast(strong: CharLM | Member, weak: CharLM | Member, plausibility: float = 0.1) -> CharLM:
    """Return ∝ strong / weak, among the bytes that the strong model finds plausible.

    Contrastive decoding (Li et al., ACL 2023), over bytes in place of tokens.

    Args:
        strong, weak: the models.
        plausibility: a byte is plausible if the strong model gives it at least this share of what
            it gives its likeliest byte. Others keep e^-100 of their mass.

    Raises:
        SettingError: a plausibility outside [0, 1].

    >>> import charwise
    >>> lm = charwise.load()
    >>> contrast(lm, lm).next("import nump").top(1)[0][0]
    'y'
    """
    check_number("plausibility", plausibility, 0.0, 1.0)
    return _combined([strong, weak], "product", [1.0, -1.0], plausibility)


def _combined(
    members: Sequence[CharLM | Member], kind: Kind, weights: Sequence[float], share: float = 0.0
) -> CharLM:
    # A text has one tokenization, so that nothing is left out.
    return CharLM(CombinedLM(members, Rule(kind, tuple(weights), share)), preset="exact")


def shares(lm: CharLM, text: str | bytes = "") -> Floats:
    """Return the weight λ_i(text) of each member of a mixture after a text, `[n]`, by Bayes' rule.

    >>> import charwise
    >>> lm = charwise.load()
    >>> both = mixture([lm, Member(lm, before="import numpy as np\\n")])
    >>> shares(both).tolist(), bool(shares(both, "x = np")[1] > 0.5)
    ([0.5, 0.5], True)
    """
    engine = lm.engine
    if not isinstance(engine, CombinedLM) or engine.rule.kind != "mixture":
        raise SettingError("only a mixture has shares.")
    return shares_of(engine.tree([256, *to_bytes(text)]).evidence(0)[0])
