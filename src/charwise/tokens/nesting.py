"""How sorted byte strings nest: where the extensions of each end, and which is its prefix."""

from __future__ import annotations

from array import array


def successor(prefix: bytes) -> bytes | None:
    """The least byte string above everything that starts with `prefix`; None if there is none.

    >>> successor(b"ab"), successor(b"a\\xff"), successor(b"\\xff")
    (b'ac', b'b', None)
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def nesting(tokens: list[bytes]) -> tuple[array[int], array[int]]:
    """For each token: the end of the range of its extensions, and its parent.

    Both are positions in sorted order. The parent is the last token that is a proper prefix, −1 if
    there is none; a twin hangs on the twin before it, so that a walk up meets every prefix token.
    The end is filled in for the first of twins. One pass, with a stack of the current prefixes.
    """
    size = len(tokens)
    range_end = array("i", [size]) * size
    parent = array("i", [-1]) * size
    last_twin = list(range(size))
    stack: list[int] = []
    previous = b""
    for at, token in enumerate(tokens):
        if token == previous:
            parent[at] = at - 1
            last_twin[stack[-1]] = at
            continue
        while stack and not token.startswith(tokens[stack[-1]]):
            range_end[stack.pop()] = at
        if stack:
            parent[at] = last_twin[stack[-1]]
        stack.append(at)
        previous = token
    return range_end, parent
