"""What the language server does with the model, in this process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.serve.completions import Completions
from charwise.serve.lsp_settings import Settings
from charwise.serve.model_thread import around, read_ahead, suggestions
from charwise.serve.prompts import sides_of
from charwise.serve.stoppable import Stopped
from charwise.serve.task import CompletionTask
from models import examples
from sentinels import saved_with

#: Of the embedded model, for tests that leave nothing behind that others look at.
COMPLETIONS = [Completions(charwise.load())]

SETTINGS = Settings(seconds=None, max_bytes=24)
TEXT = "import math\n\n\nclass Circle:\n    def area(self, radius):\n        return math."


def texts(completions: Completions, before: str, after: str = "", **settings: object) -> list[str]:
    chosen, wrong = SETTINGS.changed(settings)
    assert not wrong
    return [one.text for one in suggestions(completions, chosen, before, after, threading.Event())]


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> CharLM:
    """The embedded model with sentinels, which it was never trained with."""
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    return charwise.load(saved_with(tmp_path_factory.mktemp("filler"), names))


def test_a_key_goes_on_from_the_last_state() -> None:
    completions = Completions(charwise.load())
    text, cancel = TEXT, threading.Event()
    read_ahead(completions, SETTINGS, text, len(text), cancel)
    for key in "pi":
        text += key
        before = completions.engine.calls
        read_ahead(completions, SETTINGS, text, len(text), cancel)
        assert completions.engine.calls - before <= 2
        assert completions.memory.trees == 1
    before = completions.engine.calls
    read_ahead(completions, SETTINGS, text[:-1], len(text) - 1, cancel)
    assert completions.engine.calls == before


def test_what_was_typed_along_an_offer_is_answered_from_it() -> None:
    completions = Completions(charwise.load())
    [found] = texts(completions, "import nump")
    before = completions.engine.calls
    assert texts(completions, "import nump" + found[:2]) == [found[2:]]
    assert completions.engine.calls == before


def test_work_that_is_not_wanted_ends_before_a_model_call() -> None:
    completions, cancel = Completions(charwise.load()), threading.Event()
    cancel.set()
    for work in (
        lambda: suggestions(completions, SETTINGS, TEXT, "", cancel),
        lambda: read_ahead(completions, SETTINGS, TEXT, len(TEXT), cancel),
    ):
        with pytest.raises(Stopped):
            work()
    assert completions.engine.calls == 0


def test_a_model_with_a_template_reads_both_sides(filler: CharLM) -> None:
    completions = Completions(filler)
    assert completions.template is not None
    before, after = "for i in ra", "e(3):\n    pass\n"
    texts(completions, before, after)
    known = completions.memory.between(before.encode(), after.encode())
    assert known.request == filler.infill_request(before, after)
    left_to_right = Completions(CharLM(completions.engine))
    left_to_right.template = None
    assert texts(completions, before, after, infill=False) == texts(left_to_right, before, after)


def test_a_key_between_two_sides_goes_on_from_the_last_state(filler: CharLM) -> None:
    completions, cancel = Completions(filler), threading.Event()
    after = "\n\n    def name(self):\n"
    read_ahead(completions, SETTINGS, TEXT + after, len(TEXT), cancel)
    trees = completions.memory.trees
    read_ahead(completions, SETTINGS, TEXT + "p" + after, len(TEXT) + 1, cancel)
    assert completions.memory.trees == trees


def test_at_the_end_of_a_text_nothing_is_known_of_what_comes_after(filler: CharLM) -> None:
    """A middle between a text and nothing would be the last there is of it."""
    left_to_right = Completions(CharLM(filler.engine))
    left_to_right.template = None
    expected, cancel = texts(left_to_right, TEXT), threading.Event()
    for after in ("", "\n", "\n  \n"):  # editors end a buffer's last line
        completions = Completions(filler)
        read_ahead(completions, SETTINGS, TEXT + after, len(TEXT), cancel)
        assert texts(completions, TEXT, after) == expected
        assert completions.memory.trees == 1
    written = f"<fim_prefix>{TEXT}<fim_suffix>\n<fim_middle>"
    ids = filler.infill_request(TEXT, left="off").ids
    for prompt in (written, ids):
        assert not sides_of(CompletionTask(prompt), filler.vocabulary).between
    assert sides_of(CompletionTask(TEXT, "x\n"), filler.vocabulary).between


def test_the_name_of_a_sentinel_in_a_document_is_text(filler: CharLM) -> None:
    completions = Completions(filler)
    written = "<fim_prefix>for i in ra<fim_suffix>e(3)<fim_middle>"
    texts(completions, written, infill=False)
    known = completions.memory.after(filler.state("").shared.opening, written.encode())
    assert known.state.raw == written.encode()


def test_what_is_read_around_a_cursor() -> None:
    lm = charwise.load()
    completions = Completions(lm)
    text = "a" * 20_000
    before, after = around(completions, SETTINGS, text, 15_000, 15_001)
    assert lm.engine.window is not None
    assert 4_000 < len(before) <= 6 * lm.engine.window
    assert len(after) == 4_999
    settings = Settings(before=10, after=0)
    assert around(completions, settings, text, 15_000, 15_000)[1] == ""


def test_the_files_of_the_page_are_in_the_package() -> None:
    page = Path(charwise.__file__).parent / "serve" / "playground" / "page"
    assert (page / "index.html").is_file()


@given(text=st.text(st.sampled_from("# é🍋東\n\r"), min_size=1, max_size=5))
@examples(12)
def test_what_is_offered_is_text_that_can_be_inserted(text: str) -> None:
    for most in (1, 3):
        for one in texts(COMPLETIONS[0], text, maxBytes=most, candidates=3):
            assert one.strip()
            assert "\ufffd" not in one


def test_the_lines_around_a_cursor_end_as_a_model_reads_them() -> None:
    text = "a\r\nb\r\n"
    assert around(COMPLETIONS[0], SETTINGS, text, 3, 4) == ("a\n", "\n")
