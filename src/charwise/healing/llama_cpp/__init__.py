"""Token healing in llama-cpp-python: a logits processor, and completions in one call.

    response = heal_completion(llama, "for i in rang", max_tokens=16)

or, in calls of your own:

    index = index_of(llama)
    kept, forced = healing.cut("for i in rang", index)
    processor = HealingLogitsProcessor(index, forced, prompt_length=len(kept))
    llama.create_completion(kept, logits_processor=Processors([processor]))

Two traps of llama-cpp-python 0.3: with a `logit_bias`, `create_completion` drops all processors of
a `LogitsProcessorList` (not of `Processors`); and what a processor raises is printed and ignored
(`heal_completion` raises it). Not handled: draft models, whose guesses a processor cannot tell
from what was generated.
"""

from charwise.healing.llama_cpp.completion import heal_completion, index_of
from charwise.healing.llama_cpp.logits_processor import (
    EndingLogitsProcessor,
    HealingLogitsProcessor,
    Processors,
)

__all__ = [
    "EndingLogitsProcessor",
    "HealingLogitsProcessor",
    "Processors",
    "heal_completion",
    "index_of",
]
