"""Where a prefix should be divided for filling in: how much of it comes behind the suffix.

    python benchmarks/divisions.py [--quick]

A cursor stands in unseen code: after a space, inside a word, or after a word. In PSM the template
has the prefix without its last tokens, and the middle begins with these. *auto* removes what
healing removes. A cell is how often the next character is right, and its mean log2 probability.
"""

from __future__ import annotations

import math
import random

import texts
from charwise import CharLM
from charwise.healing.fim import Template, request
from harness import arguments, finish, lm_of, table

#: Tokens that the prefix loses.
DIVISIONS = ("auto", 2, 4, 8, 12, 16)

#: Whether a cursor stands so, by the characters before and after it.
PLACES = {
    "after a space": lambda code, at: code[at - 1] == " " and (code[at - 2] + code[at]).isalnum(),
    "inside a word": lambda code, at: code[at - 1 : at + 1].isalpha(),
    "after a word": lambda code, at: code[at - 1].isalnum() and not code[at].isalnum(),
}


def cells(lm: CharLM, place: str, count: int) -> list[str]:
    """The cells of a place, one for each division."""
    rng, template = random.Random(place), Template.of(lm.vocabulary)
    right, bits = [0] * len(DIVISIONS), [0.0] * len(DIVISIONS)
    for _ in range(count):
        code = texts.path_of(rng.choice(texts.HELD_OUT)).read_text(encoding="utf-8")
        at = rng.randrange(600, len(code) - 600)
        while not (PLACES[place](code, at) and code[at].isascii()):
            at = at + 1 if at < len(code) - 600 else 600
        before, after = code[at - 500 : at], code[at + rng.randrange(3, 60) : at + 400]
        for n, left in enumerate(DIVISIONS):
            task = request(before, after, template, lm.index, left=left, order="psm")
            nxt = lm.next([*task.kept, task.forced])
            right[n] += nxt.probs.argmax() == ord(code[at])
            bits[n] += math.log2(nxt.probs[ord(code[at])])
    return [f"{100 * r / count:.0f} %, {b / count:.2f}" for r, b in zip(right, bits, strict=True)]


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    count = 10 if args.quick else 150
    lm = lm_of("embedded")
    rows = {place: cells(lm, place, count) for place in PLACES}
    finish(table(f"{count} places of each kind", ["cursor", *map(str, DIVISIONS)], rows))


if __name__ == "__main__":
    main()
