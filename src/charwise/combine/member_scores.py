"""The numbers of a member along known texts: log-probabilities, and next-byte distributions.

A `CharLM`, or another combination, takes a text in one pass (`scores_with_rows`). What only has
states is asked byte by byte. A text that the member gives probability zero is scored as far as it
goes. The scores of a text are evidence for one member or the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from charwise.combine.members import Member, Team
from charwise.combine.rules import Floats, Mixture
from charwise.coverings.log_sums import log
from charwise.cursor.distributions import EOS
from charwise.cursor.state import State
from charwise.errors import TokenizationError, ZeroProbabilityError
from charwise.surprisal.score import Score

#: A text that a model cannot write.
IMPOSSIBLE = (ZeroProbabilityError, TokenizationError)


class MemberScore(NamedTuple):
    """A member along a text.

    Attributes:
        score: −inf from the first byte on that the member cannot write.
        end: log p(end of text | text), nats; −inf where that was not asked.
        rows: `[T, 257]`, with the end `[T + 1, 257]`, p(byte | text so far); zero after the byte
            that it cannot write. None where they were not asked.
    """

    score: Score
    end: float
    rows: Floats | None


def member_scores(
    member: Member,
    texts: Sequence[bytes],
    contexts: Sequence[bytes],
    *,
    rows: bool,
    end: bool,
) -> list[MemberScore]:
    """A member along texts, each after its context.

    >>> import charwise
    >>> one = Member(charwise.load())
    >>> [found] = member_scores(one, [b"np"], [b"import "], rows=True, end=True)
    >>> found.score.logprobs.shape, found.rows.shape
    ((2,), (3, 257))
    """
    try:
        scores = _scores(member, texts, contexts, rows=rows, end=end)
    except IMPOSSIBLE:
        pairs = zip(texts, contexts, strict=True)
        scores = [_as_far_as_it_goes(member, *one, rows=rows, end=end) for one in pairs]
    found = []
    for text, context, score in zip(texts, contexts, scores, strict=True):
        known, ended = score.distributions, score.end_logprob
        if known is not None and end:
            last = _row_after(member, context + text)
            known, ended = np.concatenate([known, last[None]]), log(float(last[EOS]))
        found.append(MemberScore(score, -math.inf if ended is None else ended, known))
    return found


def _scores(
    member: Member,
    texts: Sequence[bytes],
    contexts: Sequence[bytes],
    *,
    rows: bool,
    end: bool,
) -> list[Score]:
    """Scores of texts, with the distributions along them if those are wanted."""
    lm, prompts = member.lm, [member.prompt(context) for context in contexts]
    ask: Any = getattr(lm, "scores_with_rows" if rows else "scores", None)
    if ask is None:
        each = zip(texts, contexts, strict=True)
        return [_stepped(member, *one, end=end) for one in each]
    given: dict[str, Any] = {} if rows else {"end": end}
    found: list[Score] = ask(texts, contexts=prompts, **member.spend, **given)
    return found


def _stepped(member: Member, text: bytes, context: bytes, *, end: bool) -> Score:
    """The score of a text, byte by byte."""
    state = member.after(context)
    size = len(text)
    logprobs, error, rows = np.zeros(size), np.zeros(size), []
    for at, code in enumerate(text):
        nxt = state.next()
        rows.append(nxt.probs)
        p = float(nxt.probs[code])
        if not p > 0:
            raise ZeroProbabilityError(f"byte {at} of {text[:40]!r} has probability zero.")
        logprobs[at], error[at] = math.log(p), math.log1p(nxt.error / p)
        state = state + bytes([code])
    return Score(
        text,
        logprobs,
        error,
        contexts=0,
        calls=0,
        end_logprob=log(float(state.next().probs[EOS])) if end else None,
        distributions=np.reshape(rows, (size, 257)),
    )


def _as_far_as_it_goes(
    member: Member, text: bytes, context: bytes, *, rows: bool, end: bool
) -> Score:
    """The score of a text up to the first byte that the member cannot write.

    Raises:
        TokenizationError: if it is not the text that is wrong.
    """

    def attempt(size: int, last: bool = False) -> Score | None:
        try:
            [score] = _scores(member, [text[:size]], [context], rows=rows, end=end and last)
        except IMPOSSIBLE as error:
            if isinstance(error, TokenizationError) and not (size or context):
                raise
            return None
        return score

    whole = attempt(len(text), last=True)
    if whole is not None:
        return whole
    begun = attempt(0)
    if begun is None:
        return _filled(None, text, np.zeros(257) if rows else None)
    low, high = 0, len(text)  # `low` bytes can be written, `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        longer = attempt(middle)
        if longer is None:
            high = middle
        else:
            low, begun = middle, longer
    return _filled(begun, text, _row_after(member, context + text[:low]) if rows else None)


def _filled(score: Score | None, text: bytes, last: Floats | None) -> Score:
    """A score of a text's beginning as one of the text: −inf for the rest of it."""
    nothing = np.zeros(0)
    if score is None:
        score = Score(b"", nothing, nothing, 0, 0)
    size, left = len(score.raw), len(text) - len(score.raw)

    def longer(values: Floats, fill: float = 0.0) -> Floats:
        return np.concatenate([values, np.full(left, fill)])

    rows = None
    if last is not None:
        rows = np.zeros((len(text), 257))
        rows[size : size + 1] = last  # none after an empty text
        if score.distributions is not None:
            rows[:size] = score.distributions
    return replace(
        score,
        raw=text,
        logprobs=longer(score.logprobs, -math.inf),
        error=longer(score.error),
        end_logprob=-math.inf,
        distributions=rows,
        token_ends=None,
    )


def _row_after(member: Member, text: bytes) -> Floats:
    """`[257]` p(byte | text); zeros if the member cannot write the text."""
    try:
        state = member.after(text)
        return np.asarray(state.next().probs)
    except IMPOSSIBLE:
        return np.zeros(257)


def curves_of(each: Sequence[MemberScore]) -> tuple[Floats, Floats]:
    """`[n, T + 1]` log →p_i of all beginnings of a text, `[n, T]` the error of each byte.

    >>> one = Score(b"ab", np.log([0.5, 0.25]), np.zeros(2), 0, 0)
    >>> np.exp(curves_of([MemberScore(one, 0.0, None)])[0]).round(9).tolist()
    [[1.0, 0.5, 0.125]]
    """
    steps = np.stack([one.score.logprobs for one in each])
    curves = np.concatenate([np.zeros((len(each), 1)), np.cumsum(steps, axis=1)], axis=1)
    return curves, np.stack([one.score.error for one in each])


def likelihoods(team: Team, text: bytes, context: bytes) -> Floats:
    """`[2, n, T]` log p_i of each byte of a text, nats, and by how much that may be off.

    >>> import charwise
    >>> from charwise.combine import mixture
    >>> both = mixture([charwise.load(), charwise.load()])
    >>> likelihoods(both.team, b"np", b"import ").shape
    (2, 2, 2)
    """
    each = [member_scores(one, [text], [context], rows=False, end=False)[0] for one in team.members]
    _, errors = curves_of(each)
    return np.stack([np.stack([one.score.logprobs for one in each]), errors])


def likelihood_of_byte(
    member: Member, state: Any, after: Any, byte: int, raw: bytes
) -> tuple[float, float]:
    """log p_i of a byte that was typed, nats, and by how much that may be off.

    It is what the state gave to the byte. That may be too little, or nothing, where the contexts
    that spell the byte were left out before it came; the state after it has looked for them, and
    the two tell how →p_i changed.

    Args:
        member: whose states they are.
        state, after: before the byte and after it; None after what it cannot write.
        byte: what was typed.
        raw: the text before it.

    >>> import charwise
    >>> one = Member(charwise.load())
    >>> state = one.lm.state("import nump")
    >>> logprob, error = likelihood_of_byte(one, state, state + "y", 121, b"import nump")
    >>> bool(np.isclose(logprob, state.next().logprobs[121])), error < 0.01
    (True, True)
    """
    if state is None or after is None:
        return -math.inf, 0.0
    nxt = state.next()
    p = float(nxt.probs[byte])
    if p > nxt.error:
        return math.log(p), math.log1p(nxt.error / p)
    if isinstance(state, State) and isinstance(after, State) and state.shared is after.shared:
        error = sum(-math.log1p(-min(one.error, 0.999)) for one in (state, after))
        return after.logprob - state.logprob, error
    if p > 0:
        return math.log(p), math.log1p(nxt.error / p)
    one = Team((member,), Mixture((1.0,)))
    logprob, error = likelihoods(one, bytes([byte]), raw)[:, 0, 0].tolist()
    return logprob, error
