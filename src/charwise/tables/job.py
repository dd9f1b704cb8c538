"""A whole job: its files of rows, their output, and everything that the output depends on.

The last digits of a text's numbers may differ with the texts that share its batches. So rows are
scored in chunks that depend on the input alone, and that resumption and clusters keep whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING

from charwise.errors import CharwiseError, SettingError
from charwise.tables.measure import Measure
from charwise.tables.output import Identity, Progress, ScoredChunk
from charwise.tables.readers import Source
from charwise.tables.rows import PARTS, BadRow, Columns, Stimulus
from charwise.tables.warnings import InputWarnings

if TYPE_CHECKING:
    from charwise.char_lm import CharLM


@dataclass(frozen=True)
class Job:
    """Files, their columns, and the measure of their texts."""

    sources: tuple[Source, ...]
    columns: Columns = field(default_factory=Columns)
    measure: Measure = field(default_factory=Measure)
    strict: bool = False  # a row with a probable mistake in it is a bad row

    def rows(self, warn: Callable[[BadRow], object] | None = None) -> Iterator[Stimulus | BadRow]:
        """Yield the rows of all files, and pass probable mistakes in good ones to `warn`."""
        warnings = InputWarnings(self.columns)
        for source in self.sources:
            for row in source.rows(self.columns, regions=self.measure.per == "region"):
                mistakes = warnings.of(row) if isinstance(row, Stimulus) else iter(())
                if self.strict:
                    row = next(mistakes, row)
                elif warn is not None:
                    for mistake in mistakes:
                        warn(mistake)
                yield row

    def chunks(self) -> Iterator[list[Stimulus | BadRow]]:
        """Yield the rows in chunks, of 32 rows or `measure.chunk_bytes` bytes."""
        chunk: list[Stimulus | BadRow] = []
        for row in self.rows():
            chunk.append(row)
            if len(chunk) == 32 or sum(each.size for each in chunk) >= self.measure.chunk_bytes:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def survey(
        self, *, stop: bool = False, warn: Callable[[BadRow], object] | None = None
    ) -> Progress:
        """Read all files once, and return how much there is to do.

        `stop` raises at the first bad row; `warn` is called with each probable mistake.
        """
        total = Progress()
        for row in self.rows(warn):
            if stop and isinstance(row, BadRow):
                raise SettingError(str(row))
            total.rows += 1
            total.size += row.size
        if not total.rows:
            names = ", ".join(source.name for source in self.sources)
            raise SettingError(f"there are no rows to score in {names}.")
        return total

    def identity(self, lm: CharLM, model: str) -> Identity:
        """Return all that the output depends on; `model` is the name that `lm` was loaded by."""
        facts: Identity = {
            f"file {number}": f"{source.name} with SHA-256 {source.digest()}"
            for number, source in enumerate(self.sources, 1)
        }
        facts |= {f"--{part}-column": getattr(self.columns, part) for part in PARTS}
        dialect, info = self.sources[0].dialect, lm.info()
        return {
            **facts,
            "--keep-column": ", ".join(self.columns.copied) or None,
            "--delimiter": dialect.delimiter,
            "--encoding": dialect.encoding,
            "--strict": "given" if self.strict else None,
            **self.measure.settings(),
            "columns": ", ".join(self.measure.fields(self.columns.copied)),
            "--model": model,
            **{key: info[key] for key in ("engine", "device", "dtype", "path") if key in info},
            "what the model says": _probe(lm),
            "charwise": version("charwise"),
        }

    def scored(self, lm: CharLM, skip: int = 0) -> Iterator[ScoredChunk]:
        """Score the chunks, without the first `skip`, in order."""
        for chunk in islice(self.chunks(), skip, None):
            yield self.measure.scored(lm, chunk)


def _probe(lm: CharLM) -> list[float]:
    """Numbers that tell models apart: −log p of the bytes of a text, nats; none if it has none."""
    text = "the name of the first man in the list is not known.\n"
    try:
        return [round(float(-logprob), 6) for logprob in lm.score(text, preset="fast").logprobs]
    except CharwiseError:
        return []
