"""Teacher tables: a model's next-byte distributions along texts, for students to learn from.

A row for each byte: where it is, what came, and the log-probabilities of what might have come,
given all before it. They are those of the rounds over the known text, one pass for all bytes, as
the entropies of `CharLM.score` are. docs/export.md is the reference of the columns.

Stored are log-probabilities, not probabilities: half precision has no number between 0 and 6e-8,
where most of the 257 lie, while the logs of all of them are there, with eleven binary digits
(`rounded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from charwise.errors import CharwiseError, ModelError, SettingError, check_count
from charwise.tables.output import Identity
from charwise.tables.rows import BadRow, Stimulus
from charwise.tokens.utf8 import pieces

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.surprisal.score import Score

Floats = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True)
class _Piece(Stimulus):
    """A piece of a text, as a row: `start` is where in the text it begins."""

    start: int = 0


@dataclass(frozen=True)
class Teacher:
    """The columns that are written for every byte.

    Attributes:
        top: so many symbols of the greatest probability, and the sum of the others; None for all
            257.
        floats: the type of log-probabilities and errors.
        preset, tolerance: how much to spend, see `CharLM.score`; of neither, the default.

    >>> list(Teacher(top=16).fields())
    ['file', 'row', 'item', 'start', 'byte', 'error', 'symbols', 'logprobs', 'rest']
    >>> list(Teacher().fields())[5:]
    ['error', 'logprobs']
    """

    top: int | None = None
    floats: Floats = "float16"
    preset: str | None = None
    tolerance: float | None = None

    #: Bytes of text after which a chunk ends: their distributions are held at once.
    chunk_bytes: ClassVar[int] = 2**16

    #: What is scored.
    noun: ClassVar[str] = "pieces of texts"

    #: Whether the rows need their regions.
    by_regions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.top is not None:
            check_count("top", self.top, 1)
            if self.top > 256:
                raise SettingError(f"top is {self.top}: at most 256, or leave it out for all 257.")
        if self.floats not in ("float16", "float32"):
            raise SettingError(f"floats is {self.floats!r}: use 'float16' or 'float32'.")

    def fields(self) -> dict[str, Any]:
        """The columns, with their Arrow types; docs/export.md says what each is."""
        import pyarrow as pa

        number = pa.float16() if self.floats == "float16" else pa.float32()
        place = {"file": pa.string(), "row": pa.int64(), "item": pa.string(), "start": pa.int64()}
        doubt = {"byte": pa.uint8(), "error": pa.float32()}
        if self.top is None:
            return {**place, **doubt, "logprobs": pa.list_(number, 257)}
        some = {"symbols": pa.list_(pa.uint16(), self.top), "logprobs": pa.list_(number, self.top)}
        return {**place, **doubt, **some, "rest": number}

    def settings(self) -> Identity:
        """Return the settings that the output depends on besides the effort, by their options."""
        return {"--top": None if self.top is None else str(self.top), "--floats": self.floats}

    def pieces(self, row: Stimulus) -> Iterator[Stimulus]:
        """Yield a text in pieces, each with the text before it, its context included."""
        for start, text, context in pieces(row.text):
            given = row.context + context if start == len(context) else context
            yield _Piece(row.place, text, given, row.item, column=row.column, start=start)

    def outcomes(
        self, lm: CharLM, chunk: Sequence[Stimulus | BadRow]
    ) -> Iterator[Sequence[Any] | BadRow]:
        """Yield a batch of rows for every piece of a chunk, or its fault.

        Raises:
            ModelError: the model failed, which is not the fault of a text.
        """
        good = [row for row in chunk if isinstance(row, Stimulus)]
        try:
            found = iter(self._scores(lm, good))
        except CharwiseError:  # one of them is to blame: each by itself
            found = iter(())
        for row in chunk:
            if isinstance(row, BadRow):
                yield row
                continue
            try:
                score = next(found, None) or self._scores(lm, [row])[0]
                yield self._batch(row, score)
            except (ModelError, SettingError):
                raise
            except CharwiseError as error:
                yield BadRow(row.place, row.column, str(error))

    def largest_error(self, outcomes: Sequence[Any]) -> float:
        """Return nothing of note: every row of a teacher's table has its error."""
        return 0.0

    def _scores(self, lm: CharLM, rows: Sequence[Stimulus]) -> list[Score]:
        """The scores of some rows, with the distribution before every byte."""
        given = self.preset is not None or self.tolerance is not None
        return lm.scores_with_rows(
            [row.text for row in rows],
            contexts=[row.context for row in rows],
            preset=self.preset if given else "default",
            tolerance=self.tolerance,
        )

    def _batch(self, row: Stimulus, score: Score) -> Any:
        """The rows of a piece, as a batch of Arrow."""
        import pyarrow as pa

        assert score.distributions is not None
        size = len(score.raw)
        first = row.start if isinstance(row, _Piece) else 0
        fields = self.fields()
        file = row.place.file.encode("utf-8", "backslashreplace").decode()
        columns: dict[str, Any] = {
            "file": [file] * size,
            "row": np.full(size, row.place.number),
            "item": [row.item] * size,
            "start": np.arange(first, first + size),
            "byte": np.frombuffer(score.raw, dtype=np.uint8),
            "error": score.error.astype(np.float32),
            **rounded(score.distributions, self.top, self.floats),
        }
        arrays = [_array(columns[name], kind) for name, kind in fields.items()]
        return pa.record_batch(arrays, schema=pa.schema(list(fields.items())))

    def metadata(self, lm: CharLM, model: str, revision: str | None) -> dict[str, Any]:
        """Return the metadata of the files: see docs/export.md."""
        info = lm.info()
        return {
            "schema": 1,  # the version of the columns and their meaning
            "charwise": version("charwise"),
            "model": model,
            "revision": revision,
            "vocabulary": info["vocabulary"],
            "window": info["window"],
            "preset": None if self.tolerance is not None else self.preset or "default",
            "tolerance": self.tolerance,
            "dtype": info.get("dtype"),
            "engine": info.get("engine"),
            "floats": self.floats,
            "top": self.top,
            "unit": "nats",
        }


def _array(values: Any, kind: Any) -> Any:
    """A column, flat or `[n, k]`, as an array of Arrow."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(values.reshape(-1), type=kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return pa.array(values, type=kind)


def rounded(
    rows: NDArray[np.float64], top: int | None = None, floats: Floats = "float16"
) -> dict[str, NDArray[Any]]:
    """`[n, 257]` distributions as they are stored: rounded log-probabilities, nats.

    Returns:
        logprobs: `[n, 257]`, or with `top` `[n, top]` of the likeliest, those first; of equal ones
            the lower symbol.
        symbols: with `top`, which these are.
        rest: with `top`, `[n]` log of the sum of all others.

    >>> rows = np.full((1, 257), 0.25 / 255)
    >>> rows[0, [97, 98]] = 0.5, 0.25
    >>> found = rounded(rows, top=2)
    >>> found["symbols"].tolist(), found["logprobs"].tolist(), found["rest"].tolist()
    ([[97, 98]], [[-0.693359375, -1.38671875]], [-1.38671875])
    """
    with np.errstate(divide="ignore"):
        if top is None:
            return {"logprobs": np.log(rows).astype(floats)}
        symbols = np.argsort(-rows, axis=1, kind="stable")
        inside, outside = symbols[:, :top], symbols[:, top:]
        others = np.take_along_axis(rows, outside[:, ::-1], axis=1).sum(axis=1)
        return {
            "symbols": inside.astype(np.uint16),
            "logprobs": np.log(np.take_along_axis(rows, inside, axis=1)).astype(floats),
            "rest": np.log(others).astype(floats),
        }
