"""Constraints and choices on random models, against sums by brute force."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import charwise
from charwise import CharLM, constraints
from charwise.constraints.constraint import END
from charwise.errors import ConstraintError, LimitError, ZeroProbabilityError
from models import After, Case, Model, cases, examples, particles, table

pytest.importorskip("llguidance")


def lm_of(model: Model) -> CharLM:
    return model.exact()


#: One row, whatever the context.
SMALL = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})


def prefix(model: Model, text: bytes) -> float:
    return model.prefix(text)


def string(model: Model, text: bytes) -> float:
    return model.string(text)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Case, list[bytes]]:
    """A prompt of positive probability, and continuations over the model's letters."""
    case = draw(cases(longest=4, largest=100))
    letters = sorted(set(b"".join(case.model.index.sorted)))
    sizes = st.integers(0, 4)
    words = st.builds(
        lambda size, numbers: bytes(letters[n % len(letters)] for n in numbers[:size]),
        sizes,
        st.lists(st.integers(0, 99), min_size=4, max_size=4),
    )
    choices = draw(st.lists(words, min_size=1, max_size=5, unique=True))
    assume(prefix(case.model, case.text) > 1e-200)
    return case, choices


class TestChoose:
    @given(asked(), st.sampled_from(["prefix", "ended", "stop"]))
    @examples(300)
    def test_probabilities_are_those_of_the_definition(
        self, given_: tuple[Case, list[bytes]], how: str
    ) -> None:
        case, choices = given_
        model, prompt = case.model, case.text
        letter = model.index.sorted[0][:1]
        if how == "prefix":
            choices = [
                one for one in choices if not any(o != one and o.startswith(one) for o in choices)
            ]
            expected = [prefix(model, prompt + one) for one in choices]
            options = {}
        elif how == "ended":
            expected = [string(model, prompt + one) for one in choices]
            options = {"ended": True}
        else:
            expected = [prefix(model, prompt + one + letter) for one in choices]
            options = {"stop": letter}
        whole = prefix(model, prompt)
        if not sum(expected) > 1e-250:
            with pytest.raises(ZeroProbabilityError):
                lm_of(model).choose(prompt, choices, **options)
            return
        chosen = lm_of(model).choose(prompt, choices, **options)
        assert chosen.raw == tuple(choices)
        np.testing.assert_allclose(
            np.exp(chosen.logprobs), np.array(expected) / whole, rtol=1e-9, atol=1e-250
        )
        np.testing.assert_allclose(chosen.probs, np.array(expected) / sum(expected), atol=1e-9)
        if how == "prefix":
            assert chosen.other == pytest.approx(1 - sum(expected) / whole, abs=1e-9)

    def test_of_several_stops_the_sum(self) -> None:
        lm = lm_of(SMALL)
        apart = [lm.choose("", ["a"], stop=end).logprobs[0] for end in ("a", "b")]
        both = lm.choose("", ["a"], stop=["a", "b"]).logprobs[0]
        assert math.exp(both) == pytest.approx(sum(map(math.exp, apart)))

    def test_a_choice_that_does_not_fit_the_window(self) -> None:
        model = table([b"a", b"b", b"ab"], {(): [0.4, 0.2, 0.3, 0.1]})
        model.lm.window = 32
        with pytest.raises(LimitError, match="Shorten"):
            lm_of(model).choose("b", ["b" * 64])


def conditional(model: Model, prompt: bytes, members: list[bytes], ends: bool) -> dict:
    """p(member | prompt, one of them), by brute force: ended, or as what the text begins with."""
    masses = {one: (string if ends else prefix)(model, prompt + one) for one in members}
    total = sum(masses.values())
    return {one: mass / total for one, mass in masses.items() if mass > 0} if total else {}


@st.composite
def small_sets(draw: st.DrawFn) -> tuple[Case, list[bytes]]:
    """A prompt, and words of equal length: all are closed."""
    case, _ = draw(asked())
    size = draw(st.integers(1, 3))
    letters = sorted(set(b"".join(case.model.index.sorted)))[:3]
    every = [bytes(word) for word in itertools.product(letters, repeat=size)]
    kept = draw(st.lists(st.sampled_from(every), min_size=1, max_size=6, unique=True))
    return case, kept


class TestGlobal:
    @given(small_sets())
    @examples(150)
    def test_small_sets_are_added_up(self, given_: tuple[Case, list[bytes]]) -> None:
        case, members = given_
        expected = conditional(case.model, case.text, members, ends=False)
        lm = lm_of(case.model)
        if not expected:
            with pytest.raises(ZeroProbabilityError):
                lm.complete(case.text, choices=members, conditioning="global", n=9)
            return
        found = lm.complete(case.text, choices=members, conditioning="global", n=9)
        shares = dict(zip([one.raw for one in found], found.weights, strict=True))  # type: ignore[attr-defined]
        for member in members:
            assert shares[member] == pytest.approx(expected.get(member, 0.0), abs=1e-9)
        assert {one.finish for one in found} == {"constraint"}
        mass = sum(prefix(case.model, case.text + one) for one in members)
        assert found.logprob == pytest.approx(  # type: ignore[attr-defined]
            math.log(mass / prefix(case.model, case.text)), abs=1e-9
        )

    def test_nested_members_end_by_the_model(self) -> None:
        found = lm_of(SMALL).complete("", choices=["a", "ab"], conditioning="global", n=2)
        ended = 0.4 * 0.1  # [a] and the end; "ab" is closed, so whatever follows counts
        begins = 0.3 + 0.4 * 0.2
        assert dict(zip([c.text for c in found], found.weights, strict=True)) == pytest.approx(  # type: ignore[attr-defined]
            {"a": ended / (ended + begins), "ab": begins / (ended + begins)}
        )
        assert [one.finish for one in found] == ["constraint", "end"]

    @pytest.mark.parametrize("calls", [0, 1, 3, 5])
    @pytest.mark.parametrize("how", [{"regex": "[0-9]{1,9}\n"}, {"choices": ["1\n", "22\n"]}])
    def test_a_text_that_a_limit_ends_has_no_weight(self, calls: int, how: dict) -> None:
        asked = {"conditioning": "global", "particles": 16, "n": 99, "seed": 0, **how}
        found = charwise.load().complete("x = ", cancel=After(calls), **asked)
        assert found
        ended = [one.finish == "cancelled" for one in found]
        assert [weight == 0 for weight in found.weights] == ended  # type: ignore[attr-defined]
        assert ended == sorted(ended)
        if all(ended):
            assert (found.logprob, found.effective) == (-math.inf, 0)  # type: ignore[attr-defined]
        else:
            assert found.weights.sum() == pytest.approx(1)  # type: ignore[attr-defined]
            assert found.logprob < 0  # type: ignore[attr-defined]

    @pytest.mark.parametrize("pattern", ["[0-9]{1,9}\n", "[0-9]{50}"])
    def test_a_text_that_is_cut_has_no_weight(self, pattern: str) -> None:
        found = particles(
            charwise.load().state("x = "),
            constraints.regex(pattern),
            32,
            n=99,
            seed=1,
            max_new_bytes=3,
        )
        cut = [one.finish == "length" for one in found]
        assert any(cut)
        assert cut == [weight == 0 for weight in found.weights] == sorted(cut)
        assert (found.logprob == -math.inf) == all(cut) == (pattern == "[0-9]{50}")

    def test_where_all_particles_die(self) -> None:
        model = table([b"a", b"b"], {(): [0.9, 0.0, 0.1]})
        with pytest.raises(ConstraintError, match="longest came to b'a'"):
            particles(lm_of(model).state(""), constraints.choices(["ab"]), 4, seed=0)


class TestLocal:
    @given(asked(), st.integers(0, 2**31))
    @examples(150)
    def test_what_is_drawn_satisfies(self, given_: tuple[Case, list[bytes]], seed: int) -> None:
        case, choices = given_
        lm = lm_of(case.model)
        try:
            found = lm.complete(
                case.text, choices=choices, n=4, temperature=1.0, seed=seed, max_new_bytes=64
            )
        except ConstraintError:
            # Only if no token that covers the prompt fits, or none of what fits has mass.
            reachable = [one for one in choices if prefix(case.model, case.text + one) > 0]
            assert (
                not any(string(case.model, case.text + one) > 0 for one in reachable)
                or not reachable
            )
            return
        for one in found:
            if one.finish in ("constraint", "end"):
                assert one.raw in choices
            else:
                assert one.finish == "dead end"
                assert any(choice.startswith(one.raw) for choice in choices)

    @given(asked())
    @examples(150)
    def test_next_is_the_renormalised_distribution(self, given_: tuple[Case, list[bytes]]) -> None:
        case, choices = given_
        state, constraint = lm_of(case.model).state(case.text), constraints.choices(choices)
        whole, allowed = state.next().probs, constraint.allowed()
        if not whole[allowed].sum() > 0:
            with pytest.raises(ConstraintError):
                state.next(constraint)
            return
        probs = state.next(constraint).probs
        assert probs.sum() == pytest.approx(1)
        np.testing.assert_allclose(probs[allowed], whole[allowed] / whole[allowed].sum())
        assert (probs[~allowed] == 0).all()

    def test_streams_follow_too(self) -> None:
        lm = charwise.load()
        assert "".join(lm.stream("return ", regex="[a-c]{2}x")).endswith("x")

    def test_a_prompt_that_ends_inside_a_character(self) -> None:
        lm = charwise.load()
        with pytest.raises(ConstraintError, match="inside a character"):
            lm.complete(b"na\xc3", regex="ïve")
        assert lm.complete(b"na\xc3", choices=[b"\xafve"])[0].raw == b"\xafve"
        assert lm.complete(b"na\xc3", choices=[b"\xafve"])[0].text == "ïve"


class TestNewcomers:
    """What people try first, with the embedded model."""

    def test_a_schema_that_no_text_satisfies(self) -> None:
        lm = charwise.load()
        schema = {"type": "string", "pattern": "^2021-02-29$", "format": "date"}
        with pytest.raises(ConstraintError, match="nothing satisfies"):
            lm.complete("x = ", json_schema=schema, conditioning="global")
        with pytest.raises(ConstraintError, match="no text that was drawn"):
            lm.complete("x = ", json_schema=schema)

    @pytest.mark.parametrize("most", [4, 5, 6, 7])
    def test_what_is_cut_ends_before_a_character_that_is_too_long(self, most: int) -> None:
        expected = {4: "éé", 5: "éé", 6: "ééé", 7: "ééé"}[most]
        for how in ("local", "global"):
            [one] = charwise.load().complete(
                "x = ", regex="é{9}", conditioning=how, max_new_bytes=most, particles=4, seed=0
            )
            assert (one.text, one.raw, one.finish) == (expected, expected.encode(), "length")

    def test_a_constraint_that_has_begun(self) -> None:
        begun = constraints.regex("[0-9]{3};").after(b"1")
        for how in ("local", "global"):
            [one] = charwise.load().complete("x = 1", constraint=begun, conditioning=how)  # type: ignore[arg-type]
            assert re.fullmatch("[0-9]{2};", one.text)

    def test_a_constraint_that_is_too_complex_says_so(self) -> None:
        properties = {f"k{n}": {} for n in range(1000)}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        for how in ("local", "global"):
            with pytest.raises(ConstraintError, match="cannot be followed"):
                charwise.load().complete(
                    'x = {"k',
                    constraint=constraints.json_schema(schema).after(b'{"'),
                    conditioning=how,
                )  # type: ignore[arg-type]


WORDS = [bytes(word) for size in (1, 2, 3) for word in itertools.product(b"ab.", repeat=size)]
MADE = {
    "choices": constraints.choices(["a", "ab.", "b.b"]),
    "few": constraints.regex(r"(ab)+\.?"),
    "many": constraints.regex(r"[ab]*\.|a*"),
    "all": constraints.regex(r"[ab.]*"),
}


def tokens_after(text: bytes, constraint: constraints.Constraint) -> list[int]:
    """The tokens that may follow a text, asked one by one; the last is the end."""
    left = constraint.after(text)
    allowed = []
    for token, word in enumerate(WORDS):
        try:
            left.after(word)
        except ConstraintError:
            continue
        allowed.append(token)
    return allowed + [len(WORDS)] * bool(left.allowed()[END])


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
    lm = lm_of(table(WORDS, model_rows, 2))
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
        left = tokens_after(text, constraint)
        assert not left or not model_rows[last,][left].any()
