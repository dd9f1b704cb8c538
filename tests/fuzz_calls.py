"""What the fuzzer calls: every public function, with what its arguments are drawn from."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from typer.testing import CliRunner

import charwise
from charwise import CharLM, SortedVocabulary, Vocabulary, combine, healing
from charwise.cli.app import app
from charwise.combine import Combination
from charwise.errors import CharwiseError
from charwise.template import Template
from fuzz_values import (
    BUDGET,
    BYTES,
    COMMAND_LINES,
    COVERAGE,
    FLAG,
    FORCED,
    IDS,
    ODD,
    OFFSETS,
    PRESET,
    PROMPT,
    REPORT,
    SAMPLING,
    SEED,
    SHARE,
    SIZE,
    STOP,
    TEXT,
    TOLERANCE,
    WORDS,
    Values,
    some,
)
from models import random_lm


class Call(NamedTuple):
    """A function, what its arguments are drawn from, which of them may be odd, what else it raises.

    Functions that stand in a processor's inner loop take what their types say, and check nothing.
    """

    run: Callable[..., Any]
    arguments: dict[str, Values]
    odd: Iterable[str] = ()
    may: tuple[type[Exception], ...] = ()


class Drawn(NamedTuple):
    """A call as it is made; its `repr` shows how to make it again."""

    name: str
    given: dict[str, Any]


# ---- on whom ------------------------------------------------------------------------------------


@cache
def models() -> list[CharLM]:
    """The embedded model, and two tiny ones: without every byte, and with an implied space."""
    lead = Vocabulary([b" ", b"a", b" a", b"b", None], end_ids=[4], bos_ids=[4], lead=b" ")
    some_bytes = Vocabulary.from_bytes(
        [b"a", b"ab", b"b", b"\xc3", b"\xa9", b" ", None], end_ids=[6], bos_ids=[6], width=8
    )
    tiny = [CharLM(random_lm(vocabulary, 2, 0)) for vocabulary in (some_bytes, lead)]
    return [charwise.load(), *tiny]


@cache
def indices() -> list[SortedVocabulary]:
    """Of the models."""
    return [lm.index for lm in models()]


WHICH = st.integers(0, 2)


@cache
def combinations() -> list[Combination]:
    """Of the tiny models, and of the embedded one with a prefix."""
    embedded, some_bytes, lead = models()
    return [
        combine.mixture([some_bytes, lead], weights=[1, 0]),
        combine.product([some_bytes, lead], weights=[1.5, -0.5]),
        combine.maximum([some_bytes, combine.member(embedded, before="a")]),
        combine.contrast(lead, some_bytes, plausibility=1.0),
    ]


def on(owner: Callable[[int], Any], method: str) -> Callable[..., Any]:
    """A method of one of several; of a generator, a few items."""

    def run(which: int, **given: Any) -> Any:
        result = getattr(owner(which), method)(**given)
        return list(itertools.islice(result, 8)) if hasattr(result, "send") else result

    return run


def on_state(which: int, text: str, steps: list[tuple[str, Any]]) -> None:
    """Steps of a state from a text; one that raises a typed error leaves the state as it was."""
    state = models()[which].state(text if which == 0 else "ab")
    for step, value in steps:
        try:
            if step == "+":
                state = state + value
            elif step == "-":
                state = state - value
            elif step == "chars":
                chars = state.next_chars(value)
                assert 0 <= chars.missing <= 1 + 1e-9
                chars.top(3)
            elif step == "under":
                state.next(value)
            else:
                assert abs(state.next().probs.sum() - 1) < 1e-6
        except CharwiseError:
            continue
        except TypeError as error:
            if ours(error):
                raise


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("+"), st.one_of(TEXT, BYTES, ODD)),
        st.tuples(st.just("-"), st.one_of(some(0, 1, 2, 3, 100, np.int64(1)), ODD)),
        st.tuples(st.just("chars"), COVERAGE),
        st.tuples(st.just("next"), st.none()),
        st.tuples(st.just("under"), ODD),
    ),
    max_size=5,
)


def on_score(which: int, text: str, reading: tuple[str, Any]) -> None:
    """One reading of a score."""
    read, value = reading
    score = models()[which].score(text if which == 0 else "abab", preset="fast")
    spans = {
        "words": score.words,
        "regex": score.regex,
        "spans": score.spans,
        "bytes": lambda v: score.spans(v, unit="byte"),
        "unit": lambda v: score.spans([(0, 1)], unit=v),
    }[read](value)
    assert len(list(spans)) == len(spans)
    repr(spans)


READINGS = st.one_of(
    st.tuples(st.just("words"), st.one_of(some("leading", "trailing", "exclude", "none"), ODD)),
    st.tuples(
        st.just("regex"), st.one_of(some(r"\w+", "(", "", "(?=a)", "a*"), st.text(max_size=4), ODD)
    ),
    st.tuples(some("spans", "bytes"), st.one_of(OFFSETS, ODD)),
    st.tuples(st.just("unit"), st.one_of(some("byte", "character", "word"), ODD)),
)


def healed(**given: Any) -> Any:
    """`heal_generate` with the embedded model."""
    engine = models()[0].engine
    return charwise.heal_generate(engine.model, models()[0].index, **given)  # type: ignore[attr-defined]


def command_line(arguments: list[str]) -> None:
    """The command line; what it ends with is an exit code or a typed error."""
    models()  # held, so that the command finds it open
    result = CliRunner().invoke(app, arguments, input=b"ab\xff")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2, 3), result.output
    assert "Traceback (most recent call last)" not in result.output  # "Traceback" is a token


TEMPLATE = some(
    None, Template(0, 1, 2), Template(4, 4, None), Template(6, 7, 99), Template(-1, 0, 0)
)

ONE = st.builds(lambda which: models()[which], WHICH)
TEAM = st.lists(ONE, max_size=3)
WEIGHT = some(0, 1, -0.5, 1e308, math.nan, math.inf, 10**400, True)
WEIGHTS = st.one_of(st.none(), st.lists(WEIGHT, max_size=3))

# ---- what is called -----------------------------------------------------------------------------

SPEND = {"preset": PRESET, "tolerance": TOLERANCE}
DRAWN = {**SAMPLING, **BUDGET}
SCORED = {"end": FLAG, "entropy": some(None, "byte")}
INFILL = {"order": some(None, "psm", "spm", "x"), "template": TEMPLATE, **SPEND}
SIDE = st.one_of(TEXT, BYTES)
CHOICES = some(["a", "b"], ["a", "ab"], [], "ab", [b"\xff", "é"], [None])
CONSTRAINED = {
    "regex": some(None, None, None, "[ab]+", "(", 5),
    "choices": some(None, None, None, ["a", "b"], [], "ab", [b"\xff"]),
    "conditioning": some("local", "local", "global", "x"),
    "particles": some(2, 0),
}
SEVERAL = {"n": SIZE, "stop": STOP, "progress": REPORT}
BOUNDED = {"tolerance": SHARE, "max_contexts": some(0, 1, 9)}
COUNT = some(-1, 0, 1, 50, 300, 2**70, np.int64(3))
PROMPTED: dict[str, Values] = {"prompt": PROMPT}

#: Of whom methods are called: how one is picked, and what each method takes besides.
METHODS: dict[str, tuple[Callable[[int], Any], int, dict[str, dict[str, Values]]]] = {
    "CharLM": (
        lambda which: models()[which],
        2,
        {
            **dict.fromkeys(("next", "state", "prefix_logprob", "logprob"), PROMPTED | SPEND),
            "next_chars": PROMPTED | {"coverage": COVERAGE} | SPEND,
            "infill": {"prefix": SIDE, "suffix": SIDE, "n": SIZE, **INFILL, **DRAWN},
            "score_infill": {"prefix": SIDE, "middle": SIDE, "suffix": SIDE, **INFILL},
            "score": PROMPTED | {"context": PROMPT} | SPEND | SCORED,
            "scores": {
                "prompts": st.one_of(st.lists(PROMPT, max_size=3), PROMPT),
                "contexts": st.one_of(st.none(), st.lists(PROMPT, max_size=3)),
                "progress": REPORT,
                **SPEND,
                **SCORED,
            },
            "covering": PROMPTED | {"tolerance": SHARE, "max_contexts": some(1, 5, 100)},
            "encodings": {"text": PROMPT},
            "complete": PROMPTED | SEVERAL | SPEND | CONSTRAINED | DRAWN,
            "choose": PROMPTED | {"choices": CHOICES, "stop": STOP, "ended": FLAG} | SPEND,
            "stream": PROMPTED | {"stop": STOP} | SPEND | DRAWN,
            "characters": PROMPTED | SPEND | SAMPLING,
        },
    ),
    "State": (
        lambda which: models()[which].state("ab"),
        2,
        {"complete": SEVERAL | DRAWN, "stream": {"stop": STOP, **DRAWN}},
    ),
    "Combination": (
        lambda which: combinations()[which],
        3,
        {
            "next": PROMPTED | SPEND,
            "score": PROMPTED | {"context": PROMPT, "preset": PRESET} | SCORED,
            "complete": PROMPTED | SEVERAL | CONSTRAINED | DRAWN,
            "choose": PROMPTED | {"choices": CHOICES, "stop": STOP, "ended": FLAG},
            "stream": PROMPTED | {"stop": STOP} | DRAWN,
        },
    ),
}

CALLS: dict[str, Call] = {
    **{
        f"{name}.{method}": Call(
            on(owner, method), {"which": st.integers(0, last), **arguments}, odd=list(arguments)
        )
        for name, (owner, last, methods) in METHODS.items()
        for method, arguments in methods.items()
    },
    **{
        f"combine.{name}": Call(getattr(combine, name), arguments, odd=list(arguments))
        for name, arguments in {
            "mixture": {"members": TEAM, "weights": WEIGHTS},
            "product": {"members": TEAM, "weights": WEIGHTS},
            "minimum": {"members": TEAM},
            "proxy": {"base": ONE, "tuned": ONE, "untuned": ONE, "alpha": WEIGHT},
            "contrast": {"strong": ONE, "weak": ONE, "plausibility": SHARE},
            "member": {"lm": ONE, "before": PROMPT},
        }.items()
    },
    "CharLM": Call(
        lambda preset: CharLM(models()[1].engine, preset=preset), {"preset": PRESET}, odd=["preset"]
    ),
    "charwise.compare": Call(
        charwise.compare,
        {
            "models": st.one_of(
                st.lists(ONE, max_size=2), st.dictionaries(TEXT, ONE, max_size=2), ONE
            ),
            "texts": st.one_of(
                TEXT, BYTES, st.lists(st.one_of(TEXT, BYTES), max_size=3), st.just({"a": "ab"})
            ),
            "preset": PRESET,
            "over": some("auto", "texts", "blocks", "x"),
            "resamples": some(0, 1, 9),
            "seed": SEED,
        },
        odd=["models", "texts", "preset", "over", "resamples", "seed"],
    ),
    "State": Call(on_state, {"which": WHICH, "text": WORDS, "steps": STEPS}),
    "NextBytes[]": Call(
        lambda which, byte: models()[which].next("ab")[byte],
        {"which": WHICH, "byte": st.one_of(st.integers(-2, 258), BYTES, TEXT)},
        odd=["byte"],
    ),
    "NextBytes.top": Call(
        lambda which, k: models()[which].next("ab").top(k),
        {"which": WHICH, "k": COUNT},
        odd=["k"],
    ),
    "NextChars[]": Call(
        lambda which, character: models()[which].next_chars("ab")[character],
        {"which": WHICH, "character": st.one_of(TEXT, BYTES)},
        may=(KeyError,),  # as of every Mapping
    ),
    "Covering.top": Call(
        lambda which, k, most: models()[which].covering("ab").top(k, max_contexts=most),
        {"which": WHICH, "k": COUNT, "most": COUNT},
        odd=["k", "most"],
    ),
    "Encodings.top": Call(
        lambda which, k: models()[which].encodings("ab").top(k),
        {"which": WHICH, "k": COUNT},
        odd=["k"],
    ),
    "Score": Call(on_score, {"which": WHICH, "text": WORDS, "reading": READINGS}),
    "Spans[]": Call(
        lambda which, at: models()[which].score("ab").bytes()[at],
        {"which": WHICH, "at": st.integers(-5, 5)},
        may=(IndexError,),  # as of every sequence
    ),
    "healing.cut": Call(
        lambda which, **given: healing.cut(index=indices()[which], **given),
        {"which": WHICH, "prompt": PROMPT, "rule": some("auto", "word", "off", 0, 1, 99)},
        odd=["prompt", "rule"],
    ),
    "healing.remaining": Call(
        lambda which, **given: healing.remaining(vocabulary=indices()[which].vocabulary, **given),
        {"which": WHICH, "forced": FORCED, "generated": st.lists(IDS, max_size=4)},
    ),
    "healing.allowed_next": Call(
        lambda which, left: healing.allowed_next(left, indices()[which]),
        {"which": WHICH, "left": FORCED},
    ),
    **{
        f"SortedVocabulary.{method}": Call(
            lambda which, forced, method=method: getattr(indices()[which], method)(forced),
            {"which": WHICH, "forced": FORCED},
        )
        for method in ("range", "twins", "prefixes", "allowed", "spellable", "mask", "bitmask")
    },
    **{
        f"Vocabulary.{method}": Call(
            lambda which, value, method=method: getattr(indices()[which].vocabulary, method)(value),
            {"which": WHICH, "value": values},
        )
        for method, values in {
            "encode": st.one_of(TEXT, BYTES),
            "encode_beginning": BYTES,
            "encode_prompt": PROMPT,
            "decode": st.lists(IDS, max_size=4),
        }.items()
    },
    "GenerationOptions": Call(
        charwise.GenerationOptions,
        OPTIONS := {
            **SEVERAL,
            **CONSTRAINED,
            "conditioning": some("local", "global", "x", None, []),
            "particles": some(2, 0, None),
            **DRAWN,
        },
        odd=list(OPTIONS),
    ),
    "Vocabulary.from_bytes": Call(
        Vocabulary.from_bytes,
        {
            "tokens": st.lists(st.one_of(BYTES, some(None, "a", 1)), max_size=4),
            "end_ids": st.lists(IDS, max_size=2),
            "bos_ids": st.lists(IDS, max_size=2),
            "width": some(None, 0, 2, 9),
        },
    ),
    "heal_generate": Call(
        healed,
        {
            "prompts": st.one_of(PROMPT, st.lists(PROMPT, max_size=2)),
            "rule": some("auto", "word", "off", 0, 1, 99),
            "method": some("mask", "exact"),
            "max_new_tokens": some(1, 2),
            "max_new_bytes": some(None, 1, 3),
            "stop_strings": st.one_of(st.none(), STOP),
        },
        odd=["prompts", "rule", "method", "max_new_tokens", "max_new_bytes", "stop_strings"],
    ),
    "charwise.load": Call(
        charwise.load,
        {
            "model": some(
                "embedded", "", "/no/such", "\udcff", "a\0b", None, 5, [], b"x", "x" * 300
            ),
            "device": some(None, "cpu", "nonsense", "", 3, "\udcff", "cpu:-3"),
            "dtype": some(None, "float32", "int8", "nonsense", "", 3, "Tensor"),
            "engine": some(None, "transformers", "nonsense", "", 3),
            "preset": PRESET,
        },
        odd=["model", "device", "dtype", "engine", "preset"],
    ),
    "charwise": Call(command_line, {"arguments": COMMAND_LINES}),
}


@st.composite
def drawn_calls(draw: st.DrawFn, names: Iterable[str] = tuple(CALLS)) -> Drawn:
    """Any call of these names; in half of those that may have one, an argument is odd."""
    name = draw(some(*names))
    call = CALLS[name]
    arguments = dict(call.arguments)
    if call.odd and draw(st.booleans()):
        arguments[draw(some(*call.odd))] = ODD
    return Drawn(name, draw(st.fixed_dictionaries(arguments)))


# ---- what may come out --------------------------------------------------------------------------


def ours(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame in charwise that an error passed through; None if there is none."""
    package = str(Path(charwise.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    return next((f for f in reversed(frames) if f.filename.startswith(package)), None)


#: Characters that an error has: it repeats little of what was given.
LONGEST = 1001


def make(call: Drawn) -> None:
    """Make the call; what may not come out of it goes on."""
    target = CALLS[call.name]
    try:
        target.run(**call.given)
    except CharwiseError as error:
        if len(str(error)) > LONGEST:
            raise AssertionError("this error is too long to be read") from error
    except target.may:
        pass
    except TypeError as error:
        if ours(error):
            raise
