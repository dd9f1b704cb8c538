"""Token healing: prompts cut where a longer token may begin, and their ends written again.

`forced` has the three functions that everything rests on. A module that heals inside an engine
imports that engine itself.
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

__all__ = ["Cut", "HealedPrompt", "Rule", "allowed_next", "cut", "prompt_ids", "remaining"]
