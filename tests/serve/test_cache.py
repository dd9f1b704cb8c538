"""What is known of texts: a server that remembers answers as a model that does not."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.cursor.options import GenerationOptions, Limit
from charwise.errors import CharwiseError
from charwise.healing.fim import Template
from charwise.serve.cache import Cache
from charwise.serve.task import Candidate, Piece, Stopped, Task
from models import After, Case, cases, examples, models, texts, with_sentinels
from serving import answer, counted_cache

SEEDED = GenerationOptions(seed=0)

CODE = b"import os\n\n\ndef names(path):\n    return [n for n in os.listdir(path) if n]\n"


@given(cases(), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=6))
@examples(40)
def test_known_states_are_those_of_the_model(case: Case, edits: list[tuple[int, int]]) -> None:
    lm = case.model.exact()
    cache, text = Cache(lm), case.text
    for cut, more in edits:
        text = text[:cut] + case.text[:more]
        start, whole = lm.vocabulary.split_prompt(text)
        try:
            expected = lm.next(text).probs
        except CharwiseError:
            with pytest.raises(CharwiseError):
                cache.at(start, whole).state.next()
            continue
        known = cache.at(start, whole)
        assert known.state.raw == text
        np.testing.assert_allclose(known.state.next().probs, expected, rtol=1e-9, atol=1e-12)
        tokens, cached = known.tokens
        assert 0 <= cached <= tokens
        assert cache.count(start, whole) == tokens


Typed = tuple[CharLM, list[bytes], bytes]


@st.composite
def typed(draw: st.DrawFn) -> Typed:
    """A model that fills in, a prefix and what becomes of it key by key, and a suffix."""
    model = draw(models())
    whole, suffix = draw(texts(model, 8)), draw(texts(model, 4))
    sizes = draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=5))
    return with_sentinels(model).exact(), [whole[:size] for size in sizes], suffix


@given(typed())
@examples(60)
def test_what_is_typed_begins_the_middle(case: Typed) -> None:
    lm, prefixes, suffix = case
    cache = Cache(lm)
    for prefix in prefixes:
        try:
            known = cache.at(((), suffix), prefix)
            result = known.state.next().probs
        except CharwiseError:  # random models often cannot write it
            continue
        assert known.text == prefix
        assert known.request is not None
        opening = known.state.shared.opening
        expected = lm.next([*opening.ids, known.state.raw]).probs
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)
        read = len(known.request.forced)
        assert known.state.raw[:read] == known.request.forced[: len(known.state.raw)]
        assert prefix.endswith(known.state.raw[read:])


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_prompt_that_was_given_up_is_not_read_again(calls: int) -> None:
    """A key that comes while a prompt is read goes on from what was read."""
    cache, engine = counted_cache()
    code = (CODE * 20).decode()
    with pytest.raises(Stopped):
        answer(cache, Task(code, max_tokens=20), limit=Limit(cancel=After(calls)))
    [tree], made = cache.trees, engine.counts["model_calls"]
    result = answer(cache, Task(code + "\ndef na", max_bytes=3, options=SEEDED))
    assert cache.trees == [tree]
    assert engine.counts["model_calls"] - made < 8
    assert result.candidates[0].raw == cache.lm.complete(code + "\ndef na", max_new_bytes=3)[0].raw


def test_what_is_kept_is_bounded() -> None:
    most = 2**23
    cache, free, largest = counted_cache(max_bytes=most)[0], Cache(charwise.load()), 0
    for number in range(9):
        text = f"x{number} = " + CODE.decode() * 2
        for more in ("", "for"):
            query = Task(text + more, max_bytes=4, options=SEEDED)
            [result], [expected] = answer(cache, query).candidates, answer(free, query).candidates
            cache.enforce_limit()
            assert cache.nbytes <= most
            assert result.raw == expected.raw
            assert result.logprob == pytest.approx(expected.logprob, abs=0.02)
        largest = max(largest, cache.nbytes)
    assert largest > most // 2
    assert len(cache) < 9
    assert free.nbytes > 2 * most
    assert len(free.trees) == len(free) == 9  # one for each beginning
    free.max_bytes, sizes = 0, [shared.tree.nbytes for shared in free.trees]
    free.enforce_limit(free.trees)  # completions are drawn from them
    assert [shared.tree.nbytes for shared in free.trees] == sizes[-1:]
    free.enforce_limit()
    assert free.nbytes < sizes[-1]


def test_deletions_and_additions_go_on_where_contexts_were_freed() -> None:
    cache = Cache(charwise.load(), max_bytes=2**30)
    for at in (*range(30, 60), 59, 45, 46, 70, 31, 60):
        state = cache.at(*cache.lm.vocabulary.split_prompt(CODE[:at])).state
        assert state.raw == CODE[:at]
        if at == 59:
            cache.max_bytes = 0
        if not cache.max_bytes:
            cache.enforce_limit()
            assert np.abs(state.next().probs - cache.lm.next(CODE[:at]).probs).sum() / 2 < 0.05
    assert len(cache.trees) == 1


# Offers.


def candidate(text: bytes, finish: str = "line") -> Candidate:
    pieces = tuple(Piece(text[at : at + 3], -0.5, at) for at in range(0, len(text), 3))
    logprob, end = -0.5 * len(pieces), Piece(b"", -2.0, 0)  # which its probability leaves out
    return Candidate(text.decode(), text, logprob, finish, None, (*pieces, end))


CUT = b"er()\n    parser.add_argument('---', act"


@pytest.mark.parametrize(
    ("offer", "finish", "key", "rest"),
    [
        (b"numpy as np", "line", b"nump", "y as np"),
        (b"numpy", "line", b"numb", None),
        (b"numpy", "line", b"numpy", None),
        # More time may be there now,
        (b"numpy", "time", b"", None),
        (b"numpy", "time", b"n", None),
        # or too little is left of what could go on,
        (b"numpy", "length", b"num", None),
        (b"numpy", "length", b"nu", "mpy"),
        # or its last line was cut: it is none to offer for a whole one.
        *((CUT, finish, b"er(", CUT[3:].decode()) for finish in ("time", "length", "window")),
        *((CUT, finish, b"er()", None) for finish in ("time", "length", "window")),
        (b"s\r\nimport o", "length", b"s", None),
        (b"s\n\nx = 1\ny", "length", b"s", "\n\nx = 1\ny"),
        (CUT, "stop", b"er()\n  ", CUT[7:].decode()),
    ],
)
def test_what_is_left_of_an_offer(offer: bytes, finish: str, key: bytes, rest: str | None) -> None:
    cache = Cache(charwise.load())
    cache.remember("key", b"", (candidate(offer, finish),))
    result = cache.recall("key", key)
    assert [one.text for one in result] == ([] if rest is None else [rest])
    for one in result:
        assert b"".join(piece.raw for piece in one.pieces) == one.raw
        assert one.logprob == -0.5 * (len(one.pieces) - 1)


def test_offers_are_kept_by_request_and_text() -> None:
    cache = Cache(charwise.load())
    cache.remember("key", b"import nu", (candidate(b"mpy as np\nimport os\n", "block"),))
    cache.remember("key", b"import n", (candidate(b"umpy as np\nimport", "block"),))
    [again] = cache.recall("key", b"import nu")  # its own
    assert again.text == "mpy as np\nimport os\n"
    [other] = cache.recall("key", b"import num")  # the latest that it goes on from
    assert other.text == "py as np\nimport"
    assert cache.recall("key", b"import x") == cache.recall("other", b"import n") == ()
    # Who wants two gets two, and not the one that was typed along.
    cache.remember("one", b"import ", (candidate(b"numpy as np"), candidate(b"numbers")))
    assert [rest.text for rest in cache.recall("one", b"import num")] == ["py as np", "bers"]
    assert cache.recall("one", b"import nump") == ()
    for number in range(200):
        cache.remember("one", b"%d" % number, ())
    assert len(cache._offers) == 128
    for size, kept in ((9, True), (2**18, False)):  # beside very long texts none is
        query = Task("import nump", "\n" + "x" * size, fills_in=False, max_tokens=1, until="line")
        assert [answer(cache, query).from_memory for _ in range(2)] == [False, kept]


def test_typing_along_an_offer_asks_no_model_and_counts_the_prompt() -> None:
    cache, engine = counted_cache()
    text = CODE.decode() * 8 + "import sys\nimport nu"
    first = answer(cache, Task(text, until="line", max_tokens=20))
    offer, tokens = first.candidates[0].text, len(cache.lm.vocabulary.encode(text)) + 1
    assert (first.from_memory, first.prompt_tokens, first.cached_tokens) == (False, tokens, 0)
    calls = engine.counts["model_calls"]
    for size in range(1, len(offer)):
        again = answer(cache, Task(text + offer[:size], until="line", max_tokens=20))
        assert again.from_memory
        assert again.candidates[0].text == offer[size:]
        tokens = len(cache.lm.vocabulary.encode(text + offer[:size])) + 1
        assert again.prompt_tokens == again.cached_tokens == tokens
    assert engine.counts["model_calls"] == calls


def shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return max(n for n in range(len(one) + 1) if one[:n] == other[:n])


TYPED = st.lists(st.tuples(st.integers(1, 160), st.sampled_from(["", "for", " x = 1", "\n", "é"])))


@given(TYPED, st.booleans(), st.sampled_from([None, "\n\nprint(names)\n"]))
@example([(1, "é")], True, "\n\nprint(names)\n")  # its request holds the whole prompt
@example([(at, "") for at in (56, 57, 58, 59)], True, "(path)]\n")
@examples(12)
def test_texts_with_a_seed_and_counts_are_those_of_a_fresh_server(
    edits: list[tuple[int, str]], seeded: bool, suffix: str | None
) -> None:
    """Of requests that are repeated, go on and are cut; what is cached was read before."""
    lm = CharLM(charwise.load().engine)
    cache, template, read = Cache(lm), Template.of(lm.vocabulary), list[str]()
    text = CODE.decode() * 2
    options = SEEDED if seeded else GenerationOptions()
    for at, more in [(160, ""), *edits[:4], (160, "")]:
        text = text[:at] + more
        query = Task(text, suffix, max_tokens=2, options=options)
        result = answer(cache, query, template)
        fresh = answer(Cache(lm), query, template)
        assert fresh.cached_tokens == 0
        if seeded:
            [one], [other] = result.candidates, fresh.candidates
            assert one.raw == other.raw
            assert one.logprob == pytest.approx(other.logprob, abs=0.02)
        if suffix is None:
            assert result.prompt_tokens == fresh.prompt_tokens
            assert result.prompt_tokens == 1 + len(lm.vocabulary.encode(text))
        assert 0 <= result.cached_tokens <= result.prompt_tokens
        assert result.new_tokens == sum(len(one.pieces) for one in result.candidates) <= 2
        common = max((shared(text, one) for one in read), default=0)
        known = len(lm.vocabulary.encode(text[:common])) if common else -1
        sides = 0 if suffix is None or not read else 3 + len(lm.vocabulary.encode(suffix))
        assert result.cached_tokens <= 1 + known + sides
        if text in read:
            assert result.cached_tokens == result.prompt_tokens
        read.append(text)
