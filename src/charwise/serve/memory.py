"""The server's memory: states of earlier texts, found by their text.

Requests carry whole texts, which differ by a key from the last. Whose they are plays no part: the
longest known text that a new one begins like is where it goes on from.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable
from typing import NamedTuple

from charwise.char_lm import CharLM
from charwise.cursor.cover import cover_of
from charwise.cursor.middle import opening_of
from charwise.cursor.shared_tree import EXACT_TOKENS, WHOLE_TOKENS, Conditions, SharedTree, prefill
from charwise.cursor.state import State
from charwise.healing.fim import Request
from charwise.tokens.prompts import PromptStart


class _Known(NamedTuple):
    """A state, and the text that it stands for.

    Attributes:
        text: before the cursor.
        state: after it.
        request: the request, of a state between two sides.
        typed: bytes added since the state's prompt was read.
    """

    text: bytes
    state: State
    request: Request | None = None
    typed: int = 0


class _Read(NamedTuple):
    """A prompt that was read, and has no state yet.

    Attributes:
        key: of the texts that may go on from it.
        text: before the cursor.
        whole: the text of the tree.
        shared: the tree.
        request: the request, of a prompt between two sides.
    """

    key: Hashable
    text: bytes
    whole: bytes
    shared: SharedTree
    request: Request | None


class Memory:
    """States of one model, by content; those used longest ago are forgotten.

    For one thread: the one that has the model.

    Args:
        lm: the model.

    >>> import charwise
    >>> memory = Memory(charwise.load())
    >>> opening = PromptStart(memory.lm.vocabulary.bos_ids, b"")
    >>> first, second = memory.after(opening, b"import nu"), memory.after(opening, b"import num")
    >>> second.state.shared is first.state.shared, memory.trees
    (True, 1)
    """

    def __init__(self, lm: CharLM) -> None:
        self.lm = lm
        self._kept: OrderedDict[tuple[Hashable, bytes], _Known] = OrderedDict()
        # Prompts that were read, and given up before there was a state.
        self._reads: deque[_Read] = deque(maxlen=16)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def trees(self) -> int:
        """How many token trees are kept."""
        return len(self._shared())

    @property
    def size(self) -> int:
        """The bytes of the evaluated contexts that are kept."""
        texts = [one.text for one in list(self._kept.values())]
        texts += [one.text for one in list(self._reads)]
        return 2 * sum(map(len, texts)) + sum(shared.tree.nbytes for shared in self._shared())

    def thin(self, excess: int, busy: Collection[int] = ()) -> None:
        """Free so many bytes, the longest unused first, of the parts that states do without.

        Those are the contexts that only what was typed before goes on from: a deletion there is
        evaluated anew.

        Args:
            excess: bytes.
            busy: the ids of shared trees that are left alone.
        """
        for shared in self._shared():
            if excess <= 0:
                return
            if id(shared) not in busy:
                size = shared.tree.nbytes
                self._cut(shared)
                excess -= size - shared.tree.nbytes

    def _cut(self, shared: SharedTree) -> None:
        """Drop the contexts of a tree that its states do not go on from, and their parents."""
        states = [known.state for known in self._kept.values() if known.state.shared is shared]
        if not states:
            return  # a prompt that was read, and has no state yet
        shared.keep([bundle.node for state in states for bundle in state.bundles])
        for state in states:
            state._parent = None

    def forget_oldest(self) -> bool:
        """Forget the longest unused entry; return False if it is the only one."""
        if self._reads:
            self._reads.popleft()
        elif len(self._kept) > 1:
            self._kept.popitem(last=False)
        else:
            return False
        return True

    def after(self, opening: PromptStart, whole: bytes) -> _Known:
        """Return the state after a text.

        Raises:
            ZeroProbabilityError: if the model gives the text probability zero.
        """
        known, both = self._nearest(opening, whole)
        if known is None or both <= known.state.shared.start:
            read = self._read_before(opening, whole) or self._read(opening, whole, opening, whole)
            return self._keep(opening, self._begun(read, whole))
        return self._keep(opening, self._moved(known, whole, both), known)

    def between(self, prefix: bytes, suffix: bytes, opening: tuple[int, ...] = ()) -> _Known:
        """Return the state between two texts, by a model that fills in.

        What is typed after the prompt was divided is conditioned on as the beginning of the
        middle: the prompt stays, and a key costs what it costs elsewhere. `opening` is what comes
        before both, in place of the start token.

        Raises:
            SettingError: the model has no sentinels.
        """
        key = (opening, suffix)
        known, both = self._nearest(key, prefix)
        back = 0 if known is None else len(known.text) - both
        # After so many typed bytes the prompt is divided anew into prefix and suffix.
        if known is None or back > len(known.state.raw) or known.typed > 512:
            read = self._read_before(key, prefix)
            if read is None:
                request = self.lm.infill_request(prefix, suffix, opening=opening)
                read = self._read(key, prefix, *opening_of(request, self.lm.index), request)
            return self._keep(key, self._begun(read, prefix))
        return self._keep(key, self._moved(known, prefix, both), known)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self._reads.clear()

    def _read(
        self,
        key: Hashable,
        text: bytes,
        opening: PromptStart,
        whole: bytes,
        request: Request | None = None,
    ) -> _Read:
        """A prompt, read: one model call, of use to the next key if this one is given up."""
        lm = self.lm
        shared, _ = prefill(Conditions(lm.engine, lm.index, opening), whole)
        self._reads.append(_Read(key, text, whole, shared, request))
        return self._reads[-1]

    def _read_before(self, key: Hashable, text: bytes) -> _Read | None:
        """A prompt that was read, and that this text goes on from."""
        for read in self._reads:
            back = len(read.text) - _common(read.text, text)
            if read.key == key and back <= len(read.whole) - read.shared.start:
                tokens = len(self._rest(read, text)[1])
                enough = not read.shared.given or tokens >= EXACT_TOKENS - 1
                if enough and tokens <= 2 * WHOLE_TOKENS:
                    return read
        return None

    def _rest(self, read: _Read, text: bytes) -> tuple[bytes, list[int]]:
        """A text on the tree of a prompt, and its tokens after the root."""
        both = _common(read.text, text)
        whole = read.whole[: len(read.whole) - (len(read.text) - both)] + text[both:]
        return whole, self.lm.vocabulary.encode_beginning(whole[read.shared.start :])

    def _begun(self, read: _Read, text: bytes) -> _Known:
        """The first state on the tree of a prompt."""
        whole, canonical = self._rest(read, text)
        effort = self.lm.effort
        cover = cover_of(read.shared, whole, canonical, effort)
        self._reads.remove(read)
        return _Known(text, State(read.shared, whole, cover, effort), read.request)

    def _nearest(self, key: Hashable, text: bytes) -> tuple[_Known | None, int]:
        """The state of the longest text that this one begins like, and for how many bytes."""
        best: tuple[int, int] = (-1, 0)
        found = None
        for (other, _), known in self._kept.items():
            if other == key:
                both = _common(known.text, text)
                if (both, -len(known.text)) > best:
                    best, found = (both, -len(known.text)), known
        return found, best[0]

    def _moved(self, known: _Known, text: bytes, both: int) -> _Known:
        """The state of another text with this beginning."""
        back, more = len(known.text) - both, text[both:]
        state = known.state.without_bytes(back) if back else known.state
        state = state + more if more else state
        return _Known(text, state, known.request, max(0, known.typed - back) + len(more))

    def _keep(self, key: Hashable, known: _Known, grown_from: _Known | None = None) -> _Known:
        if grown_from is not None and known.text.startswith(grown_from.text):
            self._kept.pop((key, grown_from.text), None)  # its parents know it
        self._kept[key, known.text] = known
        self._kept.move_to_end((key, known.text))
        _forget_parents(known.state)
        if len(self._kept) > 256:
            self._kept.popitem(last=False)
        return known

    def _shared(self) -> list[SharedTree]:
        trees = [known.state.shared for known in list(self._kept.values())]
        trees += [read.shared for read in list(self._reads)]
        return list({id(shared): shared for shared in trees}.values())


def _forget_parents(state: State) -> None:
    """Let go of states too far back for a deletion to reach."""
    # So many states, and so many bytes of their texts.
    most = min(4096, max(16, 2**23 // (len(state.whole) + 1)))
    for _ in range(most):
        if state._parent is None:
            return
        state = state._parent
    state._parent = None


def _common(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike.

    >>> _common(b"import nu", b"import os"), _common(b"ab", b"abc"), _common(b"b", b"a")
    (7, 2, 0)
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
