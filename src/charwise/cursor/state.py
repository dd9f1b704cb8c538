"""The state of a model after some text, and its change with every byte.

A `State` is the set of bundles that cover its text (docs/coverings.md). The prompt is known text:
one prefill, then rounds over its last tokens only, because alternatives further back cancel in
what comes next. From there a state grows byte by byte: each bundle keeps the tokens that go on
with the byte, and the contexts whose last token ends there are evaluated in one batch.

States are immutable and share one `SharedTree`: the token tree, and what has been evaluated in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import Bundle, next_byte_masses
from charwise.cursor.character_state import CharacterState
from charwise.cursor.choose import ChoicePosterior, checked_choices, choose
from charwise.cursor.cover import Cover, cover_after, cover_of
from charwise.cursor.distributions import NextBytes
from charwise.cursor.shared_tree import (
    EXACT_TOKENS,
    WHOLE_TOKENS,
    Conditions,
    SharedTree,
    prefill,
)
from charwise.engine import EstimatedTree
from charwise.errors import ZeroProbabilityError, zero_probability
from charwise.scoring.effort import PRESETS, Effort
from charwise.tokens.stops import StopStrings


class State(CharacterState):
    """An immutable state: `state + "text"`, `state - n` characters, `state.next()`.

    Attributes:
        shared: the token tree, shared with the states that this one grew from and into.
        whole: the text, after the implied leading space of tokenizers that have one.
        cover: the contexts kept of its covering.
        effort: how much is spent on what is added.

    >>> import charwise
    >>> lm = charwise.load()
    >>> state = lm.state("import nump")
    >>> (state + "y").text, (state + "yz" - 2).text, (state + "ï").without_bytes(1).raw[-2:]
    ('import numpy', 'import nump', b'p\\xc3')
    """

    def __init__(
        self,
        shared: SharedTree,
        whole: bytes,
        cover: Cover,
        effort: Effort,
        parent: Self | None = None,
    ) -> None:
        self.shared = shared
        self.whole = whole
        self.cover = cover
        self.effort = effort
        self._parent = parent

    @property
    def raw(self) -> bytes:
        """The bytes of the prompt and of all that was added since."""
        return self.whole[len(self.shared.opening.lead) :]

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The contexts that cover the text."""
        return self.cover.bundles

    @property
    def logprob(self) -> float:
        """The log-probability log →p(text | the text before the root), nats."""
        return self.cover.logprob

    @property
    def error(self) -> float:
        """The amount by which the next byte's distribution may be off, as a total variation.

        An estimate: see docs/scoring.md.
        """
        return min(1.0, self.cover.error + self._error_of_rows)

    @cached_property
    def _error_of_rows(self) -> float:
        """The error of an engine whose rows are estimates: a combination's are."""
        tree = self.shared.tree
        if not isinstance(tree, EstimatedTree):
            return 0.0
        return max(tree.next_error(bundle.node) for bundle in self.bundles)

    @property
    def exact_from(self) -> int:
        """The offset in `text`, in bytes, from which on all tokenizations are summed.

        What is before it is conditioned on in its canonical tokenization.
        """
        return max(0, self.shared.start - len(self.shared.opening.lead))

    @property
    def at_root(self) -> bool:
        """Whether nothing follows the root yet, so that the covering is the empty string."""
        return len(self.whole) == self.shared.start

    def _distribution(self) -> NextBytes:
        masses = self._masses(self.cover)
        if not masses.sum() > 0:  # all that was kept ends here
            rest = self.whole[self.shared.start :]
            canonical = self.shared.index.vocabulary.encode_beginning(rest)
            masses = self._masses(cover_of(self.shared, self.whole, canonical, PRESETS["exact"]))
        if not masses.sum() > 0:
            raise zero_probability(self.whole)
        return NextBytes(masses / masses.sum(), self.error)

    def _masses(self, cover: Cover) -> NDArray[np.float64]:
        with self.shared.lock:
            return next_byte_masses(self.shared.tree, cover.bundles)[0]

    def _extended(self, data: bytes) -> State:
        return self._step(data[0]) if len(data) == 1 else self._continued(data)

    def _step(self, byte: int) -> State:
        """The state after one byte."""
        shared, whole = self.shared, self.whole + bytes([byte])
        if shared.outgrown(self.bundles):
            return self._continued(bytes([byte]))
        with shared.lock:
            cover = cover_after(shared.tree, self.cover, byte, self.effort)
        if cover is None:
            return self._continued(bytes([byte]))
        return State(shared, whole, cover, self.effort, parent=self)

    def _continued(self, more: bytes) -> State:
        """The state after more text, in rounds: on the same tree while that serves."""
        shared, whole = self.shared, self.whole + more
        canonical = shared.index.vocabulary.encode_beginning(whole[shared.start :])
        fits = shared.room is None or len(canonical) + EXACT_TOKENS < shared.room
        if len(canonical) > 2 * WHOLE_TOKENS or not fits or shared.outgrown(self.bundles):
            return self._anew(whole)
        cover = cover_of(shared, whole, canonical, self.effort)
        return State(shared, whole, cover, self.effort, parent=self)

    def _shortened(self, n: int) -> State:
        """The state with n bytes of its prompt deleted, from contexts already evaluated."""
        shared, whole = self.shared, self.whole[: len(self.whole) - n]
        if len(whole) <= shared.start:
            return self._anew(whole)
        canonical = shared.index.vocabulary.encode_beginning(whole[shared.start :])
        if shared.given and len(canonical) < EXACT_TOKENS - 1:
            # Too near the root: alternatives across it would be missed.
            return self._anew(whole)
        cover = cover_of(shared, whole, canonical, self.effort)
        return State(shared, whole, cover, self.effort)

    def _anew(self, whole: bytes) -> State:
        """A state after a text, on a tree of its own."""
        return begin(self.shared.conditions, whole, self.effort)

    def choose(
        self, choices: Iterable[str | bytes], *, stop: StopStrings = None, ended: bool = False
    ) -> ChoicePosterior:
        """The exact posterior over a list of continuations; see `CharLM.choose`.

        >>> import charwise
        >>> charwise.load().state("for i in ra").choose(["nge(", "ndom."]).top(1)[0][0]
        'nge('
        """
        wanted = checked_choices(choices, stop, ended)
        # Far from the root, choices begin a tree of their own.
        near = len(self.whole) - self.shared.start <= 256
        state = self if near else self._anew(self.whole)
        return choose(state.shared, state.whole, self.effort, wanted)

    def _renewed(self) -> State:
        return begin(self.shared.conditions, self.whole, self.effort)

    def __repr__(self) -> str:
        return (
            f"State({self.text[-20:]!r}, {len(self.bundles)} bundles, "
            f"logprob={self.logprob:.4f}, exact_from={self.exact_from})"
        )


def begin(conditions: Conditions, whole: bytes, effort: Effort) -> State:
    """The state after a text: prefill all but its last tokens, then rounds over those.

    Args:
        conditions: the model, and all that the text is read under.
        whole: the text, lead included.
        effort: how much to spend, on it and on what is added.

    Raises:
        ZeroProbabilityError: if the text has probability zero.
        ContextLengthError: if what is before the text leaves no room for it in the window.

    >>> import charwise
    >>> lm = charwise.load()
    >>> conditions = Conditions(lm.engine, lm.index, Opening(lm.vocabulary.bos_ids, b""))
    >>> begin(conditions, b"import nump", lm.effort).next().top(1)[0][0]
    'y'
    """
    shared, rest = prefill(conditions, whole)
    try:
        return State(shared, whole, cover_of(shared, whole, rest, effort), effort)
    except ZeroProbabilityError as error:
        if not shared.given:
            raise
        raise ZeroProbabilityError(
            f"{error} What is before its last tokens was conditioned on in its canonical ones."
        ) from None
