"""What the language server offers, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise

pytest.importorskip("pygls", reason="the language server needs: pip install 'charwise[lsp]'")

from charwise.serve.engine import Engine
from charwise.serve.lsp import offers, read_ahead
from charwise.serve.lsp_settings import Settings
from charwise.serve.prompt import parse_prompt
from charwise.serve.task import Task
from models import examples

SETTINGS = Settings(seconds=None, max_bytes=24)
TEXT = "import math\n\n\nclass Circle:\n    def area(self, radius):\n        return math."
BELOW = "\n\n    def name(self):\n"


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(charwise.load(), seconds=600.0)
    yield one
    one.close()


def texts(engine: Engine, text: str, at: int | None = None, **settings: object) -> list[str]:
    chosen, wrong = SETTINGS.changed(settings)
    assert not wrong
    at = len(text) if at is None else at
    return [one.text for one in asyncio.run(offers(engine, chosen, text, slice(at, at)))]


@pytest.mark.parametrize("below", ["", BELOW])
def test_a_key_goes_on_from_what_was_read(engine: Engine, below: str) -> None:
    counts = engine.model.counts
    asyncio.run(read_ahead(engine, SETTINGS, TEXT + below, len(TEXT)))
    tree = engine.cache.trees
    for typed, most in (("p", 2), ("pi", 2), ("p", 0)):
        before = counts["model_calls"]
        asyncio.run(read_ahead(engine, SETTINGS, TEXT + typed + below, len(TEXT + typed)))
        assert counts["model_calls"] - before <= most
    assert engine.cache.trees == tree
    assert not engine.cache._offers


def test_a_model_with_a_template_reads_both_sides(engine: Engine) -> None:
    before, after = "for i in ra", "e(3):\n    pass\n"
    texts(engine, before + after, len(before))
    known = engine.cache.at(((), after.encode()), before.encode())
    assert known.request == engine.lm.infill_request(before, after)
    assert texts(engine, before + after, len(before), infill=False) == ["ng"]


def test_at_the_end_of_a_text_nothing_is_known_of_what_comes_after(engine: Engine) -> None:
    """A middle between a text and nothing would be the last there is of it."""
    expected = texts(engine, TEXT)
    for below in ("\n", "\n  \n"):  # editors end a buffer's last line
        assert texts(engine, TEXT + below, len(TEXT)) == expected
    written = f"<fim_prefix>{TEXT}<fim_suffix>\n<fim_middle>"
    assert not parse_prompt(Task(written), engine.lm.vocabulary).between
    assert parse_prompt(Task(TEXT, "x\n"), engine.lm.vocabulary).between


def test_the_name_of_a_sentinel_in_a_document_is_text(engine: Engine) -> None:
    written = "<fim_prefix>for i in ra<fim_suffix>e(3)<fim_middle>"
    texts(engine, written)
    start, whole = engine.lm.vocabulary.split_prompt(written.encode())
    assert engine.cache.at(start, whole).cached == len(whole)


@given(text=st.text(st.sampled_from("# é🍋東\n\r"), min_size=1, max_size=5))
@examples(8)
def test_what_is_offered_is_text_that_can_be_inserted(text: str) -> None:
    engine = Engine(charwise.load(), seconds=600.0)
    try:
        for most in (1, 3):
            for one in texts(engine, text, maxBytes=most, candidates=3):
                assert one.strip()
                assert "\ufffd" not in one
    finally:
        engine.close()
