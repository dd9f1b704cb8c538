"""One object says how completions are drawn, wherever it is given, and checks itself."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

import charwise
from charwise import GenerationOptions, combine
from charwise.cursor.options import GenerationKeywords
from charwise.errors import CharwiseError, ConstraintError, SettingError

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


def test_middles_are_drawn_by_the_same_options():
    lm = charwise.load()
    options = GenerationOptions(n=2, max_new_bytes=6)
    expected = lm.infill("    return values[ind", "ex + 1]\n", n=2, max_new_bytes=6)
    assert lm.infill("    return values[ind", "ex + 1]\n", options) == expected


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_new_bytes": -1}, "max_new_bytes is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ""}, "stop string is empty"),
        ({"seconds": -1.0}, "seconds is -1"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"particles": 0}, "particles is 0"),
        ({"conditioning": "x"}, "choose 'local' or 'global'"),
        ({"conditioning": "global", "top_k": 2}, "leave temperature"),
        ({"conditioning": "global"}, "needs a constraint"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(wrong: dict[str, Any], says: str):
    with pytest.raises(CharwiseError, match=says):
        GenerationOptions(**wrong)


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("stream", {"n": 2}),
        ("stream", {"progress": print}),
        ("stream", {"conditioning": "global", "choices": ["a"]}),
        ("infill", {"stop": "a"}),
        ("infill", {"regex": "a"}),
    ],
)
def test_options_that_a_call_has_no_use_for(call: str, wrong: dict[str, Any]):
    with pytest.raises(SettingError, match=f"{call} takes no .*: leave it out"):
        getattr(charwise.load(), call)(PROMPT, **wrong)


def test_options_are_values():
    options = GenerationOptions(n=2, stop=["a", b"b"])
    assert options == GenerationOptions(n=2, stop=("a", "b"))
    assert hash(options) == hash(GenerationOptions(n=2, stop=[b"a", b"b"]))
    assert {one.name for one in fields(options)} >= {"n", "stop", "constraint"}
    with pytest.raises(FrozenInstanceError):
        options.n = 3  # type: ignore[misc]


def test_a_constraint_and_another_are_too_many():
    options = GenerationOptions(choices=["a"])
    with pytest.raises(ConstraintError, match="give one"):
        charwise.load().complete(PROMPT, options, regex="a")
