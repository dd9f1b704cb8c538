"""Completions drawn from p(completion | the prompt's characters).

Vieira et al. 2025, §3.4 and Proposition 2: draw a member of the prompt's covering in proportion to
its prefix probability, then go on token by token, as the model always does. The member's last token
may run past the prompt, so there is no boundary at the cursor. A constraint masks, at each step,
what may not follow. docs/healing.md derives it, and shows how token healing differs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint
from charwise.coverings.bundles import Bundle
from charwise.cursor.options import GenerationOptions, Limit
from charwise.cursor.shared_tree import Cursor, SharedTree
from charwise.engine import Branches, TogetherLM
from charwise.errors import ConstraintError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.stops import Stops
from charwise.tokens.utf8 import decoder_after, pending

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Completion:
    """A text after a prompt.

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
        """The surprisal of the completion for each byte drawn, comparable across lengths."""
        return -self.logprob / math.log(2) / self.drawn if self.drawn else 0.0


def pick(
    logs: Floats, options: GenerationOptions, rng: np.random.Generator, n: int = 1
) -> list[int]:
    """The places of n draws from log weights `[m]`; at temperature 0 of the n heaviest.

    At least one weight is above −inf. Fewer than n are, at temperature 0, all that are.
    """
    if options.temperature == 0:
        if n == 1:
            return [int(logs.argmax())]
        heaviest = np.argsort(-logs, kind="stable")[:n]
        return list(heaviest[logs[heaviest] > -np.inf].tolist())
    # Less their maximum first, so that the smallest temperatures do not overflow.
    with np.errstate(over="ignore"):
        masses = np.exp((logs.astype(np.float64) - float(logs.max())) / options.temperature)
    if options.top_k:
        kth = min(options.top_k, len(masses))
        masses[masses < np.partition(masses, -kth)[-kth]] = 0.0
    masses /= masses.sum()
    if options.top_p < 1:
        order = np.argsort(-masses, kind="stable")
        before = np.cumsum(masses[order]) - masses[order]
        masses[order[before >= options.top_p]] = 0.0
        masses /= masses.sum()
    return list(rng.choice(len(masses), size=n, p=masses).tolist())


class NextTokens:
    """The tokens that may come next after some contexts, bundle after bundle, as one array.

    `logs` are `[n]` log-probabilities of the contexts with a token more, nats.
    """

    def __init__(
        self, index: SortedVocabulary, bundles: Sequence[Bundle], logs: Sequence[Floats]
    ) -> None:
        self.index, self.bundles = index, bundles
        self.logs: NDArray[np.float64] = np.concatenate(logs)
        self._starts = np.cumsum([0, *map(len, logs)])  # where the tokens of each bundle begin

    @classmethod
    def covering(cls, state: Cursor) -> NextTokens:
        """The members of the covering: after them, the text is spelled."""
        bundles = [bundle for bundle in state.bundles if bundle.depth]
        with state.shared.lock, np.errstate(divide="ignore"):
            tree = state.shared.tree
            logs = [b.log_weight + np.log(tree.row(b.node).in_order[b.lo : b.hi]) for b in bundles]
        return cls(state.shared.index, bundles, logs)

    @property
    def shifts(self) -> list[int]:
        """For each bundle: the place of a token less its rank in the sorted vocabulary."""
        return [at - b.lo for at, b in zip(self._starts.tolist(), self.bundles, strict=False)]

    def at(self, place: int) -> tuple[Bundle, int, bytes]:
        """The bundle of a token, its id, and its bytes after the text."""
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        bundle, rank = self.bundles[number], place - self.shifts[number]
        return bundle, int(self.index.ids[rank]), self.index.sorted[rank][bundle.depth :]

    def draw(
        self, options: GenerationOptions, rng: np.random.Generator, n: int
    ) -> list[tuple[int, Constraint | None]]:
        """The places of n tokens, and what the constraint allows after; fewer at temperature 0.

        A token that may not follow is drawn again, without those of all bundles that leave the
        constraint where it does. So those drawn have their probabilities among all that may.

        Raises:
            ConstraintError: if none may follow.
        """
        plain, logs = GenerationOptions(temperature=options.temperature), self.logs.copy()
        pairs: list[tuple[int, Constraint | None]] = []
        while len(pairs) < n and logs.max() > -np.inf:
            some = n - len(pairs) if options.constraint is None or options.temperature else 1
            for place in pick(logs, plain, rng, some):
                constraint = options.constraint
                if constraint is not None:
                    beyond = self.at(place)[2]
                    try:
                        constraint = constraint.after(beyond)
                    except ConstraintError as error:
                        self.rule_out(beyond[: error.position], constraint, logs)
                        continue
                pairs.append((place, constraint))
                if not options.temperature:
                    logs[place] = -np.inf
        if not pairs:
            raise ConstraintError(
                "no token with which the text goes on fits the constraint, or all that do have "
                "probability zero."
            )
        return pairs

    def rule_out(self, common: bytes, constraint: Constraint, logs: Floats) -> None:
        """Leave out the tokens that go on with `common`, and then with a byte not allowed."""
        allowed, index = constraint.after(common).allowed()[:END], self.index
        for bundle, shift in zip(self.bundles, self.shifts, strict=True):
            depth = bundle.depth + len(common)
            lo, hi = index.range(index.sorted[bundle.lo][: bundle.depth] + common)
            while lo < hi and len(index.sorted[lo]) == depth:
                lo += 1  # ends here
            following = index.flat[index.starts[lo:hi] + depth]
            logs[lo + shift : hi + shift][~allowed[following]] = -np.inf


@dataclass
class Partial:
    """A completion that is being drawn, and where it stands in the token tree."""

    node: int
    token: int = -1  # drawn after `node`, not evaluated yet; −1 before the first
    raw: bytes = b""  # after the prompt
    logprob: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    finish: str = ""
    text_end: int = -1  # where a stop string, or the server's rule, ends the text
    searched: int = 0  # bytes in which no stop string is complete
    constraint: Constraint | None = None  # what may follow, over bytes
    tokens: Constraint | None = None  # the same over tokens


class Generation:
    """The completions of one request while they are drawn.

    `rows` has the log-probabilities that the last tokens were drawn from, by `id` of a partial.
    """

    def __init__(self, state: Cursor, options: GenerationOptions, limit: Limit) -> None:
        if options.constraint is not None:
            check_begins(state.raw, options.constraint)
        self.options, self.limit = options, limit
        self.shared, self.before, self.exact_from = state.shared, state.raw, state.exact_from
        self.most, self.stops = options.max_new_bytes, Stops(options.stop)
        self.rng = np.random.default_rng(options.seed)
        self.rows: dict[int, Floats] = {}
        self._nodes: list[int] = []
        self.partials: list[Partial] = self._begin(state)
        for partial in self.active():
            self._check(partial)

    def active(self) -> list[Partial]:
        """The completions that are not finished."""
        return [partial for partial in self.partials if not partial.finish]

    def completions(self) -> list[Completion]:
        """All of them, drawn to the end; at temperature 0 each text once, the likeliest first."""
        try:
            while self.active():
                self.advance()
                if self.options.progress is not None:
                    sizes = (self.most if p.finish else len(p.raw) for p in self.partials)
                    self.options.progress(sum(sizes), self.options.n * self.most)
        finally:
            self.close()
        completions = [self.completion(partial) for partial in self.partials]
        return completions if self.options.temperature else distinct(completions)

    def pieces(self) -> Iterator[str]:
        """One completion in pieces of whole characters; what may begin a stop string waits."""
        [partial], decoder, offset = self.partials, decoder_after(self.before), 0
        exiting = sys.is_finalizing  # modules are gone by then
        try:
            while True:
                end = self.safe(partial)
                if piece := decoder.decode(self.text_of(partial)[offset:end]):
                    yield piece
                offset = max(offset, end)
                if partial.finish:
                    return
                self.advance()
        finally:
            if not exiting():
                self.close()

    def advance(self) -> None:
        """Draw the next token of every completion that is not finished, in one model call."""
        [error] = advance([self])
        if error is not None:
            raise error

    def close(self) -> None:
        """Free the contexts that were evaluated on the way."""
        self.shared.drop(self._nodes)
        self._nodes = []

    def ready(self) -> list[Partial]:
        """The completions that go on: neither the limit nor the window ends them."""
        window, reached = self.shared.engine.window, self.limit.reached()
        for partial in self.active():
            longer = self.shared.length(partial.node) + (partial.token >= 0)
            full = window is not None and longer > window
            partial.finish = reached or ("window" if full else "")
        return self.active()

    def move(self, partials: Sequence[Partial], nodes: list[int]) -> torch.Tensor:
        """Log-probabilities after these, `[n, width]`; `nodes` are of those with a token."""
        self._nodes += nodes
        longer = [partial for partial in partials if partial.token >= 0]
        for partial, node in zip(longer, nodes, strict=True):
            partial.node = node
        tree = self.shared.tree
        logprobs = tree.logprobs([partial.node for partial in partials])
        tree.forget(nodes)
        return logprobs

    def draw(self, partials: Sequence[Partial], rows: Floats) -> None:
        """The next token of each, from `[n, width]` log-probabilities."""
        vocabulary = self.shared.index.vocabulary
        tokens = self._heads(partials, rows)
        if tokens:
            partials = self.partials = self.partials[: len(tokens)]
        self.rows = {id(partial): row for partial, row in zip(partials, rows, strict=False)}
        for at, partial in enumerate(partials):
            logs = self._masked(partial, rows[at])
            if not logs.max() > -np.inf:  # none may follow, or all have probability zero
                partial.finish = "dead end"
                continue
            token = tokens[at] if tokens else pick(logs, self.options, self.rng)[0]
            partial.logprob += float(rows[at, token])
            partial.token = token
            if token in vocabulary.end_ids:
                partial.finish = "end"
                continue
            partial.token_ids.append(token)
            self._take(partial, vocabulary.tokens[token] or b"")
            self._check(partial)

    def text_of(self, partial: Partial) -> bytes:
        """The bytes up to the stop string or the limit, whole characters only."""
        if partial.text_end >= 0:
            return partial.raw[: partial.text_end]
        if len(partial.raw) < self.most or partial.finish == "constraint":
            return partial.raw
        return whole_characters(self.before, partial.raw[: self.most])

    def safe(self, partial: Partial) -> int:
        """How many bytes can be sent: all at the end, else those that begin no stop string."""
        size, held = len(self.text_of(partial)), self.stops.held(partial.raw)
        return size if partial.finish else min(size, len(partial.raw) - held)

    def completion(self, partial: Partial) -> Completion:
        """The completion, as far as it is drawn."""
        raw = self.text_of(partial)
        drawn = len(partial.raw) + (partial.finish == "end")
        text = decoder_after(self.before).decode(raw)
        ids, finish = partial.token_ids, partial.finish
        return Completion(text, raw, partial.logprob, ids, self.exact_from, finish, drawn)

    def _begin(self, state: Cursor) -> list[Partial]:
        """Completions begun with members of the covering; at the root with nothing."""
        n, constraint = self.options.n, self.options.constraint
        index, tree = self.shared.index, self.shared.tree
        tokens = None if constraint is None else constraint.over(index)
        if state.at_root:
            node = state.bundles[0].node
            return [Partial(node, constraint=constraint, tokens=tokens) for _ in range(n)]
        members, partials = NextTokens.covering(state), list[Partial]()
        for place, after in members.draw(self.options, self.rng, n):
            bundle, token, beyond = members.at(place)
            logprob = float(members.logs[place]) - state.logprob
            ids = [*tree.tokens(bundle.node), token]
            partial = Partial(bundle.node, token, beyond, logprob, ids, constraint=after)
            partial.tokens = None if tokens is None else tokens.after(beyond)
            partials.append(partial)
        return partials

    def _heads(self, partials: Sequence[Partial], rows: Floats) -> list[int]:
        """The n likeliest tokens, where n greedy completions begin at the root; else nothing."""
        first = partials[0]
        if len(partials) == 1 or self.options.temperature or first.token_ids:
            return []
        return pick(self._masked(first, rows[0]), self.options, self.rng, len(partials))

    def _masked(self, partial: Partial, row: Floats) -> Floats:
        """`[width]` log-probabilities, −inf for what may not follow."""
        return row if partial.tokens is None else np.where(partial.tokens.mask(), row, -np.inf)

    def _take(self, partial: Partial, data: bytes) -> None:
        """Add the bytes of a token."""
        partial.raw += data
        if partial.constraint is not None and partial.tokens is not None:
            partial.constraint = partial.constraint.after(data)
            partial.tokens = partial.tokens.after(data)

    def _check(self, partial: Partial) -> None:
        """Finish a text that has a stop string, or enough bytes, or that nothing may follow."""
        match = self.stops.first(partial.raw, partial.searched)
        partial.searched = len(partial.raw)
        if match is not None and match[0] <= self.most:
            partial.text_end, partial.finish = match[0], "stop"
        else:
            partial.finish = self._finish(partial.constraint, len(partial.raw))

    def _finish(self, constraint: Constraint | None, size: int) -> str:
        """Why nothing is drawn after a text of `size` bytes; "" if it goes on."""
        if constraint is not None and size <= self.most:
            allowed = constraint.allowed()
            if not allowed[:END].any():
                return "constraint" if allowed[END] else "dead end"
        return "length" if size >= self.most else ""


def advance(several: Sequence[Generation]) -> list[Exception | None]:
    """Draw the next token of all unfinished completions; return the error that ends each request.

    Several requests to one engine go through the model together, each on the tree of its own
    prompt, if the engine can (`TogetherLM`); else in a call each. The tokens drawn are the same.
    """
    errors: dict[int, Exception] = {}
    ready = [(one, partials) for one in several if (partials := one.ready())]
    trees = {id(one.shared): one.shared for one, _ in ready}
    with ExitStack() as locks:
        for key in sorted(trees):  # in one order, or two callers wait for each other
            locks.enter_context(trees[key].lock)
        branches: dict[int, list[tuple[int, list[int]]]] = {key: [] for key in trees}
        for one, partials in ready:
            branches[id(one.shared)] += [(p.node, [p.token]) for p in partials if p.token >= 0]
        keys = [key for key in trees if branches[key]]
        nodes = dict(zip(keys, _extend([(trees[key], branches[key]) for key in keys]), strict=True))
        for one, partials in ready:
            try:
                new = nodes.get(id(one.shared), [])
                if isinstance(new, Exception):
                    raise new
                count = sum(partial.token >= 0 for partial in partials)
                nodes[id(one.shared)] = new[count:]
                one.draw(partials, one.move(partials, new[:count]).cpu().numpy())
            except Exception as error:  # the other requests go on
                errors[id(one)] = error
    return [errors.get(id(one)) for one in several]


def _extend(wishes: Sequence[tuple[SharedTree, Branches]]) -> list[list[int] | Exception]:
    """The nodes of each tree, or why there are none: in one call, or in a call each."""
    if len(wishes) > 1 and isinstance(engine := wishes[0][0].engine, TogetherLM):
        with suppress(Exception):  # of one tree, which raises it again below
            together = engine.extend_together([(s.tree, b) for s, b in wishes])
            if together is not None:
                return [[node for [node] in paths] for paths in together]
    results: list[list[int] | Exception] = []
    for shared, branches in wishes:
        try:
            results.append([n for [n] in shared.tree.extend(branches, own=True)])
        except Exception as error:
            results.append(error)
    return results


def distinct(completions: Sequence[Completion]) -> list[Completion]:
    """Completions without those of equal bytes, the most probable for its length first."""
    best: dict[bytes, Completion] = {}
    for completion in sorted(completions, key=lambda one: one.bits_per_byte):
        best.setdefault(completion.raw, completion)
    return list(best.values())


def whole_characters(before: bytes, raw: bytes) -> bytes:
    """A text that was cut, without the character that the cut is in, after other bytes."""
    return raw[: max(0, len(raw) - len(pending(before[-3:] + raw)))]


def check_begins(raw: bytes, constraint: Constraint) -> None:
    """Refuse a constraint on whole characters after a text that ends inside of one."""
    half = pending(raw)
    if half and constraint.characters:
        raise ConstraintError(
            f"the text ends inside a character ({half!r}), and the constraint begins with a whole "
            "one: give whole characters, or choices(…), which may be any bytes."
        )
