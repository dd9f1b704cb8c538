"""Two models with any tokenizers as one: which of them a text follows, and what comes next.

python examples/two_models.py [MODEL OTHER]

Without models, the second is the embedded model after a line of code of its own.
"""

from __future__ import annotations

import sys

import charwise
from charwise import combine

TEXT = "x = np.zer"

first = charwise.load(sys.argv[1] if len(sys.argv) > 1 else "embedded")
if len(sys.argv) > 2:
    second = combine.Member(charwise.load(sys.argv[2]))
else:
    second = combine.Member(first, before="import numpy as np\n")
both = combine.mixture([first, second])

for end in range(0, len(TEXT) + 1, 2):
    shares = " ".join(f"{share:.2f}" for share in combine.shares(both, TEXT[:end]))
    byte, probability = both.next(TEXT[:end]).top(1)[0]
    print(f"{TEXT[:end]!r:14} weights {shares}   next {byte!r} {probability:.2f}")
print(f"{both.complete(TEXT, max_new_bytes=12)[0].text!r}")
print(
    f"{both.score(TEXT).bits_per_byte:.2f} bits a byte, alone {first.score(TEXT).bits_per_byte:.2f}"
)
