"""The JSON-Schema-Test-Suite against `constraints.json_schema`.

    pip download --no-deps --no-binary jsonschema jsonschema==4.26.0
    tar xzf jsonschema-4.26.0.tar.gz
    python benchmarks/json_schema_suite.py jsonschema-4.26.0/json/tests/draft2020-12

The source package of `jsonschema` carries the suite. For each of its files the table counts:

    schemas   the schemas of the file
    refused   those that `json_schema` refuses, with a message
    valid     of the valid instances of the others, those that can be written
    invalid   of the invalid ones, those that are accepted; there should be none

An instance is written with `json.dumps`, and with its properties in every order if it is short.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from charwise import constraints
from charwise.constraints.constraint import member
from charwise.errors import ConstraintError

#: Orders of the properties of an object that are tried.
ORDERS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path, help="the folder draft2020-12 of the suite")
    parser.add_argument("--list", action="store_true", help="name what is not as the suite says")
    args = parser.parse_args()
    table = Table(title=f"JSON-Schema-Test-Suite, {args.suite.name}")
    table.add_column("file")
    for name in ("schemas", "refused", "valid", "invalid"):
        table.add_column(name, justify="right")
    total: Counter[str] = Counter()
    folders = [args.suite, args.suite / "optional" / "format"]
    for path in [path for folder in folders for path in sorted(folder.glob("*.json"))]:
        found = counted(path, args.list)
        total += found
        table.add_row(path.relative_to(args.suite).with_suffix("").as_posix(), *cells(found))
    table.add_section()
    table.add_row("all", *cells(total))
    Console().print(table)


def cells(found: Counter[str]) -> list[str]:
    """The four columns of a row."""
    return [
        f"{found['schemas']:,}",
        f"{found['refused']:,}",
        f"{found['valid, accepted']:,} of {found['valid']:,}",
        f"{found['invalid, accepted']:,} of {found['invalid']:,}",
    ]


def counted(path: Path, tell: bool) -> Counter[str]:
    """What becomes of the schemas and instances of a file."""
    found: Counter[str] = Counter()
    for group in json.loads(path.read_text("utf-8")):
        found["schemas"] += 1
        try:
            constraint = constraints.json_schema(group["schema"])
        except ConstraintError as error:
            found["refused"] += 1
            if tell:
                print(f"{path.stem}: {group['description']}: refused: {error}")
            continue
        for test in group["tests"]:
            kind = "valid" if test["valid"] else "invalid"
            accepted = any(accepts(constraint, text) for text in written(test["data"]))
            found[kind] += 1
            found[f"{kind}, accepted"] += accepted
            if tell and accepted != test["valid"]:
                print(f"{path.stem}: {group['description']}: {kind}: {json.dumps(test['data'])}")
    return found


def accepts(constraint: constraints.Constraint, text: str) -> bool:
    """Whether a text satisfies a constraint; one that is too complex accepts nothing."""
    try:
        return member(constraint, text.encode())
    except (ConstraintError, UnicodeEncodeError):
        return False


def written(data: Any) -> Iterator[str]:
    """JSON texts of a value."""
    if isinstance(data, dict):
        for items in islice(permutations(data.items()), ORDERS):
            yield json.dumps(dict(items), ensure_ascii=False)
    else:
        yield json.dumps(data, ensure_ascii=False)


if __name__ == "__main__":
    main()
