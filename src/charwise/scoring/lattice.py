"""The sums through the evaluated contexts of a known text: forward, and backward.

A candidate gives its weight to the context that it is recombined with, so no edge has a loose end.
One pass forward gives every prefix probability (Vieira et al. 2025, eq. 12-13),

    P(t) = Σ_v w(v) · m_v(text[position(v):t])                                             (*)

and one pass backward gives the backward weight of each context, P(rest of the text | v). The
product of the two is the posterior of a context.

Weights at position t are in units of exp(unit[t]), the P(t) of the pass before. So nothing over-
or underflows, however long the text is.
"""

import math

import numpy as np

from charwise.scoring.contexts import Branch, Contexts, Floats
from charwise.tokens.known_text import Ints

#: K, the most contexts at a position.
WIDTH = 8

#: Most tokens that a candidate is followed along at once.
LOOKAHEAD = 40

#: The backward weight of a candidate that no context is recombined with, which is unknown: such a
#: candidate shows bytes that no other context does.
UNKNOWN_BACKWARD = 10.0


class Lattice:
    """The sums over the contexts of one text of n bytes.

    With `recombines`, candidates are recombined. An exact sum leaves out the few that it cannot
    evaluate, for the model's window.

    Attributes:
        weight: `[contexts]` forward weight, in units of P at their positions.
        backward: `[contexts]` P(text up to `stop` | context), in units of P(stop) / P(position).
        unit: `[n + 1]` log of the units.
        log_prefix: `[n + 1]` log P(t), nats; −inf where no evaluated context spells the text.
        missing: `[n + 1]` share of P(t) of candidates that no context can be recombined with.
        done: sums up to this position are final.
        stop: sums are made up to this position.
    """

    def __init__(self, contexts: Contexts, *, recombines: bool = True) -> None:
        n = len(contexts.known.text)
        self.contexts, self.n, self.recombines = contexts, n, recombines
        self.done = self.stop = 0
        self.weight, self.backward = np.ones(1), np.zeros(1)
        self.unit, self.log_prefix = np.zeros(n + 1), np.full(n + 1, -math.inf)
        self.log_prefix[0] = 0.0
        self.missing = np.zeros(n + 1)
        self._added = 0  # positions whose next bytes are in `_masses`
        # What follows the whole text is known if contexts that spell all of it are evaluated.
        size = 0 if contexts.next_bytes is None else n + (contexts.last == n)
        self._masses = np.zeros((size, 257))

    @property
    def reached(self) -> bool:
        """Whether an evaluated context spells the text up to `stop`."""
        return bool(self.log_prefix[self.stop] > -math.inf)

    @property
    def _last(self) -> int:
        """Edges that end up to here count: at `stop` only those that go through the whole text."""
        return self.stop if self.stop == self.contexts.last else self.stop - 1

    def enter(self, stop: int, path: list[int]) -> None:
        """Sum up to `stop` from here on; the path is a chain of contexts that leads there.

        The first units of the new positions are the P(t) of the path alone, interpolated, never
        rising. With others, weights might not fit a float.
        """
        c, before, self.stop = self.contexts, max(self.stop, self.done), stop
        bound = np.full(stop + 1, -math.inf)
        bound[before] = c.log_p[path[0]]
        for context in path:
            part = np.flatnonzero((c.held == context) & (c.at <= stop))
            with np.errstate(divide="ignore"):
                logs = c.log_p[context] + np.log(c.starting[part])
            bound[c.at[part]] = np.logaddexp(bound[c.at[part]], logs)
        known = np.flatnonzero(bound > -math.inf)
        line = np.zeros(stop + 1)
        if len(known):
            line = np.minimum.accumulate(np.interp(np.arange(stop + 1), known, bound[known]))
        self.unit[before + 1 : stop + 1] = (line - line[before] + self.unit[before])[before + 1 :]

    def freeze(self, done: int, *, drop: bool) -> list[int]:
        """Make all sums up to a position final, drop the contexts that reach no further if wanted.

        Return the nodes of the tree that are still needed.
        """
        c = self.contexts
        self._add_next_bytes(done + 1)  # contexts that reach no further are dropped
        self.done = done
        if drop:
            needed = np.flatnonzero((c.reach > done) | (c.position >= done))
            self.weight = self.weight[needed]
            c.keep(needed, done)
        return c.node.tolist()

    def sum_forward(self) -> None:
        """Sum (*) from `done` on: weights, P(t) and the missing share."""
        c, unit, done, stop = self.contexts, self.unit, self.done, self.stop
        if self.recombines:
            c.recombine(self._last)
        target = c.target
        scaled, flow, lost = self._edges(self._last)
        flow = flow[np.argsort(c.end[flow], kind="stable")]
        weight = np.zeros(len(c))
        weight[: len(self.weight)] = self.weight
        weight[c.position > done] = 0.0
        weight = self._in_order(c.end[flow], c.source[flow], scaled[flow], target[flow], weight)
        # [stop + 1] in units of the last pass
        part = (c.at > done) & (c.at <= stop)
        held, at = c.held[part], c.at[part]
        starting = _in_units(c.starting[part], unit[c.position[held]] - unit[at])
        total = np.bincount(at, weight[held] * starting, minlength=stop + 1)
        mass = weight[c.source[lost]] * scaled[lost]
        missing = np.bincount(c.end[lost], mass, minlength=stop + 1)
        some = total > 0
        scale = np.where(some, total, 1.0)
        new = slice(done + 1, stop + 1)
        self.missing[new] = np.minimum(missing / scale, 1.0)[new]
        self.log_prefix[new] = np.where(some, unit[: stop + 1] + np.log(scale), -math.inf)[new]
        # From here on in units of P(t); of the last P(t) above 0, where nothing is reached.
        known = np.flatnonzero(self.log_prefix[: stop + 1] > -math.inf)
        last = np.searchsorted(known, np.arange(done + 1, stop + 1), side="right") - 1
        self.unit = unit.copy()
        self.unit[new] = self.log_prefix[known[last]]
        self.weight = _in_units(weight, unit[c.position] - self.unit[c.position])

    def _edges(self, last: int) -> tuple[Floats, Ints, Ints]:
        """The edges that end after `done`, and up to a position.

        `[edges]` masses in the units of where they lead, 0 for edges that do not count; those that
        lead to a context, and those that do not.
        """
        c, scaled = self.contexts, np.zeros(len(self.contexts.end))
        edges = np.flatnonzero((c.end > self.done) & (c.end <= last))
        begin, target = c.position[c.source[edges]], c.target[edges]
        scaled[edges] = _in_units(c.mass[edges], self.unit[begin] - self.unit[c.end[edges]])
        return scaled, edges[target >= 0], edges[target < 0]

    def _in_order(
        self, at: Ints, source: Ints, mass: Floats, target: Ints, values: Floats
    ) -> Floats:
        """Add `values[source] · mass` to `values[target]`, one position after another.

        Equal ones of `at` stand side by side: their targets are contexts of one position, and
        their sources are final by then.
        """
        if not len(at):
            return values
        cuts = [0, *(np.flatnonzero(np.diff(at)) + 1).tolist(), len(at)]
        # With the contexts of a position side by side, each step is one small product.
        order = np.argsort(self.contexts.position, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values, source, target = values[order], place[source], place[target]
        position = self.contexts.position[order]
        bounds = np.searchsorted(position, position[target[cuts[:-1]]])
        local = target - np.repeat(bounds, np.diff(cuts))
        for first, begin, end in zip(bounds.tolist(), cuts[:-1], cuts[1:], strict=True):
            summed = np.bincount(local[begin:end], values[source[begin:end]] * mass[begin:end])
            values[first : first + len(summed)] += summed
        return values[place]

    def sum_backward(self) -> None:
        """Find the backward weights; those of `sum_forward` must be current."""
        c, stop = self.contexts, self.stop
        self._inner, flow, _ = self._edges(stop - 1)
        backward = np.where(c.position == stop, 1.0, 0.0)
        part = np.flatnonzero(c.at == stop)
        begin = c.position[c.held[part]]
        ending = _in_units(c.starting[part], self.unit[begin] - self.unit[stop])
        np.add.at(backward, c.held[part], ending)
        flow = flow[np.argsort(-c.position[c.source[flow]], kind="stable")]
        at, target = c.position[c.source[flow]], c.target[flow]
        self.backward = self._in_order(at, target, self._inner[flow], c.source[flow], backward)

    def candidates(self, max_depth: float) -> tuple[Ints, Floats]:
        """The candidates of at most `max_depth` tokens that end after `done`: edges and values.

        The value is the share of P(t), or the posterior if that is more: the share times the
        backward weight of the context that the candidate is recombined with.
        """
        c, edge = self.contexts, self._candidates()
        edge = edge[c.depth[c.source[edge]] < max_depth]
        source, partner = c.source[edge], c.recombined_with[edge]
        units = self.unit[c.position[source]] - self.unit[c.end[edge]]
        share = self.weight[source] * _in_units(c.mass[edge], units)
        backward = np.where(partner >= 0, self.backward[np.maximum(partner, 0)], UNKNOWN_BACKWARD)
        return edge, np.minimum(1.0, share * np.maximum(1.0, backward))

    def _candidates(self) -> Ints:
        c = self.contexts
        counts = (c.end > self.done) & (c.end <= self._last) & (c.child < 0) & (c.mass > 0)
        return np.flatnonzero(counts & (self.weight[c.source] > 0))

    def first_candidate(self) -> int:
        """Where the first candidate ends from which the text may go on; n if there is none."""
        self.sum_backward()
        c, edge = self.contexts, self._candidates()
        partner = c.recombined_with[edge]
        alive = (partner < 0) | (self.backward[partner] > 0)
        return int(c.end[edge[alive]].min(initial=self.n))

    def _best_edges(self, contexts: Ints) -> tuple[Ints, Floats]:
        """The edge of each context that the rest of the text takes most, and its probability.

        Probabilities are in units of where the edges lead; 0 where no edge counts.
        """
        c = self.contexts
        widths = np.append(c.first_edge[1:], len(c.source)) - c.first_edge
        columns = np.arange(int(widths[contexts].max(initial=1)))
        inside = columns < widths[contexts][:, None]  # [contexts, most edges]
        edges = np.where(inside, c.first_edge[contexts][:, None] + columns, 0)
        target, inner = c.target[edges], np.where(inside, self._inner[edges], 0.0)
        value = inner * np.where(target >= 0, self.backward[target], 0.0)
        # Where nothing is known to reach the end, the likeliest token is followed.
        value = np.where(value.max(axis=1, keepdims=True) > 0, value, inner)
        rows, best = np.arange(len(contexts)), value.argmax(axis=1)
        return edges[rows, best], inner[rows, best]

    def select(self, threshold: float, max_depth: float) -> list[Branch]:
        """The candidates worth at least a threshold, best first, with the tokens to follow.

        Each is followed as the context that it is recombined with would go on, while that stays
        worth the threshold. At 0 all are chosen, and none is followed. Both sums must be current.
        No context has more than `max_depth` tokens.
        """
        c, (edge, value) = self.contexts, self.candidates(max_depth)
        edge, value = edge[value >= threshold], value[value >= threshold]
        floor = np.full(self.n + 1, threshold)  # the least value at each position
        if threshold > 0:
            # The ranks of all contexts that end at the same position.
            evaluated = np.minimum(1.0, self.weight * np.maximum(1.0, self.backward))
            values = np.concatenate((evaluated, value))
            ends = np.concatenate((c.position, c.end[edge]))
            ranked = np.lexsort((-values, ends))
            rank = np.empty(len(ends), dtype=np.int64)
            rank[ranked] = np.arange(len(ends)) - np.searchsorted(ends[ranked], ends[ranked])
            last = rank == WIDTH - 1
            floor[ends[last]] = np.maximum(threshold, values[last])
            inside = rank[len(evaluated) :] < WIDTH
            edge, value = edge[inside], value[inside]
        order = np.argsort(-value, kind="stable")
        edge, value = edge[order], value[order]
        branches = [
            Branch(context, [token])
            for context, token in zip(c.source[edge].tolist(), c.token[edge].tolist(), strict=True)
        ]
        partner, depth = c.recombined_with[edge], c.depth[c.source[edge]] + 1
        active = np.arange(len(branches))
        for _ in range(LOOKAHEAD if threshold > 0 else 0):
            active = active[(partner[active] >= 0) & (depth[active] < max_depth)]
            if not len(active):
                break
            edge, mass = self._best_edges(partner[active])
            value[active] *= np.minimum(1.0, mass)
            good = value[active] >= floor[c.end[edge]]
            active, edge = active[good], edge[good]
            partner[active] = c.target[edge]
            depth[active] += 1
            for i, token in zip(active.tolist(), c.token[edge].tolist(), strict=True):
                branches[i].tokens.append(token)
        return branches

    def end_logprob(self) -> float:
        """log p(end of text | text), nats: the contexts that spell the text, each with its end."""
        ends = self.contexts.position == self.n
        share = float((self.weight * self.contexts.end_mass)[ends].sum())
        return math.log(share) if share > 0 else -math.inf

    def distributions(self) -> Floats:
        """`[n, 257]` p(byte | text[:t]) at each byte of the finished text, at 256 of its end.

        `[n + 1, 257]` if the contexts that spell the whole text are evaluated: also after it. The
        sums of (*) with another byte for the one that came are divided by their sum.
        """
        self._add_next_bytes(len(self._masses))
        return np.asarray(self._masses / self._masses.sum(axis=1, keepdims=True))

    def _add_next_bytes(self, until: int) -> None:
        """Add the contexts' masses of the next byte, at the positions before `until`."""
        c, since = self.contexts, self._added
        self._added = max(since, until)
        for rows, begin, weight in zip(
            c.next_bytes or [], c.position.tolist(), self.weight.tolist(), strict=False
        ):
            first, last = max(begin, since), min(begin + len(rows), until)
            if first < last and weight > 0:
                scale = math.log(weight) + self.unit[begin] - self.unit[first:last]
                part = rows[first - begin : last - begin]
                self._masses[first:last] += _in_units(part, scale[:, None])


def _in_units(masses: Floats, log_units: Floats) -> Floats:
    """Masses times exp(log_units), where that alone might not fit a float."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(masses) + log_units))
