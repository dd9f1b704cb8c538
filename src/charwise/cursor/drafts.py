"""Texts being drawn: a member of the covering, then token by token.

What `complete` and `stream` (`generation.py`) share. Under a constraint, members are those that run
past the text with bytes that may follow (`members.py`), and tokens those that may
(`following.py`).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np
import torch

from charwise.constraints.constraint import END, Constraint
from charwise.coverings.bundles import Bundle
from charwise.cursor.distributions import NextBytes
from charwise.cursor.following import Following, check_begins
from charwise.cursor.limit import Limit
from charwise.cursor.members import Members
from charwise.cursor.sampling import MOST_DRAWN, Sampling, draw_tokens
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import check_count
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


class Placed(Protocol):
    """A `State`, or another one, as far as a text after it goes."""

    @property
    def raw(self) -> bytes: ...
    @property
    def exact_from(self) -> int: ...


class Bytewise(Placed, Protocol):
    """A `State`, or another one, as far as going on from it byte by byte goes."""

    def next(self) -> NextBytes: ...
    def __add__(self, more: bytes, /) -> Self: ...


class Typed(Cursor, Bytewise, Protocol):
    """A `State`, as far as drawing goes."""


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
            follow has a token, or any probability). Under a JSON schema, "end", "stop" and
            "constraint" say that the text is valid.
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
    following: Following | None = None


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
        self.shared, index = state.shared, state.shared.index
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
        begun = None if constraint is None else Following.of(constraint, index)
        for draft in self.drafts:
            draft.following = None if begun is None else begun.after(draft.raw)
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
        drafts, rows = self.reachable(drafts, logprobs)
        if not drafts:
            return
        tokens = draw_tokens(rows, self.sampling, self.torch_rng).tolist()
        self.rows = list(zip(drafts, rows, strict=True))
        for at, (draft, row) in enumerate(self.rows):
            if draft.following is not None:
                tokens[at], draft.following = draft.following.draw(
                    tokens[at], row, self.sampling, self.torch_rng
                )
        drawn = torch.tensor(tokens, device=rows.device).clamp(min=0)[:, None]
        scores = rows.gather(1, drawn)[:, 0].double().tolist()
        for draft, token, score in zip(drafts, tokens, scores, strict=True):
            if token < 0:
                draft.finish = "dead end"
                continue
            draft.logprob += score
            draft.token = token
            if token in vocabulary.end_ids:
                draft.finish = "end"
                continue
            draft.token_ids.append(token)
            self.take(draft, vocabulary.tokens[token] or b"")
            self._check(draft)

    def reachable(
        self, drafts: list[Draft], logprobs: torch.Tensor
    ) -> tuple[list[Draft], torch.Tensor]:
        """The drafts that can go on, and the rows from which they draw."""
        return drafts, logprobs

    def take(self, draft: Draft, data: bytes) -> None:
        """Add the bytes of a token to a draft."""
        draft.raw += data

    def _check(self, draft: Draft) -> None:
        """Finish a draft that holds a stop string, or enough bytes."""
        match = self.stops.first(draft.raw)
        if match is not None and match[0] <= self.most:
            draft.cut, draft.finish = match[0], "stop"
        elif len(draft.raw) >= self.most:
            draft.finish = "length"
        elif draft.following is not None and draft.following.closed:
            draft.finish = "constraint" if draft.following.allowed[END] else "dead end"

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
    members = Members(shared, state.bundles)
    if constraint is None:
        chosen = members.choose(n, sampling, rng)
    else:
        chosen = members.choose_under(constraint, n, sampling, rng)
    drafts = []
    for at in chosen:
        bundle, rank = members.place(at)
        token, logprob = int(index.ids[rank]), float(members.logs[at]) - state.logprob
        ids = [*tree.tokens(bundle.node), token]
        drafts.append(Draft(bundle.node, token, ids, members.beyond(at), logprob))
    return drafts
