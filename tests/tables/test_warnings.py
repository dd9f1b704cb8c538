"""Probable mistakes in cells: each is named with its row and column, and no other cell is."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest

from charwise.tables.rows import Columns, Place, Stimulus, stimulus_of
from charwise.tables.warnings import InputWarnings

COLUMNS = Columns("sentence", item="id", context="before")


def warnings_of(*rows: Stimulus) -> list[str]:
    mistakes = InputWarnings(COLUMNS)
    return [str(bad) for row in rows for bad in mistakes.of(row)]


def row(text: str, context: str = "", item: str | None = None, number: int = 1) -> Stimulus:
    place = Place("a.csv", number, number + 1)
    return Stimulus(place, text.encode(), context.encode(), item)


def test_a_text_without_a_bar_is_one_region() -> None:
    for text, count in (("To be|, or not.", 0), ("To be, or not.", 1)):
        stimulus = stimulus_of(Place("a.csv", 1), {"text": text}, Columns(), regions=True)
        assert isinstance(stimulus, Stimulus)
        assert len(list(InputWarnings(Columns()).of(stimulus))) == count


@pytest.mark.parametrize(
    ("text", "context", "column", "reason"),
    [
        (" NaN ", "", "sentence", "'NaN'"),
        (" The end.", "NA", "before", "'NA'"),
        (" ", "", "sentence", "only whitespace"),
        (unicodedata.normalize("NFD", "Le café ferme."), "", "sentence", "after 6 characters"),
        ("the\u00a0end", "", "sentence", "a no-break space (U+00A0) is in it after 3 characters"),
        ("The horse fell.", "There was a race.", "before", "as a race.The horse "),
    ],
)
def test_a_probable_mistake(text: str, context: str, column: str, reason: str) -> None:
    [line] = warnings_of(row(text, context))
    assert f"row 1 (line 2), column '{column}': " in line
    assert reason in line


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("NATO met.", ""),
        (" The horse fell.", "There was a race."),
        ("The horse fell.", "There was a race. "),
        ("horse", "the race-"),
        ("yes”, he lines.", "He answered “"),
        (", he lines.", "Yes"),
        ("मैं हिन्दी पढ़ती हूँ।", ""),  # marks that no letter has in one code point
        ("猫は寝る。", "犬は走る。"),
        ("แมวนอน", "สุนัขวิ่ง"),
        ("naïve café", ""),
    ],
)
def test_what_is_no_mistake(text: str, context: str) -> None:
    assert warnings_of(row(text, context)) == []


def test_an_item_is_repeated_if_all_that_is_kept_is_too() -> None:
    items = [row("a", item=item, number=n) for n, item in enumerate("121", 1)]
    lines = warnings_of(*items)
    assert lines == ["a.csv, row 3 (line 4), column 'id': row 1 has the item '1' too."]
    kept = [replace(one, copied=(("condition", str(n)),)) for n, one in enumerate(items)]
    assert warnings_of(*kept) == []
