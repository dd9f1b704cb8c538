"""Several models as one: mixtures, products and more, with any tokenizers, as a plain `CharLM`.

Over bytes every model has the same 257 outcomes. With n members, a combination gives to the next
byte c (or the end) of a text σ

    mixture            Σ λ_i(σ) p_i(c | σ),  λ_i(σ) ∝ λ_i →p_i(σ)   one member writes the text
    product            ∝ Π p_i(c | σ)^{w_i}                         texts that all find likely
    minimum, maximum   ∝ min_i p_i(c | σ), max_i p_i(c | σ)

where →p_i(σ) is the probability that a text of member i begins with σ. docs/combine.md says more.

It is an engine whose 256 tokens are the bytes. A text has one tokenization then, so `CharLM` does
the rest. The nodes of a tree are texts. A long new text is one pass of each member
(`CharLM.scores_with_rows`); a byte that follows is a step of each member's state. A mixture also
needs the probability that the members gave to the text so far: its evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.char_lm import CharLM
from charwise.cursor.state import State
from charwise.engine import Branches
from charwise.engines.base import BaseTree
from charwise.errors import (
    SettingError,
    VocabularyError,
    ZeroProbabilityError,
    check_number,
    each_or_error,
    quantity,
    quote,
)
from charwise.scoring.effort import MOST_ROUNDS
from charwise.surprisal.score import Score
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompts import Prompt, last_text, parts_of
from charwise.tokens.vocabulary import Vocabulary

__all__ = ["Member", "contrast", "maximum", "minimum", "mixture", "product", "shares"]

Floats = NDArray[np.float64]

#: The bytes are the tokens 0 to 255. Token 256 ends a text, and begins one.
_BYTES = Vocabulary.from_bytes(
    [*(bytes([byte]) for byte in range(256)), None], end_ids=[256], bos_ids=[256]
)

#: The errors of a text that a member cannot write.
IMPOSSIBLE = (ZeroProbabilityError, VocabularyError)


@dataclass(frozen=True)
class Member:
    """A model, and the text before that it alone gets.

    Attributes:
        lm: the model. Its own preset or tolerance says how much it spends.
        before: a system prompt or a template in the model's own form: text, or a list of texts
            and special token ids. It is conditioned on, and no evidence for a mixture.

    Raises:
        SettingError: what is no model.
        VocabularyError: for what is no prompt of the model.

    >>> import charwise
    >>> lm = charwise.load()
    >>> numerical = Member(lm, before="import numpy as np\\n")
    >>> charwise.combine.mixture([numerical]).next("x = n").top(1)[0][0]
    'p'
    """

    lm: CharLM
    before: Prompt = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lm, CharLM):
            raise SettingError(f"{quote(self.lm)} is no model: give what charwise.load returns.")
        self.lm.vocabulary.split_prompt(self.before)

    def prompt(self, text: bytes) -> Prompt:
        """Return the model's own prompt for a text."""
        ids, before = last_text(parts_of(self.before))
        return [*ids, before + text]

    def state(self, text: bytes) -> State | None:
        """The model's state after a text; None if it cannot write it.

        A product or a minimum turns a small error into a large one where one member leaves out a
        byte. So typed bytes open lighter contexts than those of a state by itself.
        """
        try:
            state = self.lm.state(self.prompt(text))
        except IMPOSSIBLE:
            return None
        if not state.effort.exact:
            state.effort = replace(state.effort, rounds=max(MOST_ROUNDS + 2, state.effort.rounds))
        return state


def mixture(members: Sequence[CharLM | Member], weights: Sequence[float] | None = None) -> CharLM:
    """Return the mixture Σ_i λ_i p_i of distributions over texts: one member writes the whole text.

    At each byte the members count by λ_i(σ) ∝ λ_i →p_i(σ), Bayes' rule: see `shares`.

    Args:
        members: models, or `Member`s.
        weights: λ, none negative; divided by their sum. By default equal.

    Raises:
        SettingError: no members, or no such weights.

    >>> lm = charwise.load()
    >>> mixture([lm, Member(lm, "import numpy as np\\n")], [3, 1]).next("x = n").top(1)[0][0]
    'p'
    """
    prior = [1.0] * len(members) if weights is None else list(weights)
    if prior and not (min(prior) >= 0 and 0 < sum(prior) < math.inf):
        raise SettingError(f"weights {prior}: of a mixture, none is negative, and one is above 0.")
    return _combined(members, "mixture", [share / sum(prior) for share in prior])


def product(members: Sequence[CharLM | Member], weights: Sequence[float] | None = None) -> CharLM:
    """Return the product ∝ Π_i p_i^{w_i}, normalised at each byte: what all members find likely.

    What a member gives probability zero is impossible, whatever its weight's sign.

    Args:
        members: models, or `Member`s.
        weights: w, any numbers; by default 1/n each, the geometric mean. Of weights 1, α and −α
            the product is proxy tuning (Liu et al., COLM 2024).

    Raises:
        SettingError: no members, or not as many weights.

    >>> lm = charwise.load()
    >>> product([lm, lm]).next("import nump").top(1)[0][0]
    'y'
    """
    equal = [1 / max(1, len(members))] * len(members)
    return _combined(members, "product", equal if weights is None else list(weights))


def minimum(members: Sequence[CharLM | Member]) -> CharLM:
    """Return the minimum ∝ min_i p_i: each byte has the least probability that a member gives it.

    >>> minimum([charwise.load()]).next("import nump").top(1)[0][0]
    'y'
    """
    return _combined(members, "minimum", [1.0] * len(members))


def maximum(members: Sequence[CharLM | Member]) -> CharLM:
    """Return the maximum ∝ max_i p_i: each byte has the most probability that a member gives it.

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
    return CharLM(_CombinedLM(members, _Pool(kind, tuple(weights), share)), preset="exact")


def shares(lm: CharLM, text: str | bytes = "") -> Floats:
    """Return the weight λ_i(text) of each member of a mixture after a text, `[n]`, by Bayes' rule.

    >>> lm = charwise.load()
    >>> both = mixture([lm, Member(lm, before="import numpy as np\\n")])
    >>> shares(both).tolist(), bool(shares(both, "x = np")[1] > 0.5)
    ([0.5, 0.5], True)
    """
    engine = lm.engine
    if not isinstance(engine, _CombinedLM) or engine.pool.kind != "mixture":
        raise SettingError("only a mixture has shares.")
    return _shares_of(engine.tree([256, *to_bytes(text)]).evidence(0)[0])


Kind = Literal["mixture", "product", "minimum", "maximum"]


@dataclass(frozen=True)
class _Pool:
    """How the log-probabilities of n members become one."""

    kind: Kind
    weights: tuple[float, ...]
    plausibility: float = 0.0

    def row(self, logs: Floats, evidence: Floats) -> Floats:
        """`[257]` log-probabilities of `[n, 257]` and `[n]` log λ_i →p_i; −inf if all are."""
        logs_of_masses = self._masses(logs, evidence)
        if self.plausibility:
            least = logs[0].max() + math.log(self.plausibility)
            # Not impossible: a prompt may hold such a byte.
            logs_of_masses = np.where(logs[0] < least, logs_of_masses - 100, logs_of_masses)
        total = np.logaddexp.reduce(logs_of_masses)
        return np.asarray(logs_of_masses - (total if total > -np.inf else 0.0))

    def _masses(self, logs: Floats, evidence: Floats) -> Floats:
        if self.kind == "mixture":
            shares = evidence - max(float(np.logaddexp.reduce(evidence)), -1e300)
            return np.asarray(np.logaddexp.reduce(logs + shares[:, None], axis=0))
        if self.kind != "product":
            return np.asarray(logs.min(axis=0) if self.kind == "minimum" else logs.max(axis=0))
        total = np.zeros(logs.shape[1])
        for weight, log in zip(self.weights, logs, strict=True):
            if weight:  # what a member cannot write is impossible, whatever the weight's sign
                total = np.where(log > -np.inf, total + weight * np.maximum(log, -1e300), -np.inf)
        return total

    def byte_error(self, p: float, evidence: Floats, step: Floats) -> float:
        """By how much the log of a byte's probability p may be off, nats; steps as `_step`."""
        errors = step[1]
        if self.kind == "mixture":
            now, after = _shares_of(evidence[0]), _shares_of(evidence[0] + step[0])
            return float(after @ errors + np.abs(after - now) @ evidence[1])
        total = np.abs(self.weights) @ errors if self.kind == "product" else errors.max()
        if p >= 1.0 or not total:
            return 0.0
        # The byte loses all of it where every other one gains as much.
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(np.log(p), np.log1p(-p) + 2.0 * total))

    def next_error(self, logs: Floats, evidence: Floats, errors: Floats) -> float:
        """By how much a row may be off, as a total variation.

        `[2, n]` errors are total variations of the members' rows, and nats of their evidence. A
        member's error is taken to sit on the byte where it matters most.
        """
        row = np.exp(self.row(logs, evidence))
        if self.kind == "mixture":
            rows, weights, moved = np.exp(logs), _shares_of(evidence), [0.0]
            for member in np.flatnonzero(np.isfinite(evidence)):
                other = evidence - errors[1]  # this member foresaw more, all others less
                other[member] = evidence[member] + errors[1, member]
                moved.append(0.5 * float(np.abs((_shares_of(other) - weights) @ rows).sum()))
            return min(1.0, float(weights @ errors[0]) + max(moved))
        total, masses = 0.0, self._masses(logs, evidence)
        for member in np.flatnonzero(errors[0]):
            extra = errors[0, member] / max(1 - errors[0, member], 1e-9)
            more = np.log(np.exp(logs[member]) + extra)
            changes = np.zeros(1)
            for changed in (more, 2 * logs[member] - more):
                with np.errstate(invalid="ignore"):
                    others = np.where(np.arange(len(logs))[:, None] == member, changed, logs)
                    factor = np.nan_to_num(self._masses(others, evidence) - masses, neginf=-700.0)
                new = row * np.exp(np.minimum(factor, 700.0))  # of one byte alone
                now = np.divide(new, 1 - row + new, out=np.zeros(257), where=1 - row + new > 0)
                changes = np.maximum(changes, np.abs(now - row))
            total += float(changes.max())
        return min(1.0, total)


def _shares_of(evidence: Floats) -> Floats:
    """`[n]` λ_i(σ) of `[n]` log λ_i →p_i(σ); zeros if all are −inf."""
    total = np.logaddexp.reduce(evidence)
    return np.exp(evidence - total) if total > -np.inf else np.zeros(len(evidence))


class _CombinedLM:
    """An engine over bytes: a `TokenLM` of several `CharLM`s."""

    vocabulary, window, device = _BYTES, None, torch.device("cpu")

    def __init__(self, members: Sequence[CharLM | Member], pool: _Pool) -> None:
        if not members:
            raise SettingError("a combination has no members: give one model or more.")
        if len(pool.weights) != len(members):
            raise SettingError(
                f"{quantity(len(pool.weights), 'weight')} for {quantity(len(members), 'member')}."
            )
        self.members = tuple(m if isinstance(m, Member) else Member(m) for m in members)
        self.pool = pool

    def tree(self, prompt_ids: Sequence[int], branches: Branches = ()) -> _CombinedTree:
        """A tree whose root is a text; see `TokenLM.tree`."""
        tree = _CombinedTree(self, prompt_ids)
        tree.extend(branches)
        return tree

    def info(self) -> dict[str, str]:
        """The rule, and the `info` of each member."""
        lines = {"engine": f"{self.pool.kind} of {len(self.members)} models"}
        for number, member in enumerate(self.members):
            lines |= {f"member {number}, {name}": v for name, v in member.lm.info().items()}
        return lines


class _CombinedTree(BaseTree):
    """A tree of texts. A pass of each member, or a state of it, says what may follow one."""

    def __init__(self, lm: _CombinedLM, prompt_ids: Sequence[int]) -> None:
        super().__init__(lm, prompt_ids)
        self._members, self._pool = lm.members, lm.pool
        self._mixes = lm.pool.kind == "mixture"
        self._prompt = bytes(id for id in prompt_ids if id < 256)
        # Of a node: [n, 257] log p_i(c | text), and [n] total variations that it may be off.
        self._rows: dict[int, tuple[Floats, Floats]] = {}
        self._states: dict[int, list[State | None]] = {}
        # [2, n] log λ_i →p_i(text), nats, and by how much that may be off: of mixtures.
        self._evidence: dict[int, Floats] = {}
        self.contexts = self.calls = 1

    @property
    def nbytes(self) -> int:
        """The bytes of the members' rows."""
        return 8 * 257 * len(self._members) * len(self._rows)

    def evidence(self, node: int) -> Floats:
        """`[2, n]` log λ_i →p_i(text), nats, and by how much that may be off: of mixtures."""
        if self._mixes and not self._evidence:  # of the root
            passes = [_passes(member, [b""], [self._prompt])[0] for member in self._members]
            self._begin_evidence(np.stack([[one.logprobs, one.errors] for one in passes], axis=1))
        return self._evidence[node] if self._mixes else np.zeros((2, len(self._members)))

    def _begin_evidence(self, steps: Floats) -> None:
        """Keep the root's evidence: `[2, n, T]` of the prompt's bytes, and the weights."""
        self._evidence[0] = steps.sum(axis=2)
        with np.errstate(divide="ignore"):
            self._evidence[0][0] += np.log(self._pool.weights)

    def _evaluate(self, nodes: list[int]) -> None:
        self.calls += 1
        self._evaluate_paths(nodes)
        for node in nodes if self._mixes else ():
            if node not in self._evidence:
                before, token = self._parent[node], self._token[node]
                self._evidence[node] = self.evidence(before) + self._step(before, token, True)

    def _evaluate_paths(self, nodes: list[int]) -> None:
        """Put long new paths to the members as known text: one pass of each for all of them."""
        new, inner = set(nodes), {self._parent[node] for node in nodes}
        paths, prompts = list[list[int]](), list[bytes]()
        for end in nodes:
            path = [] if end in inner else [end]
            while path and path[-1] in new:
                path.append(self._parent[path[-1]])
            if len(path) < 6:
                continue
            before = self._text(path[-1])
            if self._mixes and not self._evidence:
                before = b""  # what the members give to the prompt is evidence
            # After a long text, a few bytes are cheaper as steps of the members' states.
            if len(path) > 25 or 8 * len(path) > len(before):
                paths.append(path[::-1])
                prompts.append(before)
        texts = [self._text(p[-1])[len(b) :] for p, b in zip(paths, prompts, strict=True)]
        columns = [_passes(member, prompts, texts) for member in self._members] if paths else []
        for path, *passes in zip(paths, *columns, strict=True):
            self._add_passes(path, passes)

    def _add_passes(self, path: list[int], passes: list[_Pass]) -> None:
        """Keep what the members' passes say of the nodes along a path, the first one known."""
        rows = np.stack([one.rows for one in passes], axis=1)  # [T + 1, n, 257]
        steps = np.stack([[one.logprobs, one.errors] for one in passes], axis=1)  # [2, n, T]
        off = (np.exp(steps[0]) * np.expm1(np.minimum(steps[1], 1.0))).T  # [T, n]
        # The last row is taken to be as far off as the worst of those before it.
        off = np.concatenate([off, off[-12:].max(axis=0, keepdims=True)])
        first = len(off) - len(path)  # bytes of the prompt, if they count as evidence
        if self._mixes and not self._evidence:
            self._begin_evidence(steps[:, :, :first])
        for at, node in enumerate(path, start=first):
            self._rows.setdefault(node, (rows[at], off[at]))
            if at > first and self._mixes:
                before = self._evidence[self._parent[node]]
                self._evidence.setdefault(node, before + steps[:, :, at - 1])

    def _step(self, node: int, token: int, look_up: bool = False) -> Floats:
        """`[2, n]` log p_i of a byte after a node, nats, and by how much that may be off.

        A byte that is less likely than a state's error may be one that the state left out: that
        can be looked up, by a pass.
        """
        logs, off = self._row(node)
        p = np.exp(logs[:, token])
        errors = np.log1p(np.divide(off, p, out=np.zeros_like(p), where=p > 0))
        step = np.stack([logs[:, token], errors])
        for number in np.flatnonzero((p <= off) & (off > 0)) if look_up else ():
            one = _passes(self._members[number], [self._text(node)], [bytes([token])])[0]
            step[:, number] = one.logprobs[0], one.errors[0]
        return step

    def _row(self, node: int) -> tuple[Floats, Floats]:
        """`[n, 257]` log p_i(c | text), and `[n]` total variations that it may be off."""
        if node not in self._rows:
            logs, off = np.full((len(self._members), 257), -np.inf), np.zeros(len(self._members))
            for number, state in enumerate(self._states_at(node)):
                if state is not None:
                    following = state.next()
                    logs[number], off[number] = following.logprobs, following.error
            self._rows[node] = logs, off
        return self._rows[node]

    def _states_at(self, node: int) -> list[State | None]:
        """The members' states; None of one that cannot write the text."""
        if node not in self._states:
            before = self._states.get(self._parent[node])
            if before is None:
                text = self._text(node)
                self._states[node] = [member.state(text) for member in self._members]
            else:
                byte = bytes([self._token[node]])
                self._states[node] = [_after(state, byte) for state in before]
        return self._states[node]

    def _text(self, node: int) -> bytes:
        return self._prompt + bytes(self.tokens(node))

    def logprobs(self, nodes: Sequence[int]) -> torch.Tensor:
        """`[n, 257]` float64; see `TokenTree.logprobs`."""
        rows = np.empty((len(nodes), 257))
        with self._lock:
            self._check(nodes)
            for row, node in zip(rows, nodes, strict=True):
                logs, off = self._row(node)
                row[:] = self._pool.row(logs, self.evidence(node)[0])
                if node in self._states and off.any() and row.max() > -np.inf:
                    row[row < -100] = -100  # what the members' states left out may be typed
        return torch.from_numpy(rows)

    def errors(self, nodes: Sequence[int], tokens: Sequence[int]) -> Floats:
        """`[k]` by how much log p(token | node) may be off, nats: of k pairs."""
        errors = np.zeros(len(nodes))
        with self._lock:
            for at, (node, token) in enumerate(zip(nodes, tokens, strict=True)):
                (logs, off), evidence = self._row(node), self.evidence(node)
                if off.any():
                    p = math.exp(self._pool.row(logs, evidence[0])[token])
                    errors[at] = self._pool.byte_error(p, evidence, self._step(node, token))
        return errors

    def next_error(self, node: int) -> float:
        """By how much the row of a node may be off, as a total variation."""
        with self._lock:
            logs, off = self._row(node)
            evidence, wrong = self.evidence(node)
            errors = np.stack([off, wrong])
            return self._pool.next_error(logs, evidence, errors) if errors.any() else 0.0

    def _take_back(self, size: int) -> None:
        self._free(set(range(size, self._size)))

    def _free(self, nodes: set[int]) -> None:
        for node in nodes:
            for known in (self._rows, self._states, self._evidence):
                known.pop(node, None)


class _Pass(NamedTuple):
    """What a member says along a known text: −inf from the first byte on that it cannot write."""

    logprobs: Floats  # [T]
    rows: Floats  # [T + 1, 257] log p(c | text so far)
    errors: Floats  # [T] of the log-probabilities, nats


def _passes(member: Member, starts: Sequence[bytes], texts: Sequence[bytes]) -> list[_Pass]:
    """A member's passes over texts, each after another one."""

    def run(pairs: Sequence[tuple[bytes, bytes]]) -> list[Score]:
        prompts = [member.prompt(before) for before, _ in pairs]
        return member.lm.scores_with_rows([text for _, text in pairs], contexts=prompts, end=True)

    passes, pairs = [], list(zip(starts, texts, strict=True))
    for (before, text), one in zip(pairs, each_or_error(run, pairs, IMPOSSIBLE), strict=True):
        if isinstance(one, Score):
            with np.errstate(divide="ignore"):
                passes.append(_Pass(one.logprobs, np.log(one.distributions), one.error))  # type: ignore[arg-type]
        else:
            passes.append(_pass_by_steps(member, before, text))
    return passes


def _pass_by_steps(member: Member, before: bytes, text: bytes) -> _Pass:
    """A member's pass over a text of which it can write a beginning, or nothing."""
    rows, errors = np.full((len(text) + 1, 257), -np.inf), np.zeros(len(text))
    state = member.state(before)
    for at, byte in enumerate(text):
        if state is None:
            break
        following = state.next()
        rows[at] = following.logprobs
        errors[at] = math.log1p(following.error / max(following.probs[byte], 1e-300))
        state = _after(state, bytes([byte]))
    return _Pass(rows[np.arange(len(text)), list(text)], rows, errors)


def _after(state: State | None, byte: bytes) -> State | None:
    """The state after one more byte; None if its model cannot write that."""
    try:
        return None if state is None else state + byte
    except IMPOSSIBLE:
        return None
