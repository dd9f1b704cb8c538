"""Complete a prompt with your model: plain, healed, and conditioned on the characters.

python examples/complete.py [MODEL [PROMPT]]
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import charwise
from charwise.models import EMBEDDED

name = sys.argv[1] if len(sys.argv) > 1 else str(EMBEDDED)
prompt = sys.argv[2] if len(sys.argv) > 2 else "import numpy as np\nraise ValueErr"

model = AutoModelForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
ids = tokenizer(prompt, return_tensors="pt")
length = ids["input_ids"].shape[1]
plain = tokenizer.decode(model.generate(**ids, max_new_tokens=8, do_sample=False)[0, length:])
[healed] = charwise.heal_generate(model, tokenizer, [prompt], max_new_tokens=8)
[exact] = charwise.load(name).complete(prompt, max_new_bytes=24)

for way, text in ("plain", plain), ("healed", healed), ("exact", exact.text):
    print(f"{way:7} {text!r}")
