"""Canonical tokenization τ: from bytes to the token ids that an encoder would choose.

An encoder of a tokenizer library takes text, not bytes, and some change what they are given
(normalizers, an implied leading space, characters dropped for want of a token). `Canonical`
wraps one so that the ids it returns always decode to exactly the bytes that went in, or it
raises `VocabularyError`. It does not define probabilities: any token string with the right
bytes is an encoding, and the canonical one is only the likeliest guess.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from charwise.errors import VocabularyError

TextEncoder = Callable[[str], list[int]]

# Bytes that are not UTF-8 become these code points under the surrogateescape error handler.
_STRAY = re.compile("([\udc80-\udcff]+)")


class Canonical:
    """An encoder from bytes to ids, exact or refusing.

    `encode_text` is the tokenizer's own (None: every text is spelled with the fewest tokens).
    Where its ids do not spell the text, they are replaced by the fewest tokens that do, there and
    nowhere else: its `placed`, if it has one, says where in a text its tokens lie.
    `encode_stray`, if there is one, encodes bytes that are not UTF-8.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        encode_text: TextEncoder | None = None,
        encode_stray: Callable[[bytes], list[int]] | None = None,
    ) -> None:
        self.tokens = tokens
        self.encode_text = encode_text
        self.encode_stray = encode_stray
        # Of two ids with equal bytes the later wins: with byte fallback (<0x41> beside "A") the
        # byte tokens come first in every known vocabulary, and encoders use the other one.
        self._spelled = {token: id for id, token in enumerate(tokens) if token is not None}
        self._max_bytes = max(map(len, self._spelled), default=0)

    def __call__(self, data: bytes) -> list[int]:
        """Ids whose bytes concatenate to exactly `data`; raises `VocabularyError`."""
        if self.encode_text is None:
            return self._fewest(data, 0)
        ids: list[int] = []
        position = 0
        for piece in _STRAY.split(data.decode("utf-8", "surrogateescape")):
            raw = piece.encode("utf-8", "surrogateescape")
            if _STRAY.match(piece):
                ids += self._stray(raw, position)
            elif piece:
                ids += self._text(piece, position)
            position += len(raw)
        return ids

    def _bytes(self, ids: Sequence[int]) -> bytes | None:
        tokens = [self.tokens[id] for id in ids]
        return None if None in tokens else b"".join(tokens)  # type: ignore[arg-type]

    def _stray(self, raw: bytes, position: int) -> list[int]:
        if self.encode_stray is not None:
            ids = self.encode_stray(raw)
            if self._bytes(ids) == raw:
                return ids
        return self._fewest(raw, position)

    def _text(self, piece: str, position: int) -> list[int]:
        """The encoder's ids, except where these do not spell the text: there, the fewest tokens."""
        assert self.encode_text is not None
        ids = self.encode_text(piece)
        if self._bytes(ids) == piece.encode():
            return ids
        placed = getattr(self.encode_text, "placed", None)
        runs = _apart(placed(piece) if placed else self._both_ends(piece, ids))
        later = deque(r for r in runs if self._bytes(r.ids) == piece[r.start : r.stop].encode())
        earlier = [Run(0, 0, [])]
        while later or earlier[-1].stop < len(piece):
            if later and later[0].start == earlier[-1].stop:
                earlier.append(later.popleft())
            else:
                earlier.append(self._filled(piece, earlier, later, position))
        return [id for run in earlier for id in run.ids]

    def _filled(self, piece: str, earlier: list[Run], later: deque[Run], position: int) -> Run:
        """The fewest tokens for a gap between runs, or for it and as many runs as it takes."""
        start, stop, reach = earlier[-1].stop, later[0].start if later else len(piece), 1
        while True:
            before = position + len(piece[:start].encode())
            try:
                return Run(start, stop, self._fewest(piece[start:stop].encode(), before))
            except VocabularyError as error:
                whole = start == 0 and stop == len(piece)
                if whole or self._never(piece, error.position - position):
                    raise
            for _ in range(reach):
                start = earlier.pop().start if len(earlier) > 1 else 0
                stop = later.popleft().stop if later else len(piece)
            reach *= 2

    def _both_ends(self, piece: str, ids: Sequence[int]) -> list[Run]:
        """Where tokens lie, by an encoder that does not say: those that the text begins with and
        those that it ends with."""
        data = piece.encode()
        spelled = [self.tokens[id] or b"" for id in ids]
        first, start = 0, 0
        while first < len(ids) and spelled[first] and data.startswith(spelled[first], start):
            start += len(spelled[first])
            first += 1
        last, stop = len(ids), len(data)
        while last > first and spelled[last - 1] and data.endswith(spelled[last - 1], start, stop):
            last -= 1
            stop -= len(spelled[last])
        character = [at for at, c in enumerate(piece) for _ in c.encode()]
        runs: list[Run] = []
        for some, at in ((range(first), 0), (range(last, len(ids)), stop)):
            for n in some:
                end = at + len(spelled[n])
                runs.append(Run(character[at], character[end - 1] + 1, [ids[n]]))
                at = end
        return runs

    def _never(self, piece: str, offset: int) -> bool:
        """Whether the character at a byte of a text is in no token, and no token ends inside it."""
        character = piece[len(piece.encode()[:offset].decode("utf-8", "ignore")) :][:1].encode()
        parts = tuple(character[:size] for size in range(1, len(character)))
        return not any(character in token or token.endswith(parts) for token in self._spelled)

    def _fewest(self, data: bytes, position: int) -> list[int]:
        """The spelling of `data` with the fewest tokens, the longer token first in a tie.

        Dynamic programming from the end: `best[j]` is the fewest tokens that spell `data[j:]`.
        """
        spelled, most = self._spelled, self._max_bytes
        size = len(data)
        never = size + 1
        best = [never] * size + [0]
        length = [0] * size
        for j in range(size - 1, -1, -1):
            for k in range(min(most, size - j), 0, -1):
                if best[j + k] + 1 < best[j] and data[j : j + k] in spelled:
                    best[j], length[j] = best[j + k] + 1, k
        if size and best[0] >= never:
            raise _uncovered(data, position, spelled, most)
        ids, j = [], 0
        while j < size:
            ids.append(spelled[data[j : j + length[j]]])
            j += length[j]
        return ids


class Run(NamedTuple):
    """Characters of a text, from `start` to `stop`, and the tokens that lie there."""

    start: int
    stop: int
    ids: list[int]


def _apart(runs: Iterable[Run]) -> list[Run]:
    """Runs of tokens that share characters, as one; such are the bytes of a character."""
    apart: list[Run] = []
    for run in runs:
        if apart and run.start < apart[-1].stop:
            last = apart.pop()
            ids = [*last.ids, *run.ids]
            run = Run(min(last.start, run.start), max(last.stop, run.stop), ids)
        apart.append(run)
    return apart


def _uncovered(data: bytes, position: int, spelled: dict[bytes, int], most: int) -> Exception:
    """The error for the first byte that no run of tokens reaches."""
    reach = {0}
    for j in range(len(data)):
        if j in reach:
            steps = range(1, min(most, len(data) - j) + 1)
            reach.update(j + k for k in steps if data[j : j + k] in spelled)
    at = max(reach)
    start = at
    while start > 0 and data[start] & 0xC0 == 0x80:
        start -= 1  # back to the first byte of the character, if `at` is in one
    first = data[start : start + 4].decode("utf-8", "surrogateescape")[0]
    if _STRAY.match(first) or start + len(first.encode()) <= at:
        what = f"the byte 0x{data[at]:02X}"
    else:
        name = unicodedata.name(first, "unnamed")
        what = f"the character {first!r} (U+{ord(first):04X} {name})"
    return VocabularyError(
        f"no token of this vocabulary spells {what} at byte {position + at} of the text. "
        "Remove or replace it, or use a model whose vocabulary has byte tokens.",
        position + at,
    )


def to_bytes(text: str | bytes | bytearray | memoryview) -> bytes:
    """Return the UTF-8 bytes of a text; bytes stay as they are.

    Raises `VocabularyError` for a string with a lone surrogate, which has no UTF-8 form.
    """
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    if not isinstance(text, str):
        raise VocabularyError(f"a text must be str or bytes, not {type(text).__name__}.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        offset = len(text[: error.start].encode("utf-8"))
        code = f"a lone surrogate, U+{ord(text[error.start]):04X}"
        way_out = "Pass bytes, or decode the source with errors='replace'."
        pair = text[error.start : error.start + 2].encode("utf-16", "surrogatepass")
        with suppress(UnicodeDecodeError):
            joined = ord(pair.decode("utf-16")[:1])
            if joined > 0xFFFF:
                code = f"the two surrogates of U+{joined:04X}"
                way_out = "Write the character itself, as JSON and UTF-16 are decoded."
        raise VocabularyError(
            f"the text has {code}, at character {error.start}: it has no UTF-8 form. {way_out}",
            offset,
        ) from None
