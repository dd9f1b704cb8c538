"""Teacher tables: the distributions of brute force, rounded by no more than is said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from stopped import Stopped, stopping

from charwise import CharLM, Vocabulary
from charwise.coverings.reference import next_character_probability, prefix_probability
from charwise.errors import SettingError
from charwise.tables.jobs import Job
from charwise.tables.output import Output, Scored
from charwise.tables.rows import BadRow, Place, Stimulus
from charwise.tables.sources import Source, find
from charwise.tables.teacher import Floats, Teacher, rounded
from charwise.tables.writers import check_folder, shards
from charwise.tokens.utf8 import pieces
from models import Case, cases, examples, random_lm

pa = pytest.importorskip("pyarrow", reason="these need: pip install 'charwise[tables]'")
parquet = pytest.importorskip("pyarrow.parquet")

#: Half a unit in the last place of numbers of these types, and half of the smallest number.
HALF = {"float16": (2.0**-11, 2.0**-25), "float32": (2.0**-24, 2.0**-150)}

FLOATS: tuple[Floats, ...] = ("float16", "float32")


def row_of(text: bytes, context: bytes = b"") -> Stimulus:
    return Stimulus(Place("a.txt", 1, table=False), text, context)


def table_of(teacher: Teacher, lm: CharLM, *rows: Stimulus) -> Any:
    """What comes of rows that are good, as a table."""
    batches: list[Any] = list(teacher.outcomes(lm, rows))
    assert not any(isinstance(batch, BadRow) for batch in batches), batches
    return pa.Table.from_batches(batches)


def column(table: Any, name: str) -> NDArray[np.float64]:
    return np.array(table[name].to_pylist(), dtype=np.float64)


def close(stored: NDArray[Any], probabilities: NDArray[np.float64], floats: Floats) -> bool:
    """Whether numbers are the logs of probabilities, but for rounding once (and 1e-9)."""
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    same = np.isneginf(logs)
    share, least = HALF[floats]
    with np.errstate(invalid="ignore"):
        off = np.abs(stored.astype(np.float64) - logs)
        near = off <= np.abs(logs) * share * (1 + 1e-6) + least + 2e-9
    return bool((np.where(same, np.isneginf(stored), near)).all())


# --- The numbers --------------------------------------------------------------------------------


@given(case=cases(), cut=st.integers(0, 8), floats=st.sampled_from(FLOATS))
@examples(120)
def test_rows_are_the_distributions_of_brute_force(case: Case, cut: int, floats: Floats) -> None:
    model, text = case.model, case.text
    while text and prefix_probability(text, model.p, model.vocabulary) <= 1e-300:
        text = text[:-1]
    if not text:
        return  # nothing of this text has a probability
    context, text = text[: min(cut, len(text) - 1)], text[min(cut, len(text) - 1) :]
    teacher, lm = Teacher(floats=floats, preset="exact"), CharLM(model.lm)
    truth = np.array(
        [
            next_character_probability(context + text[:t], model.p, model.vocabulary)
            for t in range(len(text))
        ]
    )
    [score] = teacher._scores(lm, [row_of(text, context)])
    assert score.distributions is not None
    assert np.allclose(score.distributions, truth, rtol=1e-9, atol=1e-290)
    table = table_of(teacher, lm, row_of(text, context))
    assert bytes(table["byte"].to_pylist()) == text
    assert table["start"].to_pylist() == list(range(len(text)))
    assert close(column(table, "logprobs"), truth, floats)


@given(case=cases(longest=5), top=st.integers(1, 256), floats=st.sampled_from(FLOATS))
@examples(60)
def test_the_likeliest_and_the_rest(case: Case, top: int, floats: Floats) -> None:
    model, text = case.model, case.text
    if not text or prefix_probability(text, model.p, model.vocabulary) <= 1e-300:
        return
    truth = next_character_probability(b"", model.p, model.vocabulary)
    teacher = Teacher(top=top, floats=floats, preset="exact")
    table = table_of(teacher, CharLM(model.lm), row_of(text))
    symbols = table["symbols"].to_pylist()[0]
    assert len(set(symbols)) == top
    assert close(column(table, "logprobs")[0], truth[symbols], floats)
    assert close(column(table, "rest")[:1], np.delete(truth, symbols).sum(keepdims=True), floats)
    assert truth[symbols].min() >= np.delete(truth, symbols).max(initial=0.0) * (1 - 1e-9)


def distributions(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Flat ones, peaked ones, with probabilities down to 1e-40, and zeros; the first is uniform."""
    rows = rng.dirichlet(np.full(257, 0.05), count) ** rng.uniform(0.5, 4, (count, 1))
    rows[rng.random(rows.shape) < 0.1] = 0.0
    rows[:, 97] += 1e-9
    rows[0] = 1.0
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("top", [None, 1, 16, 256])
def test_what_is_lost_by_rounding(floats: Floats, top: int | None) -> None:
    """Renormalised as docs/export.md says, KL(true ‖ stored) has the bound that it states."""
    rows = distributions(np.random.default_rng(0), 2000)
    found = rounded(rows, top, floats)
    logs, true = found["logprobs"].astype(np.float64), rows
    if top is not None:
        logs = np.column_stack([logs, found["rest"].astype(np.float64)])
        inside = np.take_along_axis(rows, found["symbols"].astype(np.int64), axis=1)
        pairs = zip(rows, found["symbols"], strict=True)
        rest = [math.fsum(np.delete(row, symbols)) for row, symbols in pairs]
        true = np.column_stack([inside, rest])
    stored = np.exp(logs)
    total = stored.sum(axis=1)
    some = true > 0
    log_true = np.log(true, where=some, out=np.zeros_like(true))
    off = np.where(some, logs, log_true) - log_true
    share, least = HALF[floats]
    assert (np.abs(off) <= np.abs(log_true) * share * 1.001 + least).all()
    entropies = -(true * log_true).sum(axis=1)
    assert (np.abs(total - 1) <= entropies * share * 1.01 + 257 * least).all()
    assert np.abs(total - 1).max() < {"float16": 2.0**-8, "float32": 2.0**-21}[floats]
    again = np.log(total) - (true * off).sum(axis=1)  # KL(true ‖ stored), nats
    largest = np.abs(off).max(axis=1)
    assert (again <= largest**2 / 2 + 1e-15).all()
    assert again.max() < {"float16": 1e-6, "float32": 1e-13}[floats]


# --- Texts --------------------------------------------------------------------------------------


@given(
    text=st.binary(max_size=200) | st.text(max_size=80).map(str.encode),
    most=st.integers(8, 40),
    before=st.integers(0, 50),
)
@examples(300)
def test_pieces_are_the_text(text: bytes, most: int, before: int) -> None:
    found = list(pieces(text, most, before))
    assert b"".join(piece.text for piece in found) == text
    for piece in found:
        assert text[piece.start :].startswith(piece.text)
        assert len(piece.text) <= most
        assert text[: piece.start].endswith(piece.context)
        assert len(piece.context) <= before
        assert len(piece.context) >= min(before - 3, piece.start)
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    for piece in found:  # no character is cut
        (piece.context + piece.text).decode()
        piece.text.decode()


@pytest.fixture
def ab() -> CharLM:
    vocabulary = Vocabulary(
        [b"a", b"b", b"ab", b"\xc3", b"\xa9", b" ", None], end_ids=[6], bos_ids=[6]
    )
    return CharLM(random_lm(vocabulary, 2, 0, window=40))


@pytest.mark.parametrize("text", [b"a", b"ab" * 100, "é".encode() * 3, b"\xa9\xa9a\xc3", b"\xc3"])
def test_one_byte_long_texts_and_what_is_no_utf8(ab: CharLM, text: bytes) -> None:
    """Also beyond the window: what came has the log-probability that a score gives it."""
    table = table_of(Teacher(floats="float32"), ab, row_of(text))
    assert bytes(table["byte"].to_pylist()) == text
    score = ab.score(text)
    came = column(table, "logprobs")[np.arange(len(text)), list(text)]
    assert score.error is not None
    assert np.allclose(column(table, "error"), score.error)
    # Both are approximate: a distribution sums to one, and a score's prefixes are sums.
    assert np.allclose(came, score.logprobs, atol=0.02)
    assert np.abs(np.exp(column(table, "logprobs")).sum(axis=1) - 1).max() < 1e-6


def test_a_long_text_goes_on_where_its_pieces_meet(
    ab: CharLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charwise.tokens.utf8.pieces.__defaults__", (64, 60))
    text = b"ab a b ab " * 40
    job = Job((Source("-", text),), measure=Teacher(floats="float32", preset="accurate"))
    assert job.survey().rows == 7
    batches = [batch for chunk in job.scored(ab) for batch in chunk.outcomes]
    table = pa.Table.from_batches(batches)
    assert bytes(table["byte"].to_pylist()) == text
    assert table["start"].to_pylist() == list(range(len(text)))
    came = column(table, "logprobs")[np.arange(len(text)), list(text)]
    assert abs(came - ab.score(text, preset="accurate").logprobs).max() < 0.02


def test_a_context_comes_before_a_text_and_is_not_written(ab: CharLM) -> None:
    table = table_of(Teacher(floats="float32"), ab, row_of(b"b", b"a"))
    both = table_of(Teacher(floats="float32"), ab, row_of(b"ab"))
    assert table.num_rows == 1
    assert table["logprobs"].to_pylist() == both["logprobs"].to_pylist()[1:]


def test_a_text_without_a_probability_is_a_bad_row_and_others_are_not(ab: CharLM) -> None:
    found = list(Teacher().outcomes(ab, [row_of(b"ab"), row_of(b"xyz"), row_of(b"a")]))
    assert [isinstance(one, BadRow) for one in found] == [False, True, False]
    alone = list(Teacher().outcomes(ab, [row_of(b"ab")]))
    assert found[0].equals(alone[0])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top is 0"),
        ({"top": 257}, "leave it out for all 257"),
        ({"top": 1.5}, "whole number"),
        ({"floats": "float64"}, "use 'float16' or 'float32'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Teacher(**options)


# --- Shards -------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Five chunks, a bad row in them."""
    texts = ["ab " * (n % 4 + 1) for n in range(140)]
    texts[40] = "xyz"
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Job((find(str(path)),), measure=Teacher(top=3, preset="fast"))


def write(job: Job, lm: CharLM, out: Path, done: list[Scored], **options: bool) -> None:
    teacher = job.measure
    format = shards(teacher.metadata(lm, "ab", None), rows=300)
    identity = job.identity(lm, "ab")
    with Output(out, teacher.fields(), identity, 140, format=format, **options) as output:
        for chunk in done[output.done.chunks :]:
            output.append(chunk)
        output.finish({"charwise": "0.1.0"})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_shards_and_what_they_say(job: Job, ab: CharLM, tmp_path: Path) -> None:
    done, out = list(job.scored(ab)), tmp_path / "teacher"
    write(job, ab, out, done)
    assert sorted(path.name for path in out.iterdir()) == [
        "part-00000.parquet",
        "part-00001.parquet",
        "part-00002.parquet",
    ]
    table = parquet.read_table(out)
    assert table.num_rows == sum(
        len(o) for c in done for o in c.outcomes if not isinstance(o, BadRow)
    )
    about = json.loads(parquet.read_schema(out / "part-00000.parquet").metadata[b"charwise"])
    assert about["model"] == "ab"
    assert about["top"] == 3
    assert about["preset"] == "fast"
    assert {"schema", "charwise", "revision", "tolerance", "dtype", "floats", "unit"} <= set(about)
    import pandas

    frame = pandas.read_parquet(out)
    assert len(frame) == table.num_rows
    assert frame["logprobs"][0].dtype == np.float16
    bad = json.loads((tmp_path / "teacher.errors.jsonl").read_text())
    assert bad["row"] == 41


@pytest.fixture
def stop_at() -> Iterator[list[int]]:
    """Stop before the n-th operation that changes what is on the disk; n is in the list."""
    with stopping() as left:
        yield left


@pytest.mark.parametrize("overwrite", [False, True])
def test_stopped_at_every_operation(
    job: Job,
    ab: CharLM,
    tmp_path: Path,
    stop_at: list[int],
    overwrite: bool,
) -> None:
    done = list(job.scored(ab))
    (tmp_path / "whole").mkdir()
    write(job, ab, tmp_path / "whole" / "teacher", done)
    whole = contents(tmp_path / "whole")
    operations, folder = 0, tmp_path / "stopped"
    while True:
        folder.mkdir()
        if overwrite:
            (folder / "teacher").mkdir()
            (folder / "teacher" / "part-00000.parquet").write_bytes(b"an old one")
        stop_at[0] = operations
        try:
            write(job, ab, folder / "teacher", done, overwrite=overwrite)
            break
        except Stopped:
            stop_at[0] = 10**9
            parts = folder / "teacher.parts"
            if overwrite or (parts / "run.json").exists() or not (folder / "teacher").exists():
                write(job, ab, folder / "teacher", done, overwrite=overwrite)
            else:
                with pytest.raises(SettingError, match="is there, and finished"):
                    write(job, ab, folder / "teacher", done)
            assert contents(folder) == whole
            folder.rename(tmp_path / f"done {operations}")
        operations += 1
    stop_at[0] = 10**9
    assert operations > 20
    assert contents(folder) == whole


def test_other_things_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").write_bytes(b"")
    check_folder(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(SettingError, match=r"notes\.txt"):
        check_folder(tmp_path)
    with pytest.raises(SettingError, match="is a file"):
        check_folder(tmp_path / "notes.txt")


def test_nothing_but_bad_rows(ab: CharLM, tmp_path: Path) -> None:
    job = Job((Source("-", b"xyz"),), measure=Teacher(top=3))
    [chunk] = job.scored(ab)
    format = shards(job.measure.metadata(ab, "ab", None))
    out = tmp_path / "teacher"
    with Output(out, job.measure.fields(), {}, 1, format=format) as output:
        output.append(chunk)
        output.finish({"charwise": "0.1.0"})
    assert parquet.read_table(out).num_rows == 0
    assert parquet.read_table(out).column_names == list(job.measure.fields())
