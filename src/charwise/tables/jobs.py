"""A whole job: files of rows in, what comes out for each, and what the output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from charwise.errors import CharwiseError, InputError
from charwise.tables.chunks import Measure, chunks, fields, size_of
from charwise.tables.output import Identity
from charwise.tables.rows import BadRow, Columns, Stimulus
from charwise.tables.sources import Source

if TYPE_CHECKING:
    from charwise.char_lm import CharLM

#: What models are told apart by: the surprisal of every byte of this.
_PROBE = "the name of the first man in the list is not known.\n"


class Extent(NamedTuple):
    """How much a job is: rows, and bytes of text that a model reads."""

    rows: int
    size: int


class Scored(NamedTuple):
    """A chunk that is done: records or the fault of every row, and the bytes that were read."""

    outcomes: list[Sequence[Any] | BadRow]
    size: int


class Asked(Protocol):
    """What is asked of every text; it travels to the workers of a cluster."""

    def outcomes(
        self, lm: CharLM, chunk: Sequence[Stimulus | BadRow]
    ) -> Iterator[Sequence[Any] | BadRow]:
        """What comes out for every row of a chunk, or what is wrong with it.

        Raises:
            EngineError: the model failed, which is not the fault of a row.
        """
        ...


class Work(Protocol):
    """What a cluster divides: chunks, and what is asked of their texts."""

    @property
    def measure(self) -> Asked:
        """What is asked."""
        ...

    def chunks(self, skip: int = 0) -> Iterator[list[Stimulus | BadRow]]:
        """The rows in chunks, without the first `skip` of those."""
        ...


@dataclass(frozen=True)
class Job:
    """Files, what their columns hold, and what is asked of their texts.

    >>> job = Job((Source("-", b"To |be"),), measure=Measure(per="region"))
    >>> job.survey(), [row.regions for row in job.rows()]
    (Extent(rows=1, size=5), [((0, 3), (3, 5))])
    """

    sources: tuple[Source, ...]
    columns: Columns = field(default_factory=Columns)
    measure: Measure = field(default_factory=Measure)

    def fields(self) -> dict[str, type]:
        """The columns of the output; see `chunks.fields`."""
        return fields(self.measure, self.columns.kept)

    def rows(self) -> Iterator[Stimulus | BadRow]:
        """The rows of all files, in order.

        Raises:
            InputError: a file that cannot be used.
        """
        for source in self.sources:
            yield from source.rows(self.columns, regions=self.measure.per == "region")

    def chunks(self, skip: int = 0) -> Iterator[list[Stimulus | BadRow]]:
        """The rows in chunks, without the first `skip` of those."""
        return islice(chunks(self.rows()), skip, None)

    def survey(self, *, stop: bool = False) -> Extent:
        """Read all files once, so that what is wrong with them is found before any work is done.

        Args:
            stop: raise at the first bad row.

        Raises:
            InputError: a file that cannot be used, or has no rows; a bad row.
        """
        return survey(self.rows(), self.sources, stop=stop)

    def identity(self, lm: CharLM, model: str) -> Identity:
        """All that the output depends on.

        Args:
            model: the name that the model was loaded by.
        """
        tolerance = self.measure.tolerance
        return {
            **input_facts(self.sources, self.columns),
            "--per": self.measure.per,
            "--convention": self.measure.convention,
            "--preset": self.measure.preset or ("default" if tolerance is None else None),
            "--tolerance": None if tolerance is None else repr(tolerance),
            "--entropy": self.measure.entropy,
            **model_facts(lm, model),
        }

    def scored(self, lm: CharLM, skip: int = 0) -> Iterator[Scored]:
        """Score the chunks, without the first `skip`, in order.

        Raises:
            InputError: a file that changed, and cannot be used any more.
            EngineError: the model failed.
        """
        return scored(self, lm, skip)


def survey(
    rows: Iterable[Stimulus | BadRow], sources: Sequence[Source], *, stop: bool = False
) -> Extent:
    """Count rows that are read from sources; see `Job.survey`."""
    count = size = 0
    for row in rows:
        if stop and isinstance(row, BadRow):
            raise InputError(str(row))
        count += 1
        size += size_of(row)
    if not count:
        names = ", ".join(source.name for source in sources)
        raise InputError(f"there are no rows to score in {names}.")
    return Extent(count, size)


def input_facts(sources: Sequence[Source], columns: Columns) -> Identity:
    """What an output depends on of its input."""
    facts: Identity = {
        f"file {number}": f"{source.name} with SHA-256 {source.digest()}"
        for number, source in enumerate(sources, 1)
    }
    for part in ("text", "item", "context", "regions"):
        facts[f"--{part}-column"] = getattr(columns, part)
    facts["--keep-column"] = ", ".join(columns.kept) or None
    return facts


def model_facts(lm: CharLM, model: str) -> Identity:
    """What an output depends on of the model, which was loaded by this name."""
    info = lm.info()
    return {
        "--model": model,
        **{key: info[key] for key in ("engine", "device", "dtype", "path") if key in info},
        "what the model says": _probe(lm),
        "charwise": version("charwise"),
    }


def scored(work: Work, lm: CharLM, skip: int = 0) -> Iterator[Scored]:
    """The outcomes of the chunks after the first `skip`, in order."""
    for chunk in work.chunks(skip):
        yield score_one(lm, chunk, work.measure)


def score_one(lm: CharLM, chunk: list[Stimulus | BadRow], asked: Asked) -> Scored:
    """Score one chunk."""
    return Scored(list(asked.outcomes(lm, chunk)), sum(map(size_of, chunk)))


def _probe(lm: CharLM) -> list[float]:
    """−log p of the bytes of a text, nats; nothing if the model cannot read it."""
    try:
        return [round(float(-logprob), 6) for logprob in lm.score(_PROBE, preset="fast").logprobs]
    except CharwiseError:
        return []
