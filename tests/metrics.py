"""The size of the code: `make metrics` prints the counts that should not grow.

Modules are files other than `__init__.py`. Definitions are public functions and classes at the top
of a module. A constant is a name in capitals, bound to a number at the top of a module. A function
is wide with six parameters or more, `self` and `cls` apart.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: The number of parameters from which a public function counts as wide.
WIDE = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_number(value: ast.expr | None) -> bool:
    """Whether an expression is a number, or arithmetic with nothing but numbers."""
    match value:
        case ast.Constant(value=number):
            return isinstance(number, int | float) and not isinstance(number, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
    return False


def bindings(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target of an assignment with its value; tuples are taken apart."""
    match statement:
        case ast.AnnAssign(target=target, value=value):
            yield target, value
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=True)
                else:
                    yield target, value


def constants(module: ast.Module) -> list[str]:
    """Return the names in capitals that a module binds to numbers."""
    return [
        target.id
        for statement in module.body
        for target, value in bindings(statement)
        if isinstance(target, ast.Name) and target.id.strip("_").isupper() and is_number(value)
    ]


def definitions(module: ast.Module) -> list[str]:
    """Return the names of the public functions and classes at the top of a module."""
    kinds = Function | ast.ClassDef
    return [node.name for node in module.body if isinstance(node, kinds) and is_public(node.name)]


def wide(module: ast.Module) -> list[str]:
    """Return the public functions and methods with `WIDE` parameters or more."""
    classes = [n for n in ast.walk(module) if isinstance(n, ast.ClassDef) and is_public(n.name)]
    found = []
    for holder in (module, *classes):
        for node in holder.body:
            if not isinstance(node, Function) or not (
                is_public(node.name) or node.name == "__init__"
            ):
                continue
            arguments = node.args
            names = [
                parameter.arg
                for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            ]
            if len([name for name in names if name not in ("self", "cls")]) >= WIDE:
                found.append(f"{getattr(holder, 'name', '')}.{node.name}".lstrip("."))
    return found


def lines(folder: Path) -> int:
    """Return the number of lines of all Python files in a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the size of the code.")
    parser.add_argument("source", nargs="?", type=Path, default=ROOT / "src" / "charwise")
    parser.add_argument("tests", nargs="?", type=Path, default=ROOT / "tests")
    arguments = parser.parse_args()
    paths = sorted(arguments.source.rglob("*.py"))
    trees = [ast.parse(path.read_text("utf-8")) for path in paths]
    counts = {
        "lines": lines(arguments.source),
        "modules": sum(path.name != "__init__.py" for path in paths),
        "public definitions": sum(len(definitions(tree)) for tree in trees),
        "numeric constants": sum(len(constants(tree)) for tree in trees),
        "wide public functions": sum(len(wide(tree)) for tree in trees),
        "test lines": lines(arguments.tests),
    }
    for name, count in counts.items():
        print(f"{count:7,}  {name}")


if __name__ == "__main__":
    main()
