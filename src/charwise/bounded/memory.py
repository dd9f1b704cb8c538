"""An engine that is asked once about each context, where several coverings share them."""

from __future__ import annotations

from collections.abc import Sequence

from charwise.partial_lm import Best, PartialLM


class Remembered:
    """A `PartialLM` in front of another, whose answers it keeps.

    Attributes:
        contexts: of how many contexts the engine was asked.
        calls: in how many calls.

    >>> import charwise
    >>> from top_k_lm import TopK
    >>> engine = Remembered(TopK(charwise.load().engine, 5))
    >>> first, again = engine.best([(1,)], [False]), engine.best([(1,)], [False])
    >>> first[0] is again[0], engine.contexts, engine.calls
    (True, 1, 1)
    """

    def __init__(self, engine: PartialLM) -> None:
        self.vocabulary = engine.vocabulary
        self.window = engine.window
        self.contexts = self.calls = 0
        self._engine = engine
        self._told: dict[tuple[int, ...], tuple[Best, bool]] = {}

    @property
    def rounding(self) -> float:
        """That of the engine."""
        return self._engine.rounding

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        """See `PartialLM.best`."""
        new: dict[tuple[int, ...], bool] = {}
        for context, price in zip(contexts, priced, strict=True):
            known = self._told.get(context)
            if known is None or (price and not known[1]):
                new[context] = price or new.get(context, False)
        if new:
            self.calls += 1
            self.contexts += len(new)
            told = self._engine.best(list(new), list(new.values()))
            for (context, price), best in zip(new.items(), told, strict=True):
                self._told[context] = (best, price)
        return [self._told[context][0] for context in contexts]

    def info(self) -> dict[str, str]:
        """That of the engine."""
        return self._engine.info()
