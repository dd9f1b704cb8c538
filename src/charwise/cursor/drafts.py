"""Texts being drawn: a member of the covering, then token by token.

What `complete` and `stream` (`generation.py`) share. Under a constraint, members are those that run
past the text with bytes that may follow, and each row is masked before a token is drawn.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import torch

from charwise.constraints.constraint import Constraint, Flags, TokenConstraint
from charwise.constraints.walk import walk
from charwise.coverings.bundles import Bundle
from charwise.cursor.distributions import NextBytes
from charwise.cursor.limit import Limit
from charwise.cursor.sampling import MOST_DRAWN, Sampling, draw_tokens
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import ConstraintError, check_count
from charwise.tokens.stops import Stops, StopStrings
from charwise.tokens.utf8 import decoder_after, pending


class Cursor(Protocol):
    """A `State`, as far as drawing tokens after it goes."""

    shared: SharedTree

    @property
    def raw(self) -> bytes: ...
    @property
    def bundles(self) -> tuple[Bundle, ...]: ...
    @property
    def logprob(self) -> float: ...
    @property
    def exact_from(self) -> int: ...
    @property
    def at_root(self) -> bool: ...


class Typed(Cursor, Protocol):
    """A `State`, as far as going on from it byte by byte goes."""

    def next(self) -> NextBytes: ...
    def __add__(self, more: bytes, /) -> Self: ...


@dataclass(frozen=True)
class Completion:
    """What comes after a prompt.

    Attributes:
        text: the completion, without the prompt and without the stop string. A character that
            the prompt began is in it whole.
        raw: its bytes, of which `text` shows what is valid UTF-8.
        logprob: log-probability of the tokens drawn, given the prompt's characters, at
            temperature 1 and without truncation, nats.
        token_ids: the tokens drawn, from `exact_from` on: the covering's member, then the rest.
        exact_from: offset in the prompt, in bytes, before which only its canonical tokenization
            is conditioned on.
        finish: "end" (end of text), "stop" (a stop string), "length", "window", "time",
            "cancelled", "constraint" (nothing more may follow) or "dead end" (nothing that may
            follow has a token, or any probability).
        drawn: bytes that the tokens drawn add to the prompt, what `text` leaves off included; the
            end of text counts as one.

    >>> import charwise
    >>> completion = charwise.load().complete("import nump", max_new_bytes=1)[0]
    >>> completion.text, completion.exact_from, completion.finish
    ('y', 0, 'length')
    """

    text: str
    raw: bytes
    logprob: float
    token_ids: list[int]
    exact_from: int
    finish: str
    drawn: int

    @property
    def bits_per_byte(self) -> float:
        """Surprisal of what was drawn, for each byte of it: comparable across lengths.

        0 if nothing was drawn.
        """
        return -self.logprob / math.log(2) / self.drawn if self.drawn else 0.0


@dataclass
class Draft:
    """A completion being drawn."""

    node: int
    token: int  # drawn after `node`, not evaluated yet; −1 before the first
    token_ids: list[int]
    raw: bytes  # bytes after the prompt
    logprob: float
    finish: str = ""
    cut: int = field(default=-1)  # where a stop string starts
    may_follow: TokenConstraint | None = None
    mask: Flags | None = None  # [width] of `may_follow`


def check_begins(raw: bytes, constraint: Constraint) -> None:
    """Refuse a constraint on whole characters after a text that ends inside of one.

    Raises:
        ConstraintError: what the text ends with.
    """
    begun = pending(raw)
    if begun and constraint.characters:
        raise ConstraintError(
            f"the text ends inside a character ({begun!r}), and the constraint begins with a whole "
            "one: give whole characters, or choices(…), which may be any bytes."
        )


class Drafts:
    """The completions of one request while they are drawn."""

    def __init__(
        self,
        state: Cursor,
        n: int,
        max_new_bytes: int,
        stop: StopStrings,
        sampling: Sampling,
        limit: Limit,
        constraint: Constraint | None = None,
    ) -> None:
        check_count("n", n, 1, MOST_DRAWN)
        check_count("max_new_bytes", max_new_bytes, 0)
        self.stops = Stops(stop)
        self.state, self.sampling, self.most = state, sampling, max_new_bytes
        self.limit = limit
        self.shared = state.shared
        self.tree = self.shared.evaluated.tree
        self.mine: list[int] = []
        self.rows: list[tuple[Draft, torch.Tensor]] = []  # what the last tokens were drawn from
        seed = secrets.randbits(63) if sampling.seed is None else int(sampling.seed)
        self.rng = np.random.default_rng(seed)
        device = self.shared.engine.device
        self.torch_rng = torch.Generator(device).manual_seed(seed % 2**63)
        if constraint is not None:
            check_begins(state.raw, constraint)
        self.drafts = draw_members(state, n, sampling, self.rng, constraint)
        for draft in self.drafts:
            if constraint is not None:
                draft.may_follow = constraint.over(self.shared.index).after(draft.raw)
            self._check(draft)

    def active(self) -> list[Draft]:
        return [draft for draft in self.drafts if not draft.finish]

    def done(self) -> int:
        """How many bytes are settled, of those that may be drawn."""
        return sum(
            self.most if draft.finish else min(self.most, len(draft.raw)) for draft in self.drafts
        )

    def advance(self) -> None:
        """Evaluate every unfinished draft's last token and draw its next."""
        drafts = self.ready()
        if not drafts:
            return
        with self.shared.lock:
            edges = [(draft.node, draft.token) for draft in drafts if draft.token >= 0]
            logprobs = self.moved(drafts, self.tree.extend(edges) if edges else [])
        self.draw(drafts, logprobs)

    def ready(self) -> list[Draft]:
        """The drafts that go on: neither the limit nor the window ends them here."""
        window = self.shared.engine.window
        reached = self.limit.reached()
        for draft in self.active():
            draft.finish = reached
            if window is not None and not reached:
                longer = self.shared.length(draft.node) + (draft.token >= 0)
                draft.finish = "window" if longer > window else ""
        return self.active()

    def moved(self, drafts: list[Draft], nodes: list[int]) -> torch.Tensor:
        """Log-probabilities after these drafts, `[n, width]`; `nodes` of those with a token.

        The tree's lock is held.
        """
        self.mine += nodes
        new = [draft for draft in drafts if draft.token >= 0]
        for draft, node in zip(new, nodes, strict=True):
            draft.node = node
        logprobs = self.tree.logprobs([draft.node for draft in drafts])
        self.tree.forget(nodes)
        return logprobs

    def draw(self, drafts: list[Draft], logprobs: torch.Tensor) -> None:
        """Draw the next token of each of these drafts."""
        vocabulary = self.shared.index.vocabulary
        drafts, allowed = self.reachable(drafts, logprobs)
        if not drafts:
            return
        tokens = draw_tokens(allowed, self.sampling, self.torch_rng)
        scores = allowed.gather(1, tokens[:, None])[:, 0].double().tolist()
        self.rows = list(zip(drafts, allowed, strict=True))
        for draft, token, score in zip(drafts, tokens.tolist(), scores, strict=True):
            draft.logprob += score
            draft.token = token
            if token in vocabulary.end_ids:
                draft.finish = "end"
                continue
            draft.token_ids.append(token)
            self.take(draft, vocabulary.tokens[token] or b"")
            self._check(draft)

    def take(self, draft: Draft, data: bytes) -> None:
        """Add the bytes of a token to a draft."""
        draft.raw += data
        if draft.may_follow is not None:
            draft.may_follow = draft.may_follow.after(data)

    def reachable(
        self, drafts: list[Draft], logprobs: torch.Tensor
    ) -> tuple[list[Draft], torch.Tensor]:
        """The drafts that can go on as they may, and their rows, −inf where they may not."""
        masks = [draft.mask for draft in drafts]
        if any(mask is None for mask in masks):
            return drafts, logprobs
        wrong = torch.from_numpy(~np.stack(masks)).to(logprobs.device)  # type: ignore[arg-type]
        allowed = logprobs.masked_fill(wrong, -torch.inf)
        alive = (allowed > -torch.inf).any(dim=1).tolist()
        for draft, lives in zip(drafts, alive, strict=True):
            draft.finish = "" if lives else "dead end"
        return [draft for draft in drafts if not draft.finish], allowed[torch.tensor(alive)]

    def _check(self, draft: Draft) -> None:
        """Finish a draft that holds a stop string, or enough bytes."""
        match = self.stops.first(draft.raw)
        if match is not None and match[0] <= self.most:
            draft.cut, draft.finish = match[0], "stop"
        elif len(draft.raw) >= self.most:
            draft.finish = "length"
        if draft.finish or draft.may_follow is None:
            return
        draft.mask = draft.may_follow.mask()
        ends = list(self.shared.index.vocabulary.end_ids)
        if not np.delete(draft.mask, ends).any():
            draft.finish = "constraint" if draft.mask.any() else "dead end"

    def kept(self, draft: Draft) -> bytes:
        """The bytes of a draft up to the stop string or the limit, whole characters only."""
        if draft.cut >= 0:
            return draft.raw[: draft.cut]
        if len(draft.raw) < self.most:
            return draft.raw
        text = self.state.raw[-3:] + draft.raw[: self.most]
        return draft.raw[: max(0, self.most - len(pending(text)))]

    def safe(self, draft: Draft) -> int:
        """How many bytes of a draft can be sent: no stop string can still begin before."""
        return min(len(draft.raw) - self.stops.held(draft.raw), len(self.kept(draft)))

    def completion(self, draft: Draft) -> Completion:
        raw = self.kept(draft)
        return Completion(
            decoder_after(self.state.raw).decode(raw),
            raw,
            draft.logprob,
            draft.token_ids,
            self.state.exact_from,
            draft.finish,
            len(draft.raw) + (draft.finish == "end"),
        )

    def close(self) -> None:
        """Give back the memory of the contexts drawn on the way."""
        self.shared.drop(self.mine)
        self.mine = []


def draw_members(
    state: Cursor,
    n: int,
    sampling: Sampling,
    rng: np.random.Generator,
    constraint: Constraint | None = None,
) -> list[Draft]:
    """n members of the covering: drawn by prefix probability, or the n most probable.

    Under a constraint those that run past the text with bytes that may follow.

    Raises:
        ConstraintError: if there is none.
    """
    shared = state.shared
    index, tree = shared.index, shared.evaluated.tree
    if state.at_root:
        return [Draft(state.bundles[0].node, -1, [], b"", 0.0) for _ in range(n)]
    covering = [bundle for bundle in state.bundles if bundle.depth > 0]
    with shared.lock:
        rows = [shared.evaluated.row(b.node).in_order[b.lo : b.hi] for b in covering]
    if constraint is not None:
        may = [walk(constraint, index, b.lo, b.hi, b.depth) for b in covering]
        rows = [np.where(fits, row, 0.0) for fits, row in zip(may, rows, strict=True)]
        if not any(row.any() for row in rows):
            raise ConstraintError(
                "no token with which the text goes on fits the constraint, or all that do have "
                "probability zero."
            )
    weights = np.array([bundle.log_weight for bundle in covering])
    with np.errstate(divide="ignore"):
        logs = np.concatenate([w + np.log(row) for w, row in zip(weights, rows, strict=True)])
    if sampling.temperature == 0:
        chosen = np.argsort(-logs, kind="stable")[:n]
        chosen = np.resize(chosen[np.isfinite(logs[chosen])], n)
    else:
        with np.errstate(over="ignore"):
            p = np.exp((logs - logs.max()) / sampling.temperature)
        chosen = rng.choice(len(logs), size=n, p=p / p.sum())
    ends = np.cumsum([len(row) for row in rows])
    drafts = []
    for at in chosen.tolist():
        which = int(np.searchsorted(ends, at, side="right"))
        bundle = covering[which]
        rank = bundle.lo + at - (int(ends[which]) - len(rows[which]))
        token = int(index.ids[rank])
        ids = [*tree.tokens(bundle.node), token]
        raw = index.sorted[rank][bundle.depth :]
        drafts.append(Draft(bundle.node, token, ids, raw, float(logs[at]) - state.logprob))
    return drafts
