"""An engine that tells only the k best next tokens, as the rest of charwise sees it.

Of what it does not tell, two things are known: no token of it has more than the k-th best, and all
of it together has what the k have left. What follows from that is in `bounded/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from charwise.tokens.vocabulary import Vocabulary


class Best(NamedTuple):
    """The known part of p_Δ(· | context): the best next tokens, and a bound for all others.

    >>> best = Best(np.array([7, 3]), np.log([0.5, 0.25]), most=np.log(0.25), last=None)
    >>> round(float(1 - np.exp(best.logprobs).sum()), 9)  # shared by all the others
    0.25
    """

    ids: NDArray[np.int64]  # [m], each once, whether the vocabulary counts it or not
    logprobs: NDArray[np.float64]  # [m] nats, of a distribution over the whole output layer
    most: float  # no other id has more, nats; −inf where there is no other
    last: float | None  # log p of the context's own last token after those before it, if told


@runtime_checkable
class PartialLM(Protocol):
    """A tokenized language model of which a few log-probabilities are known at a time."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, Δ and κ, as wide as the model's output layer."""
        ...

    @property
    def window(self) -> int | None:
        """The longest context in tokens; None where it is not known."""
        ...

    @property
    def rounding(self) -> float:
        """The amount by which any of its log-probabilities may be off, told or not, nats."""
        ...

    def best(self, contexts: Sequence[tuple[int, ...]], priced: Sequence[bool]) -> list[Best]:
        """The best next tokens after each context, in few calls of the model.

        Args:
            contexts: token strings, start token included; at least one token each. Those that
                begin others, as along a known text, are best asked for together.
            priced: for each, whether `Best.last` is wanted. An engine that cannot tell it leaves
                None there, and may tell it unasked.

        Raises:
            ContextLengthError: a context longer than the window.
            EngineError: ids outside the vocabulary, an engine that fails or does not answer.
        """
        ...

    def info(self) -> dict[str, str]:
        """The engine, the model, the number of tokens told, and the server: for reports."""
        ...
