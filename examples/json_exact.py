"""JSON under the model's own distribution, beside JSON that is masked at each step.

A mask alone follows what the model likes next, such as "range(", into a text that it finds
impossible. python examples/json_exact.py [MODEL]
"""

from __future__ import annotations

import sys
from collections import Counter

import charwise

SCHEMA = {"enum": ["range(zebra)", "enumerate(items)"]}

lm = charwise.load(sys.argv[1] if len(sys.argv) > 1 else "embedded")
for conditioning in ("local", "global"):
    samples = lm.complete(
        'kind = {"for": ',
        json_schema=SCHEMA,
        conditioning=conditioning,
        temperature=1.0,
        n=50,
        seed=1,
    )
    weights = samples.weights if conditioning == "global" else [1 / len(samples)] * len(samples)
    shares = Counter[str]()
    for one, weight in zip(samples, weights, strict=True):
        shares[one.text] += weight
    print(conditioning, *(f"{text} {share:.2f}" for text, share in shares.most_common()))
