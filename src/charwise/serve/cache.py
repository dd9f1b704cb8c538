"""Known states of one model, found by their text, and offers that users type along.

Requests carry whole texts, which differ by a key from the last. The cache is shared by all clients:
a request continues from the entry with the longest common prefix.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Hashable
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from charwise.char_lm import CharLM
from charwise.cursor.middle import opening_of
from charwise.cursor.shared_tree import SharedTree
from charwise.cursor.state import State, begin
from charwise.healing import HealedPrompt
from charwise.serve.prompt import Place
from charwise.serve.task import Candidate, Piece
from charwise.tokens.prompts import PromptStart
from charwise.tokens.utf8 import decoder_after


class _Entry(NamedTuple):
    """A state, and the text that it stands for.

    Attributes:
        cached: bytes at the beginning of the state's text that were evaluated before; None if
            nothing was.
        request: of a state between two sides.
        typed: bytes added since the state's prompt was read.
    """

    text: bytes
    state: State
    cached: int | None = None
    request: HealedPrompt | None = None
    typed: int = 0

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of the state's whole prompt, and those of them that were evaluated before."""
        shared, vocabulary = self.state.shared, self.state.shared.index.vocabulary
        first = len(shared.opening.ids) + len(shared.canonical_ids)
        rest = vocabulary.encode_beginning(self.state.whole[shared.start :])
        if self.cached is None:
            return first + len(rest), 0
        sizes = (len(vocabulary.tokens[id] or b"") for id in rest)
        cached = sum(end <= self.cached for end in accumulate(sizes, initial=shared.start))
        return first + len(rest), first - 1 + cached


class Cache:
    """States and offers of one model; those used longest ago are forgotten. For one thread."""

    def __init__(self, lm: CharLM, max_bytes: int = 2**28) -> None:
        self.lm = lm
        self.max_bytes = max_bytes
        self._states: OrderedDict[tuple[Hashable, bytes], _Entry] = OrderedDict()
        self._offers: OrderedDict[tuple[Hashable, bytes], tuple[Candidate, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def trees(self) -> list[SharedTree]:
        """The token trees of all states."""
        trees = {id(entry.state.shared): entry.state.shared for entry in self._states.values()}
        return list(trees.values())

    @property
    def nbytes(self) -> int:
        """The bytes of the evaluated contexts, and of the texts."""
        texts = sum(len(entry.text) for entry in self._states.values())
        return 2 * texts + sum(shared.tree.nbytes for shared in self.trees)

    def at(self, place: Place, text: bytes, anew: bool = False) -> _Entry:
        """Return the state after a text, as an entry.

        Between two sides, what is typed after the prompt was divided is conditioned on as the
        beginning of the middle: the prompt stays, and a key costs what it costs elsewhere. With
        `anew` the prompt is divided where that of a fresh server is.
        """
        entry, common = self._nearest(place, text)
        if entry is not None:
            if entry.request is None:
                near = common > entry.state.shared.start
            else:  # after so many typed bytes the prompt is divided anew into prefix and suffix
                near = len(entry.text) - common <= len(entry.state.raw) and entry.typed <= 512
                near = near and (not anew or (entry.typed == 0 and entry.text == text))
            if near:
                return self._add(place, _moved(entry, text, common), entry)
        lm = self.lm
        if isinstance(place, PromptStart):
            request, start, whole = None, place, text
        else:
            request = lm.infill_request(text, place[1] or b"", opening=place[0])
            start, whole = opening_of(request, lm.index)
        state = begin(lm.engine, start, whole, lm.effort)
        return self._add(place, _Entry(text, state, request=request))

    def count(self, place: Place, text: bytes) -> int:
        """Return the tokens of a prompt, as they are where none of it is known."""
        if isinstance(place, PromptStart):
            return len(place.ids) + len(self.lm.vocabulary.encode_beginning(text))
        request = self.lm.infill_request(text, place[1] or b"", opening=place[0])
        return len(request.kept) + request.removed_tokens

    def remember(self, key: Hashable, text: bytes, candidates: tuple[Candidate, ...]) -> None:
        """Keep the offers after a text, for requests that are otherwise alike."""
        self._offers.pop((key, text), None)
        self._offers[key, text] = candidates
        if len(self._offers) > 128:
            self._offers.popitem(last=False)

    def recall(self, key: Hashable, text: bytes) -> tuple[Candidate, ...]:
        """Return the rest of the offers that this text was typed along; empty if there are none.

        Its own offers go before those of texts that it goes on from, the latest of these first.
        Where it was typed along some of several offers, the others are missing: there are none.
        """
        known = reversed(self._offers.items())
        for (other, before), candidates in sorted(known, key=lambda item: item[0] != (key, text)):
            if other == key and text.startswith(before):
                rests = [_rest_of(one, text[len(before) :], text) for one in candidates]
                offers = tuple(rest for rest in rests if rest is not None)
                if offers and len(offers) == len(rests):
                    return offers
        return ()

    def enforce_limit(self, busy: Collection[SharedTree] = ()) -> None:
        """Keep to the most bytes, the longest unused first.

        Contexts that only a deletion goes on from are freed before whole texts are forgotten. Of
        `busy` trees completions are drawn now: they are left as they are.
        """
        if self.nbytes <= self.max_bytes:
            return
        for shared in self.trees:
            if all(shared is not tree for tree in busy) and self.nbytes > self.max_bytes:
                every = [entry.state for entry in self._states.values()]
                states = [state for state in every if state.shared is shared]
                shared.keep([bundle.node for state in states for bundle in state.bundles])
                for state in states:
                    state._parent = None
        while len(self._states) > 1 and self.nbytes > self.max_bytes:
            self._states.popitem(last=False)

    def _nearest(self, key: Hashable, text: bytes) -> tuple[_Entry | None, int]:
        """The state of the longest text that this one begins like, and for how many bytes."""
        every = [
            (entry, _common(entry.text, text))
            for (other, _), entry in self._states.items()
            if other == key
        ]
        return max(every, key=lambda pair: (pair[1], -len(pair[0].text)), default=(None, 0))

    def _add(self, key: Hashable, entry: _Entry, grown_from: _Entry | None = None) -> _Entry:
        if grown_from is not None and entry.text.startswith(grown_from.text):
            self._states.pop((key, grown_from.text), None)  # the new state's parents know it
        self._states[key, entry.text] = entry
        self._states.move_to_end((key, entry.text))
        _forget_parents(entry.state)
        if len(self._states) > 256:
            self._states.popitem(last=False)
        return entry


def _moved(entry: _Entry, text: bytes, common: int) -> _Entry:
    """The state of another text with this beginning."""
    back, more = len(entry.text) - common, text[common:]
    state = entry.state.without_bytes(back) if back else entry.state
    state = state + more if more else state
    # Where a state starts over, nothing of its prompt was evaluated before.
    cached = len(state.whole) - len(more) if state.shared is entry.state.shared else None
    return _Entry(text, state, cached, entry.request, max(0, entry.typed - back) + len(more))


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
    """How many bytes two texts begin with alike."""
    sizes = range(1, min(len(one), len(other)) + 1)
    return bisect_left(sizes, True, key=lambda size: one[:size] != other[:size])


def _rest_of(candidate: Candidate, typed: bytes, text: bytes) -> Candidate | None:
    """The rest of a candidate after its beginning was typed; None if the text differs.

    Of one that could go on, more than half must be left, and a whole line if it has lines, or if
    its time was over: its last line may be cut anywhere. The log-probability is that of the tokens
    that hold what is left: at most what it is, where the first of them was typed in part.
    """
    if not typed:
        return None if candidate.finish == "time" else candidate
    rest = candidate.raw[len(typed) :]
    if not rest or not candidate.raw.startswith(typed):
        return None
    if candidate.finish in ("length", "window", "time"):  # more could follow
        lines = b"\n" in candidate.raw or candidate.finish == "time"
        no_line = lines and b"\n" not in rest.lstrip()  # the end of the line before is none
        if no_line or 2 * len(rest) <= len(candidate.raw):
            return None
    pieces, at = list[Piece](), 0
    for piece in candidate.pieces:
        at += len(piece.raw)
        if at > len(typed) or not piece.raw:
            pieces.append(piece._replace(raw=piece.raw[-(at - len(typed)) :] if piece.raw else b""))
    return replace(
        candidate,
        text=decoder_after(text[-3:]).decode(rest),
        raw=rest,
        logprob=sum(piece.logprob for piece in pieces if piece.raw),
        pieces=tuple(pieces),
    )
