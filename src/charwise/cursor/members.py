"""The members of a covering as one array, and those alone that a constraint lets through.

Which of them may follow is not asked of all: there may be a hundred thousand. A member is drawn and
then asked for. If it may not follow, nor may those of all bundles that leave the constraint where
it does; another is drawn without them. Who is accepted was drawn in proportion to its probability
among all that may follow, however many were ruled out by then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint
from charwise.coverings.bundles import Bundle
from charwise.cursor.options import GenerationOptions
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import ConstraintError

Floats = NDArray[np.float64]


class Members:
    """The tokens that end the members of a covering, bundle after bundle.

    Attributes:
        bundles: those that the text ends inside of.
        starts: `[bundles + 1]`: where the tokens of each begin.
        logs: `[n]` log →p of each member, nats; −inf for what cannot be.

    >>> import charwise
    >>> state = charwise.load().state("import nump")
    >>> members = Members(state.shared, state.bundles)
    >>> members.beyond(int(members.logs.argmax()))
    b'y'
    """

    def __init__(self, shared: SharedTree, bundles: Sequence[Bundle]) -> None:
        self.index = shared.index
        self.bundles = [bundle for bundle in bundles if bundle.depth > 0]
        with shared.lock:
            rows = [shared.tree.row(b.node).in_order[b.lo : b.hi] for b in self.bundles]
        self.starts = np.cumsum([0, *map(len, rows)])
        weights = [bundle.log_weight for bundle in self.bundles]
        with np.errstate(divide="ignore"):
            logs = [weight + np.log(row) for weight, row in zip(weights, rows, strict=True)]
        self.logs: Floats = np.concatenate(logs)

    def place(self, at: int) -> tuple[Bundle, int]:
        """The bundle of a member, and where its last token stands in the sorted vocabulary."""
        which = int(np.searchsorted(self.starts, at, side="right")) - 1
        bundle = self.bundles[which]
        return bundle, bundle.lo + at - int(self.starts[which])

    def beyond(self, at: int) -> bytes:
        """Return the part of a member after the text."""
        bundle, rank = self.place(at)
        return self.index.sorted[rank][bundle.depth :]

    def choose(self, options: GenerationOptions, rng: np.random.Generator) -> list[int]:
        """n members: drawn by probability, or the n most probable, which may repeat.

        Under a constraint those that go on as it allows.

        Raises:
            ConstraintError: if there is none.

        >>> import charwise
        >>> state = charwise.load().state("import nu")
        >>> members = Members(state.shared, state.bundles)
        >>> options = GenerationOptions(choices=["ll", "mber"])
        >>> [at] = members.choose(options, np.random.default_rng(0))
        >>> members.beyond(at) in (b"l", b"ll", b"m", b"mb", b"mber")
        True
        """
        if options.constraint is not None:
            return self._choose_under(options.constraint, options, rng)
        n = options.n
        if options.temperature == 0:
            chosen = np.argsort(-self.logs, kind="stable")[:n]
            return list(np.resize(chosen[np.isfinite(self.logs[chosen])], n).tolist())
        p = _heated(self.logs, options.temperature)
        return list(rng.choice(len(p), size=n, p=p).tolist())

    def _choose_under(
        self, constraint: Constraint, options: GenerationOptions, rng: np.random.Generator
    ) -> list[int]:
        n, temperature = options.n, options.temperature
        logs, fits, found = self.logs.copy(), set[int](), list[int]()
        while len(found) < n and logs.max() > -np.inf:
            if temperature == 0:
                drawn = [int(logs.argmax())]
            else:
                p = _heated(logs, temperature)
                drawn = rng.choice(len(p), size=n - len(found), p=p).tolist()
            for at in drawn:
                if at in fits or self._fits(at, constraint, logs):
                    fits.add(at)
                    found.append(at)
                    if temperature == 0:
                        logs[at] = -np.inf
        if not found:
            raise ConstraintError(
                "no token with which the text goes on fits the constraint, or all that do have "
                "probability zero."
            )
        return (found * n)[:n]

    def _fits(self, at: int, constraint: Constraint, logs: Floats) -> bool:
        """Whether a member goes on as the constraint allows; if not, rule out its like."""
        beyond = self.beyond(at)
        try:
            constraint.after(beyond)
        except ConstraintError as error:
            known = beyond[: error.position]
            self._rule_out(known, constraint.after(known).allowed()[:END], logs)
            return False
        return True

    def _rule_out(self, known: bytes, allowed: NDArray[np.bool_], logs: Floats) -> None:
        """Leave out the members that go on with `known`, and then with a byte not allowed."""
        index = self.index
        for bundle, start in zip(self.bundles, self.starts.tolist(), strict=False):
            depth = bundle.depth + len(known)
            lo, hi = index.range(index.sorted[bundle.lo][: bundle.depth] + known)
            while lo < hi and len(index.sorted[lo]) == depth:
                lo += 1  # ends here
            following = index.flat[index.starts[lo:hi] + depth]
            shift = start - bundle.lo
            logs[lo + shift : hi + shift][~allowed[following]] = -np.inf


def _heated(logs: Floats, temperature: float) -> Floats:
    """Probabilities at a temperature."""
    with np.errstate(over="ignore"):
        p = np.exp((logs - logs.max()) / temperature)
    return np.asarray(p / p.sum())
