"""The outcomes of texts with one token more under a constraint, with their probabilities.

Tokens all of whose bytes may follow go on. Others run past a member of C after which nothing may
follow, or past the longest text asked for: these texts are complete, whatever comes after. They are
looked for where the mass is: ranges of tokens that begin alike, the heaviest first, until little is
left that is not known. What is left is *unsure*: it counts, and a token drawn from it is asked for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.constraints.constraint import END, Constraint, Flags
from charwise.tokens.index import SortedVocabulary

Floats = NDArray[np.float64]

#: The search ends where so small a share is unsure, or after so many ranges.
_LEAST, _RANGES = 1e-2, 512


@dataclass(frozen=True, slots=True)
class Branch:
    """A range of tokens that begin alike.

    >>> Branch(None, b"", b"", 0, 0, 3, 0).text
    b''
    """

    before: Constraint  # what may follow, but for `new`
    new: bytes
    text: bytes  # how these tokens go on, `new` included
    shift: int  # the mass of the token at `rank` is at `rank + shift`
    lo: int
    hi: int
    depth: int  # bytes on which the tokens agree

    def constraint(self) -> Constraint:
        """Return the constraint after `text`."""
        return self.before.after(self.new) if self.new else self.before

    def part(self, constraint: Constraint, byte: bytes, lo: int, hi: int) -> Branch:
        """The part that goes on with a byte, after which this is left of the range."""
        text = self.text + byte
        return Branch(constraint, byte, text, self.shift, lo, hi, self.depth + 1)


class _Complete(NamedTuple):
    """A text that is complete; anything may follow.

    >>> _Complete(b"yes", "constraint", 0.25).finish
    'constraint'
    """

    text: bytes
    finish: str  # "constraint" or "length"
    mass: float


@dataclass
class Outcomes:
    """The outcomes of a text.

    Attributes:
        fits: `[n]` which tokens were found that go on; they may be complete as well.
        complete: texts that end inside of a token, with the mass of all that run past them.
        unsure: ranges of which it is not known.
    """

    fits: Flags
    complete: list[_Complete]
    unsure: list[Branch]


def ended(allowed: Flags, size: int, most: int) -> str:
    """Why nothing more is drawn after a text of `size` bytes; "" if it goes on, or is a dead end.

    >>> from charwise.constraints import choices
    >>> ended(choices(["a"]).after(b"a").allowed(), 1, 9), ended(choices(["ab"]).allowed(), 9, 9)
    ('constraint', 'length')
    """
    if not allowed[:END].any():
        return "constraint" if allowed[END] else ""
    return "length" if size >= most else ""


def explore(
    index: SortedVocabulary, masses: Floats, branches: Sequence[Branch], known: float, most: int
) -> Outcomes:
    """Return the outcomes of texts that go on with the tokens of some ranges.

    Args:
        index: the vocabulary.
        masses: `[n]` probabilities of the tokens, those that are known already as 0.
        branches: the ranges.
        known: the mass of what is known already.
        most: most bytes of a text.

    >>> from charwise.constraints import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"n", b"no", b"not"]))
    >>> whole = Branch(choices(["no"]), b"", b"", 0, 0, 3, 0)
    >>> found = explore(index, np.array([0.2, 0.5, 0.3]), [whole], 0.0, 9)
    >>> found.fits.tolist(), found.complete
    ([True, False, False], [_Complete(text=b'no', finish='constraint', mass=0.8)])
    """
    found = Outcomes(np.zeros(len(masses), dtype=np.bool_), [], [])
    heap = [(-_mass(masses, branch), n, branch) for n, branch in enumerate(branches)]
    heapq.heapify(heap)
    steps, left = len(heap), -math.fsum(entry[0] for entry in heap)
    while heap and left > _LEAST * known and steps < _RANGES + len(branches):
        weight, _, branch = heapq.heappop(heap)
        left += weight
        lo, constraint = branch.lo, branch.constraint()
        allowed = constraint.allowed()
        finish = ended(allowed, len(branch.text), most)
        if finish:
            found.complete.append(_Complete(branch.text, finish, -weight))
            known -= weight
            continue
        while lo < branch.hi and len(index.sorted[lo]) == branch.depth:
            found.fits[lo + branch.shift] = True
            known += float(masses[lo + branch.shift])
            lo += 1
        for code, first, last in _runs(index, lo, branch.hi, branch.depth, allowed):
            mass = float(masses[first + branch.shift : last + branch.shift].sum())
            if mass > 0:
                part = branch.part(constraint, bytes([code]), first, last)
                steps += 1
                left += mass
                heapq.heappush(heap, (-mass, steps, part))
    found.unsure = [branch for _, _, branch in heap]
    return found


def _mass(masses: Floats, branch: Branch) -> float:
    return float(masses[branch.lo + branch.shift : branch.hi + branch.shift].sum())


def _runs(
    index: SortedVocabulary, lo: int, hi: int, depth: int, allowed: Flags
) -> Iterator[tuple[int, int, int]]:
    """The bytes allowed with which tokens of a range go on, and the range of those that do."""
    following = index.flat[index.starts[lo:hi] + depth]
    ends = np.flatnonzero(np.diff(following, append=-1)).tolist() if hi > lo else []
    first = 0
    for end in ends:
        code = int(following[end])
        if allowed[code]:
            yield code, lo + first, lo + end + 1
        first = end + 1


def resolve(
    index: SortedVocabulary, branch: Branch, rank: int, most: int
) -> tuple[bytes, str] | None:
    """Return the outcome of one token of an unsure range.

    Returns:
        The text it adds and "" if it goes on; the text and the reason if it is complete; None if
        it may not follow.

    >>> from charwise.constraints import choices
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"n", b"no", b"not"]))
    >>> [resolve(index, Branch(choices(["no"]), b"", b"", 0, 0, 3, 0), rank, 9) for rank in (0, 2)]
    [(b'n', ''), (b'no', 'constraint')]
    """
    here, text = branch.constraint(), branch.text
    for byte in index.sorted[rank][branch.depth :]:
        allowed = here.allowed()
        finish = ended(allowed, len(text), most)
        if finish:
            return text, finish
        if not allowed[byte]:
            return None
        here, text = here.after(bytes([byte])), text + bytes([byte])
    return text, ""
