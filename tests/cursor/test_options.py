"""One object says how completions are drawn, wherever it is given, and checks itself."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

import charwise
from charwise import GenerationOptions, combine
from charwise.cursor.options import GenerationKeywords

PROMPT = "for i in ra"


@pytest.fixture(scope="module")
def models() -> list[Any]:
    lm = charwise.load()
    return [lm, combine.product([lm])]


def test_every_option_is_a_keyword_and_every_keyword_an_option():
    assert set(inspect.signature(GenerationOptions).parameters) == set(
        GenerationKeywords.__optional_keys__
    )


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"n": 2, "max_new_bytes": 5},
        {"n": 3, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 1, "max_new_bytes": 6},
        {"choices": ["nge(", "ndom."], "conditioning": "global", "n": 2},
        {"stop": "(", "max_new_bytes": 9},
    ],
)
def test_an_object_draws_what_its_keywords_draw(models: list[Any], keywords: dict[str, Any]):
    options = GenerationOptions(**keywords)
    for lm in models:
        expected = lm.complete(PROMPT, **keywords)
        assert lm.complete(PROMPT, options) == expected
        assert lm.state(PROMPT).complete(options) == expected


def test_keywords_change_an_object(models: list[Any]):
    options = GenerationOptions(max_new_bytes=9, temperature=1.0, seed=0)
    for lm in models:
        for ask in (lm, lm.state(PROMPT)):
            prompt = (PROMPT,) if ask is lm else ()
            assert (
                ask.complete(*prompt, options, max_new_bytes=3)
                == ask.complete(*prompt, replace(options, max_new_bytes=3))
                == ask.complete(*prompt, max_new_bytes=3, temperature=1.0, seed=0)
            )
        assert "".join(lm.stream(PROMPT, options)) == lm.complete(PROMPT, options)[0].text
