"""Coverings of texts with very many tokenizations: searches end, and say what is settled."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given

import charwise
from charwise import CharLM
from charwise.coverings.beam import start
from charwise.coverings.members import first_members, members_in_order
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SearchLimitError, SettingError
from models import Case, cases, examples, two_ways


@given(cases())
@examples(200)
def test_a_search_that_may_visit_less_finds_the_same_first_members(case: Case):
    everything = list(members_in_order(case.model.evaluated(), 0, case.text))
    for most in (1, 2, 4):
        try:
            found = first_members(
                partial(members_in_order, case.model.evaluated(), 0, case.text), 10**6, most
            )
        except SearchLimitError as error:
            found = list(error.found)
        else:
            assert len(found) == len(everything)
        assert found == everything[: len(found)]


@pytest.mark.parametrize("text", [" " * 200, "x" * 300, "The horse raced past the barn fell."])
def test_members_of_long_texts_end_with_an_error_that_says_what_to_do(text: str):
    lm = charwise.load()
    covering = lm.covering(text, max_contexts=64)
    assert covering.contexts == 64
    assert covering.prefix_logprob().missing > 0.5
    for search in (covering, lm.encodings(text)):
        with pytest.raises(SearchLimitError, match=r"64 contexts.*as token ids") as caught:
            search.top(2, max_contexts=64)
        assert len(caught.value.found) < 2


def test_the_error_says_how_many_members_are_settled():
    counts = []
    for most in range(1, 26, 4):
        with pytest.raises(SearchLimitError, match=rf"^{most} contexts .* \(8 bytes\)") as caught:
            first_members(
                partial(members_in_order, two_ways().evaluated(), 0, b"abababab"), 10**6, most
            )
        counts.append(len(caught.value.found))
        assert f" {counts[-1]} members of the text ending in b'abababab'" in str(caught.value)
    assert counts == sorted(counts)
    assert counts[-1] > 1


def test_the_end_of_a_long_text_after_the_ids_of_its_beginning():
    lm = charwise.load()
    ids = [*lm.vocabulary.bos_ids, *lm.vocabulary.encode("import os\nimport sys\n" * 20)]
    assert lm.covering([*ids, "import nump"]).top(1)[0].text == "import numpy"


def test_more_members_than_a_machine_integer_are_all_members():
    lm = CharLM(two_ways().lm)
    every = lm.covering("ab").top(1000)
    assert lm.covering("ab").top(2**70) == every
    assert lm.encodings("ab").top(2**70) == lm.encodings("ab").top(1000)
    with pytest.raises(SettingError, match="max_contexts"):
        lm.encodings("ab").top(1, max_contexts=0)


def test_the_size_of_a_long_text_is_counted_when_it_is_asked_for():
    encodings = charwise.load().encodings("import os\n" * 100)
    assert encodings.size > 10**100
    assert encodings.text == "import os\n" * 100


def test_text_is_str_and_raw_is_bytes():
    lm = CharLM(two_ways().lm)
    covering, encodings = lm.covering(b"a"), lm.encodings(b"a")
    beam = start(EvaluatedRows.of(lm.engine, lm.vocabulary.bos_ids), 0, k=4).step(ord("a"))
    for found in (covering, encodings, beam, covering.top(1)[0], encodings.top(1)[0]):
        assert isinstance(found.text, str)
        assert isinstance(found.raw, bytes)
        assert found.raw.decode() == found.text
    assert lm.covering(b"a\xff").text == "a�"
