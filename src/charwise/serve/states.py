"""States kept by what their text is: the nearest one goes on to a text that is asked for.

Requests carry whole texts, which differ from the last by a key. Whose they are plays no part.
"""

from __future__ import annotations

from collections import OrderedDict

from charwise.char_lm import CharLM
from charwise.cursor.state import State
from charwise.known_text.effort import Effort

#: Texts, and trees under them, that are kept at most.
_TEXTS, _TREES = 64, 4

#: So many keys after a prompt was read it is read again: each keeps what it saw.
_KEYS = 2048


class States:
    """The states of texts that were asked for lately.

    Args:
        lm: the model.
        trees: how many token trees are kept; each holds the memory of a prompt.

    Attributes:
        begun: how many prompts were read from their beginning.

    >>> import charwise
    >>> states = States(charwise.load())
    >>> first = states.at(b"import nu")
    >>> states.at(b"import nump").shared is first.shared, states.at(b"import nu") is first
    (True, True)
    >>> states.begun
    1
    """

    def __init__(self, lm: CharLM, trees: int = _TREES) -> None:
        self.lm = lm
        self.begun = 0
        self._trees = trees
        # The latest last; with how many bytes were typed or deleted since the prompt was read.
        self._kept: OrderedDict[tuple[Effort, bytes], tuple[State, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def at(self, text: bytes, effort: Effort | None = None) -> State:
        """The state after a text.

        Raises:
            ZeroProbabilityError: if the model gives the text probability zero.
        """
        effort = self.lm.effort if effort is None else effort
        key = (effort, text)
        if key not in self._kept:
            self._kept[key] = self._made(text, effort)
            self._let_go()
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _made(self, text: bytes, effort: Effort) -> tuple[State, int]:
        near, keys, size = None, 0, 0
        for (spent, known), (state, typed) in self._kept.items():
            if spent == effort and (both := common(known, text)) >= max(size, state.exact_from):
                near, keys, size = state, typed, both
        changed = (len(near.raw) - size) + (len(text) - size) if near else 0
        # What begins at the very start is a prompt like any other.
        if near is None or size == 0 or keys + changed > _KEYS:
            self.begun += 1
            return self.lm.state(text, preset=effort), 0
        return near.without_bytes(len(near.raw) - size) + text[size:], keys + changed

    def _let_go(self) -> None:
        """Forget the oldest, until few enough are left."""
        while len(self._kept) > 1 and (
            len(self._kept) > _TEXTS
            or len({id(state.shared) for state, _ in self._kept.values()}) > self._trees
        ):
            self._kept.popitem(last=False)


def common(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike.

    >>> common(b"import nu", b"import os"), common(b"ab", b"abc")
    (7, 2)
    """
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
