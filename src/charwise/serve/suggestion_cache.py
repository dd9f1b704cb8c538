"""Completions that were offered: a user who types along one is answered from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace

from charwise.serve.task import Candidate, Piece
from charwise.tokens.utf8 import decoder_after


class SuggestionCache:
    """The offers of the latest requests.

    >>> cache = SuggestionCache()
    >>> one = Candidate("py as np", b"py as np", -1.0, "line", None, (Piece(b"py as np", -1.0, 1),))
    >>> cache.add("key", b"import num", (one,))
    >>> [one.text for one in cache.lookup("key", b"import nump")]
    ['y as np']
    >>> cache.lookup("key", b"import numb"), cache.lookup("other", b"import nump")
    ((), ())
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Hashable, bytes], tuple[Candidate, ...]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: Hashable, text: bytes, candidates: tuple[Candidate, ...]) -> None:
        """Remember the offers after a text, for requests that are otherwise alike."""
        if any(one.finish == "cancelled" for one in candidates):
            return
        if (key, text) in self._kept:
            self._forget((key, text))
        self._kept[key, text] = candidates
        self._bytes += _size((key, text), candidates)
        # So many offers are kept, and so many bytes of their texts.
        while len(self._kept) > 512 or self._bytes > 2**24:
            self._forget(next(iter(self._kept)))

    def _forget(self, one: tuple[Hashable, bytes]) -> None:
        self._bytes -= _size(one, self._kept.pop(one))

    def lookup(self, key: Hashable, text: bytes) -> tuple[Candidate, ...]:
        """Return the rest of the offers that this text was typed along; empty if there are none.

        Its own offer goes before those of texts that it goes on from, the latest of these first.
        """
        own = (((key, text), self._kept[key, text]),) if (key, text) in self._kept else ()
        for (other, before), candidates in (*own, *reversed(self._kept.items())):
            if other == key and text.startswith(before):
                typed = text[len(before) :]
                rests = [_rest_of(one, typed, text) for one in candidates]
                if found := tuple(rest for rest in rests if rest is not None):
                    return found
        return ()


def _size(one: tuple[Hashable, bytes], candidates: tuple[Candidate, ...]) -> int:
    """Return the bytes of the texts around a cursor, and of the offers there."""
    key, text = one
    around = key if isinstance(key, tuple) else ()
    size = len(text) + sum(len(part) for part in around if isinstance(part, bytes))
    return size + sum(128 + 4 * len(candidate.raw) for candidate in candidates)


def _rest_of(candidate: Candidate, typed: bytes, text: bytes) -> Candidate | None:
    """Return the rest of a candidate after its beginning was typed; None if the text differs.

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
        if lines and b"\n" not in rest.lstrip():  # the end of the line before is none
            return None
        if 2 * len(rest) <= len(candidate.raw):
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
        logprob=sum(piece.logprob for piece in pieces),
        pieces=tuple(pieces),
    )
