"""Type a text: after each key, the characters that may come next, and an offer.

python examples/type_and_see.py [MODEL [TEXT]]
"""

from __future__ import annotations

import sys

import charwise

lm = charwise.load(sys.argv[1] if len(sys.argv) > 1 else "embedded")
text = sys.argv[2] if len(sys.argv) > 2 else "import nump"

state = lm.state("")
for key in text:
    state = state + key
    following = " ".join(f"{byte!r} {p:.2f}" for byte, p in state.next().top(3))
    [offer] = state.complete(max_new_bytes=12)
    print(f"{state.text!r:16} {following:32} {offer.text!r}")

state = state - 2  # two keys back
print(f"{state.text!r:16} log p {state.logprob:.2f} nats, may be off by {state.error:.0e}")
