"""Probable mistakes in cells: each is named with its row and column, and no other cell is."""

from __future__ import annotations

import unicodedata

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
    place = Place("a.csv", 1, 2)
    for text, count in (("To be|, or not.", 0), ("To be, or not.", 1)):
        stimulus = stimulus_of(place, {"text": text}, Columns(), regions=True)
        assert isinstance(stimulus, Stimulus)
        lines = list(InputWarnings(Columns()).of(stimulus))
        assert len(lines) == count


@pytest.mark.parametrize(
    ("text", "context", "column", "reason"),
    [
        ("NA", "", "sentence", "'NA'"),
        (" NaN ", "", "sentence", "'NaN'"),
        ("The end.", "NA", "before", "'NA'"),
        (" ", "", "sentence", "only whitespace"),
        (" The end.", " ", "before", "only whitespace"),
        (unicodedata.normalize("NFD", "Le café ferme."), "", "sentence", "after 6 characters"),
        ("the\u00a0end", "", "sentence", "a no-break space (U+00A0) is in it after 3 characters"),
        ("the\u200bend", "", "sentence", "a zero-width space (U+200B)"),
        ("The horse fell.", "There was a race.", "before", "as a race.The horse "),
    ],
)
def test_a_probable_mistake(text: str, context: str, column: str, reason: str) -> None:
    lines = warnings_of(row(text, context))
    assert [line for line in lines if f"row 1 (line 2), column '{column}': " in line]
    assert any(reason in line for line in lines)


@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("NATO met.", ""),
        ("None of them came.", ""),
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
    lines = warnings_of(
        row("a", item="1"), row("b", item="2", number=2), row("c", item="1", number=3)
    )
    assert lines == ["a.csv, row 3 (line 4), column 'id': row 1 has the item '1' too."]
    conditions = [
        Stimulus(Place("a.csv", n), b"a", item="1", copied=(("condition", name),))
        for n, name in enumerate(["full", "reduced"], 1)
    ]
    assert warnings_of(*conditions) == []
