"""Token healing: prompts cut where a longer token may begin, and their ends written again.

`forced` has the three functions that everything rests on. The other modules read prompts
(`prompt`, `fim`), read answers (`continuation`), and heal inside the engines of others, each of
which imports its engine itself.
"""

from charwise.healing.forced import (
    Cut,
    HealedPrompt,
    Rule,
    allowed_next,
    cut,
    prompt_ids,
    remaining,
)

__all__ = [
    "Cut",
    "HealedPrompt",
    "Rule",
    "allowed_next",
    "cut",
    "prompt_ids",
    "remaining",
]
