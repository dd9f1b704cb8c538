r"""Line ends of files: a model reads `\n`, and a file keeps its own.

end = line_end(before, after)       the file's, by majority
unify(before)                       what the model reads
unify(middle, end)                  for the file
offset(before, at)                  in the file, of a place in what the model reads
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import AnyStr

_END = re.compile(rb"\r\n|\r|\n")


def line_end(*texts: str | bytes) -> str:
    r"""Return the line end of most lines of a file; `\n` of equals, and where it has none."""
    raws = [text.encode("utf-8", "replace") if isinstance(text, str) else text for text in texts]
    lf, crlf, cr = (sum(raw.count(end) for raw in raws) for end in (b"\n", b"\r\n", b"\r"))
    counts = {"\n": lf - crlf, "\r\n": crlf, "\r": cr - crlf}
    return max(counts, key=counts.__getitem__)


def unify(text: AnyStr, end: str = "\n") -> AnyStr:
    r"""Return a text with this line end at the end of each line; a model reads `\n`."""
    lines = text.replace(_as("\r\n", text), _as("\n", text)).replace(
        _as("\r", text), _as("\n", text)
    )
    return lines if end == "\n" else lines.replace(_as("\n", text), _as(end, text))


def write_pieces(pieces: Iterable[bytes], end: str) -> list[bytes]:
    r"""Return the pieces of a text with this line end; a `\r\n` in two pieces is in the second."""
    results, held = list[bytes](), b""
    for piece in pieces:
        whole = held + piece
        held = whole[len(whole.removesuffix(b"\r")) :]
        results.append(unify(whole.removesuffix(b"\r"), end))
    if held:
        results[-1] += unify(held, end)
    return results


def offset(text: bytes, at: int) -> int:
    r"""Return the offset in a text, in bytes, of the byte `at` of `unify(text)`."""
    for end in _END.finditer(text):
        if end.start() >= at:
            break
        at += len(end[0]) - 1
    return at


def _as(end: str, text: AnyStr) -> AnyStr:
    """A line end of the type of a text."""
    return end if isinstance(text, str) else end.encode()
