"""Canonical tokenization τ: from bytes to the token ids that an encoder would choose.

An encoder of a tokenizer library takes text, not bytes, and may change it (normalizers, an implied
space, characters without a token). `Canonical` wraps one so that its ids decode to exactly what
went in, or it raises `VocabularyError`.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress

from charwise.errors import VocabularyError

TextEncoder = Callable[[str], list[int]]

#: Tokens, and the characters of a text between which they lie.
Placed = tuple[int, int, list[int]]

# Bytes that are not UTF-8 become these code points under the surrogateescape error handler.
_STRAY = re.compile("([\udc80-\udcff]+)")


class Canonical:
    """An encoder from bytes to ids, exact or refusing.

    `encode_text` is the tokenizer's own. Where its ids do not spell the text, the fewest tokens
    that do replace them: there alone, if its `placed` says where in a text its tokens lie, else
    everywhere. `encode_stray` encodes bytes that are not UTF-8.
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
        fewest = self._fewest(piece.encode(), position)  # the error, where nothing spells it
        placed = getattr(self.encode_text, "placed", None)
        return self._mended(piece, placed(piece)) if placed else fewest

    def _mended(self, piece: str, placed: Sequence[Placed]) -> list[int]:
        """The tokens that spell what is at their place in a text, and the fewest between them."""
        runs: list[Placed] = []
        for start, stop, ids in placed:
            if runs and start < runs[-1][1]:  # bytes of one character
                first, last, before = runs.pop()
                start, stop, ids = min(first, start), max(last, stop), [*before, *ids]
            runs.append((start, stop, ids))
        mended: list[Placed] = []
        for start, stop, ids in [*runs, (len(piece), len(piece), [])]:
            while self._bytes(ids) == piece[start:stop].encode():
                at = mended[-1][1] if mended else 0
                with suppress(VocabularyError):
                    gap = self._fewest(piece[at:start].encode(), 0)
                    mended += [(at, start, gap), (start, stop, ids)]
                    break
                del mended[-2:]  # the gap takes in the tokens before it, and those after it
                if start < len(piece):
                    break
        return [id for _, _, ids in mended for id in ids]

    def _fewest(self, data: bytes, position: int) -> list[int]:
        """The spelling of `data` with the fewest tokens, the longer token first in a tie."""
        ids_of, most = self._spelled, self._max_bytes
        size = len(data)  # and `best[j]` the fewest tokens that spell `data[j:]`
        never = size + 1
        best = [never] * size + [0]
        length = [0] * size
        for j in range(size - 1, -1, -1):
            for k in range(min(most, size - j), 0, -1):
                if best[j + k] + 1 < best[j] and data[j : j + k] in ids_of:
                    best[j], length[j] = best[j + k] + 1, k
        if size and best[0] >= never:
            raise _uncovered(data, position, ids_of, most)
        ids, j = [], 0
        while j < size:
            ids.append(ids_of[data[j : j + length[j]]])
            j += length[j]
        return ids


def _uncovered(data: bytes, position: int, ids_of: dict[bytes, int], most: int) -> Exception:
    """The error for the first byte that no run of tokens reaches."""
    reach = {0}
    for j in range(len(data)):
        if j in reach:
            steps = range(1, min(most, len(data) - j) + 1)
            reach.update(j + k for k in steps if data[j : j + k] in ids_of)
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
    """Return the UTF-8 bytes of a text; a lone surrogate, which has none, is refused."""
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    if not isinstance(text, str):
        raise VocabularyError(f"a text must be str or bytes, not {type(text).__name__}.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        offset = len(text[: error.start].encode("utf-8"))
        raise VocabularyError(
            f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character "
            f"{error.start}: it has no UTF-8 form. Write the character itself, pass bytes, or "
            "decode the source with errors='replace'.",
            offset,
        ) from None
