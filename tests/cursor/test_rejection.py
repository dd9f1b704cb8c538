"""No completion is returned as complete that is not valid: drawn again, or the next candidate."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import CharLM, constraints
from charwise.constraints.constraint import finite
from charwise.constraints.schemas import check_of
from charwise.cursor.generation import Completion
from charwise.cursor.options import GenerationOptions
from charwise.cursor.smc import draw_valid
from charwise.errors import ConstraintError
from models import examples, table

LETTERS = [b'"', b"a", b"b", b"c", b'a"', b'"b']
ROW = [0.2, 0.2, 0.15, 0.1, 0.1, 0.1, 0.15]
COMPACT = {"x-guidance": {"whitespace_flexible": False}}

#: llguidance passes over `not` here, so that it allows "a".
NOT_A = {"enum": ["a", "b", "c"], "not": {"const": "a"}} | COMPACT
NONE = {"enum": ["a", "b"], "not": {"enum": ["a", "b"]}} | COMPACT


def letters(tokens: list[bytes] = LETTERS, row: list[float] = ROW) -> CharLM:
    return table(tokens, {(): row}).exact()


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def check(schema: Any, completion: Completion) -> None:
    """A completion that says that it is complete is valid."""
    if completion.finish in ("end", "constraint", "stop"):
        value = json.loads(completion.text, object_pairs_hook=without_repeats)
        kind = jsonschema.Draft202012Validator
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    else:
        assert completion.finish == "length"


class TestSampling:
    @pytest.mark.slow
    def test_valid_texts_keep_their_proportions(self) -> None:
        lm = letters()
        count = 2000
        found = lm.complete("a", json_schema=NOT_A, temperature=1.0, n=count, seed=0)
        assert {(one.text, one.finish) for one in found} == {
            ('"b"', "constraint"),
            ('"c"', "constraint"),
        }
        # The same without the rejected text, drawn step by step.
        every = {"enum": ["a", "b", "c"]}
        drawn = lm.complete("a", json_schema=every, temperature=1.0, n=count, seed=1)
        kept = [one.text for one in drawn if one.text != '"a"']
        share = kept.count('"b"') / len(kept)
        assert [one.text for one in found].count('"b"') / count == pytest.approx(
            share, abs=4 * math.sqrt(share * (1 - share) * (1 / count + 1 / len(kept)))
        )

    def test_nothing_valid_is_an_error(self) -> None:
        for temperature in (0.0, 1.0):
            with pytest.raises(ConstraintError, match=r"valid JSON.* should not be valid") as error:
                letters().complete("a", json_schema=NONE, temperature=temperature)
            assert str(error.value).isprintable()
        with pytest.raises(ConstraintError, match="nothing satisfies"):
            letters().complete("a", json_schema=NONE, conditioning="global")

    def test_a_budget_ends_it(self) -> None:
        cancel = threading.Event()
        cancel.set()
        for temperature in (0.0, 1.0):
            [one] = letters().complete(
                "a", json_schema=NONE, temperature=temperature, cancel=cancel
            )
            assert one.finish == "cancelled"


class TestSearch:
    def test_the_next_candidate_is_taken(self) -> None:
        lm = letters()
        [one] = lm.complete("a", json_schema=NOT_A)
        assert (one.text, one.finish) == ('"b"', "constraint")
        several = lm.complete("a", json_schema=NOT_A, n=3)
        assert [one.text for one in several] == ['"b"', '"c"']

    def test_complete_texts_come_before_those_that_are_cut(self) -> None:
        lm = letters([b'"', b"a", b'\\"', b"b"], [0.2, 0.2, 0.3, 0.15, 0.15])
        schema = {"type": "string", "pattern": '^[^"]*$', "minLength": 1, "maxLength": 3}
        [one] = lm.complete("a", json_schema=schema, max_new_bytes=30)
        assert one.finish == "constraint"
        check(schema, one)


def test_a_stop_string_ends_valid_texts_only() -> None:
    lm = letters([b"1", b"2", b".", b"\n"], [0.3, 0.3, 0.2, 0.1, 0.1])
    schema = {"type": "number", "multipleOf": 2}
    for temperature in (0.0, 1.0):
        for seed in range(5):
            found = lm.complete(
                "1", json_schema=schema, stop=".", temperature=temperature, seed=seed, n=2
            )
            for one in found:
                check(schema, one)


def test_a_stream_is_valid_and_comes_at_once() -> None:
    lm = letters()
    for seed in range(8):
        asked: dict[str, Any] = {"json_schema": NOT_A, "temperature": 1.0, "seed": seed}
        [one] = lm.complete("a", **asked)
        assert list(lm.stream("a", **asked)) == [one.text]
    with pytest.raises(ConstraintError, match="no text that was drawn"):
        list(lm.stream("a", json_schema=NONE))


def test_time_that_ends_after_failures_alone_gives_no_half_of_a_text() -> None:
    options = GenerationOptions(constraint=constraints.json_schema(NONE))
    failed = Completion('"a"', b'"a"', 0.0, [], 0, "dead end", 0)
    cut = replace(failed, text='"', raw=b'"', finish="time")
    draws = draw_valid(options)
    next(draws)
    draws.send([failed])
    with pytest.raises(ConstraintError, match="no text that was drawn"):
        draws.send([cut])


@given(
    st.lists(st.sampled_from([0, 1, 2, 12, 0.5, "a", [1], None]), min_size=1, max_size=5),
    st.sampled_from(
        [{"type": "number"}, {"minimum": 1}, {"const": 1}, {"type": ["array", "null"]}]
    ),
    st.integers(0, 9),
)
@examples(60)
def test_the_global_way_is_the_model_given_the_valid_texts(
    values: list[Any], unwanted: Any, seed: int
) -> None:
    schema = {"enum": values, "not": unwanted} | COMPACT
    tokens = [bytes([byte]) for byte in b'0125.a"[]nul'] + [b"12", b'"a', b"[1"]
    lm = letters(tokens, [1 / 16] * 16)
    constraint = constraints.json_schema(schema)
    everything = finite(constraints.json_schema({"enum": values} | COMPACT), 99) or []
    valid = [text for text in everything if check_of(json.dumps(schema))(text) is None]
    if not valid:
        for how in ("local", "global"):
            with pytest.raises(ConstraintError):
                lm.complete("0", constraint=constraint, conditioning=how)  # type: ignore[arg-type]
        return
    assert finite(constraint, 99) == valid
    for how in ("local", "global"):
        found = lm.complete("0", constraint=constraint, conditioning=how, seed=seed, n=2)  # type: ignore[arg-type]
        assert {one.raw for one in found} <= set(valid)
    for one in lm.complete("0", constraint=constraint, temperature=1.0, seed=seed, n=3):
        assert one.raw in valid
