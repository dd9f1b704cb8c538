r"""Line ends of files: a model reads `\n`, and a file keeps its own."""

import re
from collections.abc import Iterable
from typing import Any, AnyStr

_END = re.compile(rb"\r\n|\r|\n")


def line_end(*texts: str | bytes) -> str:
    r"""Return the line end of most lines of a file; `\n` of equals, and where it has none."""
    raws = [text.encode("utf-8", "replace") if isinstance(text, str) else text for text in texts]
    lf, crlf, cr = (sum(raw.count(end) for raw in raws) for end in (b"\n", b"\r\n", b"\r"))
    counts = {"\n": lf - crlf, "\r\n": crlf, "\r": cr - crlf}
    return max(counts, key=counts.__getitem__)


def unify(text: AnyStr, end: str = "\n") -> AnyStr:
    r"""Return a text with this line end at the end of each line; a model reads `\n`."""
    ends: Any = ("\r\n", "\r", "\n", end)
    crlf, cr, lf, own = ends if isinstance(text, str) else (one.encode() for one in ends)
    return text.replace(crlf, lf).replace(cr, lf).replace(lf, own)


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
