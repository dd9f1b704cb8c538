"""Known text under a combination: one pass of each member, and sums over the members.

A mixture needs the members' prefix probabilities only. The other rules need what each member gives
to all 257 outcomes at every byte, for the normaliser: two kilobytes a byte and member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from charwise.combine.member_scores import MemberScore, curves_of, member_scores
from charwise.combine.members import Team, impossible
from charwise.combine.rules import Floats, Product, errors_of_bytes, normalised
from charwise.cursor.distributions import EOS
from charwise.surprisal.entropies import entropies, ranks
from charwise.surprisal.score import Score
from charwise.surprisal.word_ends import word_ends


def scores(
    team: Team,
    texts: Sequence[bytes],
    contexts: Sequence[bytes],
    *,
    end: bool = False,
    rows: bool = False,
    strict: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> list[Score]:
    """The scores of texts by the local rule, each after its context.

    Args:
        team: the members, and their rule.
        texts, contexts: what is scored, and what comes before each.
        end: also the end of text.
        rows: also the distributions, their entropies and the ranks of what came.
        strict: whether a text that is impossible is an error, and not −inf.
        progress: told after each member how many bytes are done, and of how many.

    Raises:
        ZeroProbabilityError: a text that is impossible, up to the byte that is.

    >>> import charwise
    >>> from charwise.combine import product
    >>> both = product([charwise.load(), charwise.load()])
    >>> [score] = scores(both.team, [b"np"], [b"import "])
    >>> bool(np.allclose(score.logprobs, charwise.load().score("np", context="import ").logprobs))
    True
    """
    remembers, total = team.rule.remembers(False), sum(map(len, texts))
    # What a mixture's members give to the context is evidence for one or the other.
    whole = [c + t for c, t in zip(contexts, texts, strict=True)] if remembers else texts
    given = [b""] * len(texts) if remembers else contexts
    columns = []
    for number, member in enumerate(team.members):
        needed = rows or not remembers
        columns.append(member_scores(member, whole, given, rows=needed, end=end))
        if progress is not None:
            progress(total * (number + 1) // len(team.members), total)
    found = []
    for text, context, *each in zip(texts, contexts, *columns, strict=True):
        score = _combined(team, text, list(each), end=end, rows=rows)
        never = np.flatnonzero(score.logprobs == -np.inf)
        if strict and len(never):
            raise impossible(context + text[: int(never[0]) + 1])
        found.append(score)
    return found


def _combined(team: Team, text: bytes, each: list[MemberScore], *, end: bool, rows: bool) -> Score:
    """One score of those of the members, which may begin earlier."""
    rule, size = team.rule, len(text)
    skip = len(each[0].score.raw) - size
    curves, errors = curves_of(each)  # [n, skip + T + 1], [n, skip + T]
    before, prefix_errors = curves[:, skip:], errors[:, :skip].sum(axis=1)
    probs = None
    if not rule.remembers(False) or rows:
        probs, masses = _distributions(team, each, before, skip)
    if rule.remembers(False):
        logs = rule.combine(before)
        logprobs = _differences(logs)
        ends = np.array([one.end for one in each])
        ended = float(rule.combine(before[:, -1] + ends)) - float(_finite(logs[-1:])[0])
    else:
        assert probs is not None
        came = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        logprobs = masses[np.arange(size), came]
        ended = float(masses[size, EOS]) if end else -math.inf
    scores = [one.score for one in each]
    return Score(
        text,
        logprobs,
        errors_of_bytes(rule, np.exp(logprobs), before, errors[:, skip:], prefix_errors),
        sum(score.contexts for score in scores),
        sum(score.calls for score in scores),
        end_logprob=ended if end else None,
        entropies=entropies(probs[:size]) if rows and probs is not None else None,
        ranks=ranks(probs[:size], text) if rows and probs is not None else None,
        distributions=probs[:size] if rows and probs is not None else None,
        word_ends=word_ends(probs) if rows and end and probs is not None else None,
    )


def _distributions(
    team: Team, each: Sequence[MemberScore], before: Floats, skip: int
) -> tuple[Floats, Floats]:
    """`[T or T + 1, 257]` the combined distributions along a text, and their logarithms."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.stack([one.rows[skip:] for one in each if one.rows is not None]))
    given = before[:, : logs.shape[1]]
    # What is impossible stays so; a member of weight 0 may still be able to write it.
    given = np.where(np.isfinite(team.rule.combine(given)), given, 0.0)
    masses = team.rule.next(logs, given, False)
    probs, total = normalised(masses)
    return probs, masses - _finite(total)[:, None]


def _differences(logs: Floats) -> Floats:
    """Of neighbours; −inf from the first −inf on."""
    return np.where(np.isfinite(logs[1:]), logs[1:] - _finite(logs[:-1]), -np.inf)


def _finite(logs: Floats) -> Floats:
    return np.where(np.isfinite(logs), logs, 0.0)


def string_logs(
    team: Team,
    texts: Sequence[bytes],
    context: bytes,
    before: Floats,
    *,
    end: bool,
) -> tuple[Floats, Floats, list[Score]]:
    """log F(→p_1(σ·x), …) − log F(→p_1(σ), …) of several x: the global rule, not normalised.

    Args:
        team: the members, and their rule.
        texts: the strings x.
        context: σ.
        before: `[n]` log →p_i(σ).
        end: whether the text ends after each.

    Returns:
        `[len(texts)]` values, by how much each may be off, and the members' scores.
    """
    rule = team.rule
    masked = isinstance(rule, Product) and rule.plausibility > 0
    columns = [
        member_scores(member, texts, [context] * len(texts), rows=masked, end=end)
        for member in team.members
    ]
    sums = np.array(
        [[one.score.logprobs.sum() + (one.end if end else 0.0) for one in col] for col in columns]
    )  # [n, texts]
    if isinstance(rule, Product):
        values = rule.combine(sums)
    else:
        values = rule.combine(before[:, None] + sums) - rule.combine(before)
    if masked:
        for number, each in enumerate(zip(*columns, strict=True)):
            local = _combined(team, texts[number], list(each), end=end, rows=False)
            if not np.isfinite(local.logprobs).all() or local.end_logprob == -math.inf:
                values[number] = -np.inf
    off = np.array([[curves_of([one])[1].sum() for one in column] for column in columns])
    off = rule.shares(sums) * off if isinstance(rule, Product) else off
    return values, off.sum(axis=0), [one.score for column in columns for one in column]
