"""How much of a text is worked on at a time: less where each token brings many contexts.

In a long run of one byte still less: what leaves the base path there gains at each of its tokens,
so it must be followed before much more is summed.
"""

from __future__ import annotations

from charwise.known_text.base_path import BasePath, Portion
from charwise.known_text.calls import PORTION
from charwise.known_text.runs import long_runs

#: Tokens of the first portion, as how hard the text is, is not known yet; fewest that are worked on
#: at a time; and contexts to aim for. The same in each long run.
_ORDINARY, _IN_RUNS = (32, 16, 240), (8, 4, 60)


class Portions:
    """The portions of a text, one after the other.

    Args:
        base: the path that they are portions of.
        runs: whether long runs are taken in shorter ones.

    Attributes:
        tokens: of the base path that the portion has that is worked on.

    >>> from charwise.known_text.ranges import KnownText
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> known = KnownText.of(b"ab" * 80, SortedVocabulary(Vocabulary.from_bytes([b"a", b"b"])))
    >>> base = BasePath(known, [0, 1] * 80, through=False, deepest=None, to_end=True)
    >>> portions = Portions(base, runs=True)
    >>> portions.after(0).tokens
    32
    >>> portions.brought(96)  # three a token
    >>> portions.after(32).tokens
    112
    """

    def __init__(self, base: BasePath, *, runs: bool) -> None:
        self._base = base
        self._runs = long_runs(base.known.text) if runs else []
        # Contexts that each token of the portion before brought: in ordinary text, and in the run.
        self._ordinary: float | None = None
        self._in_run: float | None = None
        self._run: tuple[int, int] | None = None  # that the portion begins in
        self.tokens = 0

    def after(self, done: int) -> Portion:
        """The portion after so many tokens of the base path, which is to be worked on."""
        start = self._base.starts[done]
        next_run = next((run for run in self._runs if run[1] > start), None)
        inside = next_run is not None and next_run[0] <= start
        run = next_run if inside else None
        if run != self._run:
            self._run, self._in_run = run, None
        a_token = self._in_run if inside else self._ordinary
        size, least, aim = _IN_RUNS if inside else _ORDINARY
        if a_token is not None:
            size = max(least, int(aim / a_token))
        if next_run is not None and not inside:
            size = min(size, self._base.tokens_before(next_run[0]) - done)
        portion = self._base.portion(done, min(PORTION, size))
        self.tokens = max(1, portion.tokens - done)
        return portion

    def brought(self, contexts: int) -> None:
        """The portion brought so many contexts: where they are many, the next one is shorter."""
        a_token = max(1, contexts) / self.tokens
        if self._run is None:
            self._ordinary = a_token
        else:
            self._in_run = a_token
