"""A report as a table: on the terminal, in Markdown, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from charwise.evaluation.bench import Report, Result
from charwise.evaluation.distance import Mean

#: Column → attribute of `Result`, and format of a number.
_COLUMNS = {
    "JS distance": ("js_distance", ".2e"),
    "|ΔS| bits": ("surprisal_error", ".2e"),
    "bits/byte": ("bits_per_byte", ".4f"),
    "bytes/s": ("bytes_per_second", ",.0f"),
    "contexts/byte": ("contexts_per_byte", ".2f"),
}


def to_table(report: Report) -> Table:
    """For the terminal: each interval under its mean.

    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> table = to_table(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,)))
    >>> print(*(str(column.header) for column in table.columns), sep=", ")
    method, JS distance, |ΔS| bits, bits/byte, bytes/s, contexts/byte
    """
    table = Table("method", box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for result in report.results:
        cells = []
        for value, interval in _cells(result):
            cells.append(Text(value).append(f"\n{interval}" if interval else "", style="dim"))
        table.add_row(_name(report, result), *cells)
    return table


def to_markdown(report: Report) -> str:
    r"""A Markdown table; intervals in brackets.

    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> print(to_markdown(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,))))
    | method | JS distance | \|ΔS\| bits | bits/byte | bytes/s | contexts/byte |
    |---|---|---|---|---|---|
    | beam K=2 |  |  | 2.0000 (1.5000, 2.5000) |  |  |
    """
    lines = [["method", *(column.replace("|", r"\|") for column in _COLUMNS)]]
    for result in report.results:
        cells = [f"{value} {interval}".strip() for value, interval in _cells(result)]
        lines.append([_name(report, result), *cells])
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * (1 + len(_COLUMNS)) + "|", *rows])


def to_csv(report: Report) -> str:
    """Full precision, a row a method; `Result.row` has the columns, empty where there is nothing.

    >>> result = Result("beam K=2", "beam", bits_per_byte=Mean(2.0, 1.5, 2.5))
    >>> print(to_csv(Report("m", "f", {}, 9, 2, "beam K=128", 1, (result,))).splitlines()[1])
    beam K=2,beam,,,,,,,2.0,1.5,2.5,,,,,
    """
    rows = [result.row() for result in report.results]
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def failures(report: Report) -> list[str]:
    """A sentence for each method that has no numbers.

    >>> failures(Report("m", "f", {}, 9, 2, "r", 1, (Result("beam K=1", "beam", failed="empty."),)))
    ['beam K=1: empty.']
    """
    return [f"{result.method}: {result.failed}" for result in report.results if result.failed]


def _name(report: Report, result: Result) -> str:
    return result.method + (" (reference)" if result.method == report.reference else "")


def _cells(result: Result) -> Iterator[tuple[str, str]]:
    """Each number and its interval, as text; empty where there is none."""
    for attribute, form in _COLUMNS.values():
        value = getattr(result, attribute)
        if isinstance(value, Mean):
            low, high = format(value.low, form), format(value.high, form)
            # Of one timed walk there is no interval.
            interval = f"({low}, {high})" if value.low < value.high else ""
            yield format(value.value, form), interval
        else:
            yield ("" if value is None else format(value, form)), ""
