"""Healing in a `generate` call of your own: a batch, beams, a different cut in each row.

Usage: ``python examples/heal_generate_call.py [MODEL]``
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from charwise import SortedVocabulary, Vocabulary, healing
from charwise.healing.transformers import HealingLogitsProcessor
from charwise.models import EMBEDDED

PROMPTS = ["import os\nimport sy", "def f(x):\n    retur", "while Tru"]

name = sys.argv[1] if len(sys.argv) > 1 else EMBEDDED
model = AutoModelForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token

vocabulary = Vocabulary.from_transformers(
    tokenizer, width=model.config.vocab_size, generation_config=model.generation_config
)
index = SortedVocabulary(vocabulary)

# Cut every prompt; pad what is kept on the left.
cuts = [healing.cut(prompt, index) for prompt in PROMPTS]
batch = tokenizer.pad(
    {"input_ids": [kept for kept, _ in cuts]}, padding_side="left", return_tensors="pt"
)
length = batch["input_ids"].shape[1]

# One forced text for each row; generate may copy the rows for beams and returns.
processor = HealingLogitsProcessor(index, [forced for _, forced in cuts], length)
out = model.generate(
    **batch,
    logits_processor=[processor],
    num_beams=3,
    num_return_sequences=2,
    max_new_tokens=8,
    do_sample=False,
)

for row, ids in enumerate(out[:, length:].tolist()):
    prompt, (_, forced) = PROMPTS[row // 2], cuts[row // 2]
    completion = vocabulary.decode(ids)[len(forced) :].decode("utf-8", "replace")
    print(f"{prompt!r} + {completion!r}")
