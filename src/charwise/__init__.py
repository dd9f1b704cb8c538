"""charwise: a character-level interface to tokenized language models.

Names load when they are first used, so that `import charwise` imports neither torch nor
transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from charwise import combine, constraints, errors, healing
    from charwise.char_lm import CharLM, load
    from charwise.coverings.covering import Covering
    from charwise.cursor.choose import ChoicePosterior
    from charwise.cursor.distributions import NextBytes
    from charwise.cursor.expansion import Outcomes
    from charwise.cursor.generation import Completion
    from charwise.cursor.middle import InfillCompletion
    from charwise.cursor.options import GenerationOptions
    from charwise.cursor.state import State
    from charwise.evaluation.compare import compare
    from charwise.healing.generate import heal_generate, heal_infill
    from charwise.scoring.effort import Effort
    from charwise.surprisal.score import Score
    from charwise.tokens.index import SortedVocabulary
    from charwise.tokens.vocabulary import Vocabulary

_HOME = {
    "CharLM": "charwise.char_lm",
    "ChoicePosterior": "charwise.cursor.choose",
    "Completion": "charwise.cursor.generation",
    "Covering": "charwise.coverings.covering",
    "Effort": "charwise.scoring.effort",
    "GenerationOptions": "charwise.cursor.options",
    "InfillCompletion": "charwise.cursor.middle",
    "NextBytes": "charwise.cursor.distributions",
    "Outcomes": "charwise.cursor.expansion",
    "Score": "charwise.surprisal.score",
    "State": "charwise.cursor.state",
    "SortedVocabulary": "charwise.tokens.index",
    "Vocabulary": "charwise.tokens.vocabulary",
    "compare": "charwise.evaluation.compare",
    "heal_generate": "charwise.healing.generate",
    "heal_infill": "charwise.healing.generate",
    "load": "charwise.char_lm",
}
_MODULES = ("combine", "constraints", "errors", "healing")

__all__ = [
    "CharLM",
    "ChoicePosterior",
    "Completion",
    "Covering",
    "Effort",
    "GenerationOptions",
    "InfillCompletion",
    "NextBytes",
    "Outcomes",
    "Score",
    "SortedVocabulary",
    "State",
    "Vocabulary",
    "combine",
    "compare",
    "constraints",
    "errors",
    "heal_generate",
    "heal_infill",
    "healing",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            value = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            from charwise.errors import missing_extra

            raise missing_extra(error) or error from error
    elif name in _MODULES:
        value = import_module(f"charwise.{name}")
    else:
        raise AttributeError(f"module 'charwise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
