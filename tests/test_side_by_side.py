"""Plain and healed texts drawn token by token: those of transformers' own `generate`."""

from __future__ import annotations

import numpy as np
import pytest

import charwise
from charwise import CharLM
from charwise.cursor.options import GenerationOptions
from charwise.healing.generate import heal_generate
from charwise.side_by_side import METHODS, complete_by_tokens
from models import table

PROMPTS = ["raise ValueErr", "import nump", "for i in rang", "x = 'na\u00ef", "def f(s", "x = 1\n"]


@pytest.mark.parametrize("rule", ["auto", "off", 2])
def test_greedy_texts_are_those_of_generate(lm: CharLM, rule: charwise.healing.Rule) -> None:
    options = GenerationOptions(max_new_bytes=24)
    for prompt in PROMPTS:
        ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode(prompt.encode())]
        expected = heal_generate(
            lm.engine.model, lm.index, [ids], rule=rule, max_new_bytes=24, do_sample=False
        )
        assert complete_by_tokens(lm, prompt.encode(), rule, options) == expected


def test_draws_have_the_probabilities_of_the_model_and_end_at_a_stop() -> None:
    model = table([b"a", b"b"], {(): [0.5, 0.3, 0.2]})
    options = GenerationOptions(n=4000, temperature=1.0, max_new_bytes=1, seed=1)
    texts = complete_by_tokens(CharLM(model.lm), b"a", "off", options)
    shares = np.array([texts.count(text) / 4000 for text in ("a", "b", "")])
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    stopped = GenerationOptions(n=200, temperature=1.0, max_new_bytes=9, seed=1, stop="b")
    assert not any(
        "b" in text for text in METHODS["healed"](CharLM(model.lm), b"a", "off", stopped)
    )
