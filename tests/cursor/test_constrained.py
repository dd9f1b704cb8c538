"""Constraints and choices on random models, against sums by brute force."""

import itertools
import json
import math
import re
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, GenerationOptions, constraints
from charwise.constraints.constraint import END
from charwise.coverings.bundles import Bundle
from charwise.cursor import smc
from charwise.cursor.generation import Completion, Floats, NextTokens, pick
from charwise.cursor.smc import draw_valid
from charwise.errors import ConstraintError, LimitError, ZeroProbabilityError
from models import After, Case, Model, by_hand, cases, examples, models, particles, table, two_ways

pytest.importorskip("llguidance")


@st.composite
def prompts_with_choices(draw: st.DrawFn) -> tuple[Case, list[bytes]]:
    """A prompt of positive probability, and continuations over the model's letters."""
    case = draw(cases(longest=4, largest=100))
    letters = sorted(set(b"".join(case.model.index.sorted)))
    words = st.lists(st.sampled_from(letters), max_size=4).map(bytes)
    choices = draw(st.lists(words, min_size=1, max_size=5, unique=True))
    assume(case.model.prefix(case.text) > 1e-200)
    return case, choices


@given(prompts_with_choices(), st.sampled_from(["prefix", "ended", "stop"]))
@examples(300)
def test_probabilities_of_choices_are_those_of_the_definition(
    task: tuple[Case, list[bytes]], how: str
) -> None:
    case, choices = task
    model, prompt, options = case.model, case.text, {}
    if how == "prefix":
        choices = [one for one in choices if not begins_another(one, choices)]
        expected = [model.prefix(prompt + one) for one in choices]
    elif how == "ended":
        expected, options = [model.string(prompt + one) for one in choices], {"ended": True}
    else:
        ends = sorted({token[:1] for token in model.index.sorted})[:2]
        expected = [sum(model.prefix(prompt + one + end) for end in ends) for one in choices]
        options = {"stop": ends}
    whole, lm = model.prefix(prompt), model.exact()
    if not sum(expected) > 1e-250:
        with pytest.raises(ZeroProbabilityError):
            lm.choose(prompt, choices, **options)
        return
    chosen = lm.choose(prompt, choices, **options)
    assert chosen.raw == tuple(choices)
    np.testing.assert_allclose(
        np.exp(chosen.logprobs), np.array(expected) / whole, rtol=1e-9, atol=1e-250
    )
    np.testing.assert_allclose(chosen.probs, np.array(expected) / sum(expected), atol=1e-9)
    if how == "prefix":
        assert chosen.other == pytest.approx(1 - sum(expected) / whole, abs=1e-9)


def begins_another(one: bytes, choices: list[bytes]) -> bool:
    return any(other != one and other.startswith(one) for other in choices)


def test_a_choice_that_does_not_fit_the_window() -> None:
    with pytest.raises(LimitError):
        two_ways().windowed(32).exact().choose("b", ["b" * 64])


# ---- conditioned as a whole ---------------------------------------------------------------------


@given(prompts_with_choices())
@examples(150)
def test_small_sets_are_added_up(task: tuple[Case, list[bytes]]) -> None:
    """A member that begins another one ends by the model; whatever follows the others counts."""
    (case, members), model, settings = task, task[0].model, {"conditioning": "global", "n": 9}
    nested = {one: begins_another(one, members) for one in members}
    masses = {
        one: (model.string if nested[one] else model.prefix)(case.text + one) for one in members
    }
    total, lm = sum(masses.values()), model.exact()
    if not total:
        with pytest.raises(ZeroProbabilityError):
            lm.complete(case.text, choices=members, **settings)
        return
    result = lm.complete(case.text, choices=members, **settings)
    for one, weight in zip(result, result.weights, strict=True):
        assert weight == pytest.approx(masses.pop(one.raw) / total, abs=1e-9)
        assert one.finish == ("end" if nested[one.raw] else "constraint")
    assert not masses
    expected = math.log(total / model.prefix(case.text))
    assert result.logprob == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("calls", [0, 1, 3, 5])
@pytest.mark.parametrize("how", [{"regex": "[0-9]{1,9}\n"}, {"choices": ["1\n", "22\n"]}])
def test_a_text_that_a_limit_ends_has_no_weight(calls: int, how: dict) -> None:
    settings = {"conditioning": "global", "particles": 16, "n": 99, "seed": 0, **how}
    result = charwise.load().complete("x = ", cancel=After(calls), **settings)
    ended = [one.finish == "cancelled" for one in result]
    assert [weight == 0 for weight in result.weights] == ended == sorted(ended)
    if all(ended):
        assert (result.logprob, result.effective) == (-math.inf, 0)
    else:
        assert result.weights.sum() == pytest.approx(1)
        assert result.logprob < 0


@pytest.mark.parametrize("pattern", ["[0-9]{1,9}\n", "[0-9]{50}"])
def test_a_text_that_is_cut_has_no_weight(pattern: str) -> None:
    state, constraint = charwise.load().state("x = "), constraints.regex(pattern)
    result = particles(state, constraint, 32, n=99, seed=1, max_new_bytes=3)
    cut = [one.finish == "length" for one in result]
    assert any(cut)
    assert cut == [weight == 0 for weight in result.weights] == sorted(cut)
    assert (result.logprob == -math.inf) == all(cut) == (pattern == "[0-9]{50}")


# ---- at each step -------------------------------------------------------------------------------


@given(prompts_with_choices(), st.integers(0, 2**31))
@examples(150)
def test_drawn_texts_satisfy_and_the_next_byte_is_renormalised(
    task: tuple[Case, list[bytes]], seed: int
) -> None:
    case, choices = task
    lm, constraint = case.model.exact(), constraints.choices(choices)
    settings = {"n": 4, "temperature": 1.0, "seed": seed, "max_new_bytes": 64}
    try:
        for one in lm.complete(case.text, choices=choices, **settings):
            if one.finish in ("constraint", "end"):
                assert one.raw in choices
            else:
                assert one.finish == "dead end"
                assert any(choice.startswith(one.raw) for choice in choices)
    except ConstraintError:
        # Only if no token that covers the prompt fits, or none of what fits has mass.
        assert not any(case.model.string(case.text + one) > 0 for one in choices)
    state, allowed = lm.state(case.text), constraint.allowed()
    expected = np.where(allowed, state.next().probs, 0.0)
    if not expected.sum() > 0:
        with pytest.raises(ConstraintError):
            state.next(constraint)
        return
    np.testing.assert_allclose(state.next(constraint).probs, expected / expected.sum())


@pytest.mark.parametrize("how", ["local", "global"])
def test_a_constraint_and_the_embedded_model(how: str) -> None:
    lm, settings = charwise.load(), {"conditioning": how, "particles": 4, "seed": 0}
    # What is cut ends before a character that is too long.
    for most, expected in {4: "éé", 5: "éé", 6: "ééé", 7: "ééé"}.items():
        [one] = lm.complete("x = ", regex="é{9}", max_new_bytes=most, **settings)
        assert (one.text, one.raw, one.finish) == (expected, expected.encode(), "length")
    # The prompt has the beginning of the constraint's text.
    rest = constraints.regex("[0-9]{3};").after(b"1")
    [one] = lm.complete("x = 1", constraint=rest, **settings)
    assert re.fullmatch("[0-9]{2};", one.text)
    # The prompt ends inside a character, and so the constraint may not begin with a whole one.
    with pytest.raises(ConstraintError, match="inside a character"):
        lm.complete(b"na\xc3", regex="ïve", **settings)
    [one] = lm.complete(b"na\xc3", choices=[b"\xafve"], **settings)
    assert (one.raw, one.text) == (b"\xafve", "ïve")
    assert "".join(lm.stream("return ", regex="[a-c]{2}x")).endswith("x")


WORDS = [bytes(word) for size in (1, 2, 3) for word in itertools.product(b"ab.", repeat=size)]
MADE = {
    "choices": constraints.choices(["a", "ab.", "b.b"]),
    "few": constraints.regex(r"(ab)+\.?"),
    "many": constraints.regex(r"[ab]*\.|a*"),
    "all": constraints.regex(r"[ab.]*"),
}


def tokens_after(text: bytes, constraint: constraints.Constraint) -> list[int]:
    """The tokens that may follow a text, asked one by one; the last is the end."""
    rest = constraint.after(text)
    allowed = []
    for token, word in enumerate(WORDS):
        try:
            rest.after(word)
        except ConstraintError:
            continue
        allowed.append(token)
    return allowed + [len(WORDS)] * bool(rest.allowed()[END])


@given(
    st.sampled_from(sorted(MADE)),
    st.integers(0, 2**32 - 1),
    st.floats(0, 0.9),
    st.sampled_from([{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}]),
)
@examples(150)
def test_each_token_may_follow_and_none_that_may_is_likelier(
    name: str, seed: int, zeros: float, options: dict[str, float]
) -> None:
    """Greedily and at random, along regular expressions and choices, with tokens of mass 0."""
    rng, constraint, model_rows = np.random.default_rng(seed), MADE[name], {}
    for last in range(len(WORDS) + 1):
        row = rng.dirichlet(np.full(len(WORDS) + 1, 0.3))
        row[rng.random(len(row)) < zeros] = 0.0
        model_rows[last,] = row / row.sum() if row.sum() > 0 else np.eye(len(row))[0]
    lm = table(WORDS, model_rows, 2).exact()
    [one] = lm.complete("", constraint=constraint, max_new_bytes=9, seed=0, **options)
    text, last, mass = b"", len(WORDS), 0.0
    for token in [*one.token_ids, *[len(WORDS)] * (one.finish == "end")]:
        allowed = tokens_after(text, constraint)
        assert token in allowed
        likely = sorted((model_rows[last,][id] for id in allowed), reverse=True)
        if not options:
            assert model_rows[last,][token] == likely[0]
        if options.get("top_k"):
            assert model_rows[last,][token] >= likely[: int(options["top_k"])][-1]
        mass += math.log(model_rows[last,][token])
        text, last = text + (b"" if token == len(WORDS) else WORDS[token]), token
    assert one.logprob == pytest.approx(mass)
    if one.finish == "dead end":
        rest = tokens_after(text, constraint)
        assert not rest or not model_rows[last,][rest].any()


# ---- no completion is returned as complete that is not valid ------------------------------------

LETTERS = [b'"', b"a", b"b", b"c", b'a"', b'"b']
ROW = [0.2, 0.2, 0.15, 0.1, 0.1, 0.1, 0.15]
COMPACT = {"x-guidance": {"whitespace_flexible": False}}

#: llguidance passes over `not` here, so that it allows "a".
NOT_A = {"enum": ["a", "b", "c"], "not": {"const": "a"}} | COMPACT
NONE = {"enum": ["a", "b"], "not": {"enum": ["a", "b"]}} | COMPACT


def letters(tokens: list[bytes] = LETTERS, row: list[float] = ROW) -> CharLM:
    return table(tokens, {(): row}).exact()


def check(schema: Any, completion: Completion) -> None:
    """A completion that says that it is complete is valid."""
    if completion.finish in ("end", "constraint", "stop"):
        value = json.loads(completion.text)
        kind = jsonschema.Draft202012Validator
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    else:
        assert completion.finish == "length"


@pytest.mark.slow
def test_valid_texts_keep_their_proportions() -> None:
    lm, count = letters(), 2000
    valid = lm.complete("a", json_schema=NOT_A, temperature=1.0, n=count, seed=0)
    assert {(one.text, one.finish) for one in valid} == {(t, "constraint") for t in ('"b"', '"c"')}
    # The same without the rejected text, drawn step by step.
    every = {"enum": ["a", "b", "c"]}
    extra = lm.complete("a", json_schema=every, temperature=1.0, n=count, seed=1)
    rest = [one.text for one in extra if one.text != '"a"']
    share, off = rest.count('"b"') / len(rest), 1 / count + 1 / len(rest)
    assert [one.text for one in valid].count('"b"') / count == pytest.approx(
        share, abs=4 * math.sqrt(share * (1 - share) * off)
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_valid_is_an_error_until_a_limit_ends_it(temperature: float) -> None:
    settings: Any = {"json_schema": NONE, "temperature": temperature}
    with pytest.raises(ConstraintError):
        letters().complete("a", **settings)
    [one] = letters().complete("a", cancel=After(0), **settings)
    assert one.finish == "cancelled"


def test_a_search_takes_the_next_candidate() -> None:
    lm = letters()
    [one] = lm.complete("a", json_schema=NOT_A)
    assert (one.text, one.finish) == ('"b"', "constraint")
    assert [one.text for one in lm.complete("a", json_schema=NOT_A, n=3)] == ['"b"', '"c"']
    # Complete texts come before those that are cut.
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
            settings: Any = {"stop": ".", "temperature": temperature, "seed": seed, "n": 2}
            for one in lm.complete("1", json_schema=schema, **settings):
                check(schema, one)


def test_a_stream_is_valid_and_comes_at_once() -> None:
    lm = letters()
    for seed in range(8):
        settings: dict[str, Any] = {"json_schema": NOT_A, "temperature": 1.0, "seed": seed}
        [one] = lm.complete("a", **settings)
        assert list(lm.stream("a", **settings)) == [one.text]


def test_time_that_ends_after_failures_alone_gives_no_half_of_a_text() -> None:
    failed = Completion('"a"', b'"a"', 0.0, [], 0, "dead end", 0)
    cut = replace(failed, text='"', raw=b'"', finish="time")
    draws = draw_valid(GenerationOptions(constraint=constraints.json_schema(NONE)))
    next(draws)
    draws.send([failed])
    with pytest.raises(ConstraintError):
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
    everything = constraints.json_schema({"enum": values} | COMPACT).members(99) or []
    valid = [text for text in everything if constraint.check(text) is None]
    if not valid:
        for how in ("local", "global"):
            with pytest.raises(ConstraintError):
                lm.complete("0", constraint=constraint, conditioning=how)
        return
    assert constraint.members(99) == valid
    for how in ("local", "global"):
        extra = lm.complete("0", constraint=constraint, conditioning=how, seed=seed, n=2)
        assert {one.raw for one in extra} <= set(valid)
    for one in lm.complete("0", constraint=constraint, temperature=1.0, seed=seed, n=3):
        assert one.raw in valid


# ---- particles, and the distributions that are drawn from ---------------------------------------

SETS_OF_WORDS = st.lists(
    st.text("ab", max_size=4).map(str.encode), min_size=1, max_size=6, unique=True
)


def by_definition(members: list[bytes], text: bytes, token: bytes, most: int) -> tuple[int, str]:
    """What becomes of a text with a token more: how much of it may follow, and why that ends."""
    for size in range(len(token) + 1):
        here = text + token[:size]
        going_on = {one for one in members if one.startswith(here)}
        if not going_on:
            return size - 1, "refused"
        if size < len(token) and going_on == {here}:
            return size, "constraint"
        if size < len(token) and len(here) >= most:
            return size, "length"
    return len(token), ""


@given(SETS_OF_WORDS, models(), st.integers(1, 4), st.integers(0, 2**31))
@examples(150)
def test_the_outcome_of_each_token_is_that_of_the_definition(
    members: list[bytes], model: Model, most: int, seed: int
) -> None:
    """And of the tokens looked at, those are left out that are refused."""
    if members == [b""]:
        return
    constraint, index = constraints.choices(members), model.index
    state = model.exact().state("")
    options = GenerationOptions(constraint=constraint, max_new_bytes=most, conditioning="global")
    drawing = smc._Particles(state, options, options.limit())
    [before] = drawing.partials
    masses = np.random.default_rng(seed).dirichlet(np.ones(len(index.sorted)))
    whole = Bundle(0, 0.0, 0, 0, len(masses), 0.0)
    tokens = NextTokens(index, [whole], [np.log(masses)])
    nothing = np.zeros(len(masses), dtype=np.bool_)
    common = drawing._without_refused(before, tokens, nothing, 0.0)
    expected = [by_definition(members, b"", token, most) for token in index.sorted]
    assert [drawing.outcome(before, token) for token in index.sorted] == expected
    refused = np.array([finish == "refused" for _, finish in expected])
    unknown = np.exp(common[refused]).sum()
    assert unknown <= smc.UNKNOWN * masses[~refused].sum()
    assert (common[~refused] == np.log(masses)[~refused]).all()


SETS = {"closed": [b"abbbb", b"bbaba", b"babbb"], "open": [b"a", b"ab", b"aba", b"bb", b"bbab"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SETS))
@pytest.mark.parametrize("looked_at", [512, 0])
@pytest.mark.parametrize("most", [9, 3])
def test_the_mean_of_1000_estimates_is_the_truth(
    kind: str, looked_at: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text by text, where every kind of outcome is met."""
    monkeypatch.setattr(smc, "LOOKED_AT", looked_at)  # 0: none is known to be refused
    model, members, prompt = by_hand(), SETS[kind], b"b"
    truth: dict[bytes, float] = {}
    for one in members:
        longer = begins_another(one, members)
        if len(one) > most or (longer and len(one) == most):
            truth[one[:most]] = 0.0  # a text that is cut is no member
        else:
            mass = (model.string if longer else model.prefix)(prompt + one)
            truth[one] = mass / model.prefix(prompt)
    state, constraint = model.exact().state(prompt), constraints.choices(members)
    runs = np.zeros((1000, len(truth)))  # of each text: the estimate's part
    texts, dead = sorted(truth), 0
    for seed, run in enumerate(runs):
        try:
            result = particles(state, constraint, 4, n=9, max_new_bytes=most, seed=seed)
        except ConstraintError:  # all drew tokens that are refused
            dead += 1
            continue
        for one, weight in zip(result, result.weights, strict=True):
            run[texts.index(one.raw)] += math.exp(result.logprob) * weight
    assert dead == 0 or looked_at == 0
    masses = np.array([truth[text] for text in texts])
    errors = runs.std(axis=0) / math.sqrt(len(runs))
    assert (np.abs(runs.mean(axis=0) - masses) < 4.5 * errors + 1e-12).all()
    whole_error = runs.sum(axis=1).std() / math.sqrt(len(runs))
    assert abs(runs.sum(axis=1).mean() - masses.sum()) < 4 * whole_error + 1e-12


def test_particles_leave_the_tree_as_it_was() -> None:
    state = charwise.load().state("x = ")
    state.next()
    size = len(state.shared.tree.live)
    particles(state, constraints.regex("[0-9]{1,4}[.][0-9]{1,4}\n"), 200, seed=0)
    assert len(state.shared.tree.live) == size
    assert state.next()["1"] > 0


def test_a_window_or_a_dead_end_ends_particles() -> None:
    model = table([b"a", b"b"], {(): [0.5, 0.4, 0.1]}).windowed(12)
    constraint = constraints.choices(["a" * 50 + "b", "b" * 50])
    draws = particles(CharLM(model.lm).state("a"), constraint, 4, seed=0)
    assert {one.finish for one in draws} == {"window"}
    model = table([b"a", b"b"], {(): [0.9, 0.0, 0.1]})
    with pytest.raises(ConstraintError, match="longest came to b'a'"):
        particles(model.exact().state(""), constraints.choices(["ab"]), 4, seed=0)


def agree(places: list[int], expected: Floats, spare: float = 15) -> None:
    """Draws against their probabilities, by Pearson's χ²; those under 5 draws are not compared."""
    counts = np.bincount(places, minlength=len(expected))
    assert (counts[expected == 0] == 0).all()
    mean = expected * len(places)
    common = mean > 5
    assert ((counts[common] - mean[common]) ** 2 / mean[common]).sum() < 2 * common.sum() + spare


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_members_are_drawn_as_the_model_does_among_all_that_may_follow(temperature: float) -> None:
    members = NextTokens.covering(by_hand().exact().state("a"))
    words = (b"ba", b"bb")
    fits = [any(w.startswith(members.at(n)[2]) for w in words) for n in range(len(members.logs))]
    assert 0 < sum(fits) < len(fits)
    expected = np.where(fits, np.exp(members.logs / temperature), 0.0)
    expected /= expected.sum()
    rng = np.random.default_rng(0)
    one = GenerationOptions(constraint=constraints.choices(words), temperature=temperature)
    # One at a time what was ruled out is forgotten.
    agree([place for _ in range(4000) for place, _ in members.draw(one, rng, 1)], expected)
    agree([place for place, _ in members.draw(one, rng, 4000)], expected)


@given(
    st.lists(st.sampled_from([-9.0, -3.5, -2.0, -1.0, -np.inf]), min_size=2, max_size=9),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([1.0, 0.7, 0.3]),
)
@examples(150)
def test_picks_are_the_heaviest_or_in_proportion(
    logs: list[float], n: int, top_k: int, top_p: float
) -> None:
    weights = np.array([*logs, -1.5])
    order = [at for at in np.argsort(-weights, kind="stable").tolist() if weights[at] > -np.inf]
    assert pick(weights, GenerationOptions(), np.random.default_rng(0), n) == order[:n]
    masses = np.exp(2 * weights)
    if top_k:  # all that tie for the last place stay
        masses[masses < sorted(masses)[-min(top_k, len(masses))]] = 0.0
    masses /= masses.sum()
    held = 0.0
    for at in np.argsort(-masses, kind="stable"):
        held, masses[at] = held + masses[at], masses[at] if held < top_p else 0.0
    options = GenerationOptions(temperature=0.5, top_k=top_k, top_p=top_p)
    places = pick(weights, options, np.random.default_rng(1), 4000)
    agree(places, masses / masses.sum(), spare=25)


@pytest.mark.parametrize("words", [[b"ab", b"aa", b""], [b"b"], [b"abab", b"baba", b"aab"]])
def test_first_tokens_under_a_mask_have_their_probabilities_among_those_allowed(
    words: list[bytes],
) -> None:
    model = by_hand()
    row, [end] = model.p(()), model.vocabulary.end_ids
    fits = [
        b"" in words if token is None else any(one.startswith(token) for one in words)
        for token in model.vocabulary.tokens
    ]
    draws = model.exact().complete("", choices=words, n=4000, temperature=1.0, seed=0)
    expected = np.where(fits, row, 0.0) / row[fits].sum()
    agree([one.token_ids[0] if one.token_ids else end for one in draws], expected)
