"""How much of a text is worked on at a time: less where each token brings many contexts.

In a long run of one byte still less: what leaves the base path there gains at each of its tokens,
so it must be followed before much more is summed.
"""

from __future__ import annotations

from charwise.known_text.base_path import BasePath, Portion
from charwise.known_text.calls import PORTION
from charwise.known_text.runs import long_runs

#: Canonical tokens of the first portion, as how hard the text is, is not known yet; fewest that
#: are worked on at a time; and contexts to aim for. The same in long runs.
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
        self._a_token: float | None = None  # contexts that each of the portion before brought
        self.tokens = 0

    def after(self, done: int) -> Portion:
        """The portion after so many tokens of the base path, which is to be worked on."""
        start = self._base.starts[done]
        run = next(((first, stop) for first, stop in self._runs if stop > start), None)
        inside = run is not None and run[0] <= start
        size, least, aim = _IN_RUNS if inside else _ORDINARY
        if self._a_token is not None:
            size = max(least, int(aim / self._a_token))
        if run is not None and not inside:
            size = min(size, max(1, self._base.tokens_before(run[0]) - done))
        portion = self._base.portion(done, min(PORTION, size))
        self.tokens = max(1, portion.tokens - done)
        return portion

    def brought(self, contexts: int) -> None:
        """The portion brought so many contexts: where they are many, the next one is shorter."""
        self._a_token = max(1, contexts) / self.tokens
