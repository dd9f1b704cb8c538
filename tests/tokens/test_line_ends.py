"""Line ends of files: what a model reads, what a file gets, and where a place in it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from charwise.tokens.line_ends import line_end, offset, read, write, write_pieces

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.text(st.sampled_from("ab é\n\r"), max_size=12)


@given(TEXTS)
def test_what_is_read_has_one_kind_of_end(text: str) -> None:
    assert read(text) == "\n".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    assert read(text.encode()) == read(text).encode()


@given(st.text(st.sampled_from("ab é"), max_size=4), st.integers(0, 5), ENDS)
def test_a_file_of_one_kind_is_what_it_was(line: str, lines: int, end: str) -> None:
    text = "".join([line + end] * lines)
    assert write(read(text), line_end(text)) == text


@given(TEXTS, TEXTS)
def test_most_lines_decide(before: str, after: str) -> None:
    counts = dict.fromkeys(["\n", "\r\n", "\r"], 0)
    for text in (before, after):
        for one in text.replace("\r\n", "2").translate({ord("\n"): "1", ord("\r"): "3"}):
            if one in "123":
                counts[{"1": "\n", "2": "\r\n", "3": "\r"}[one]] += 1
    assert counts[line_end(before, after.encode())] == max(counts.values())


@given(TEXTS, st.data())
def test_an_offset_leads_to_the_same_place(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    at = data.draw(st.integers(0, len(read(raw))))
    place = offset(raw, at)
    assert read(raw[:place]) == read(raw)[:at]
    assert read(raw[place:]) == read(raw)[at:]


@given(st.lists(TEXTS, max_size=4), ENDS)
def test_pieces_are_those_of_the_text(pieces: list[str], end: str) -> None:
    found = write_pieces([one.encode() for one in pieces], end)
    assert b"".join(found) == write("".join(pieces), end).encode()
    assert len(found) == len(pieces)
