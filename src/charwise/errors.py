"""Every error that charwise raises on purpose: the fault, its place, and a way out."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral, Real
from typing import Any, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def shorter(text: str, most: int = 80) -> str:
    """Return a text, cut short in the middle to about `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def quantity(n: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is 1."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def reason(message: str, most: int = 240) -> str:
    """Return a library's complaint in one line, control characters escaped, and cut short."""
    line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in message.strip())
    return shorter(line, most)


def quote(value: object, most: int = 80) -> str:
    """Return the `repr` of a value for a message, cut short in the middle."""
    try:
        return shorter(repr(value), most)
    except Exception:  # an int of very many digits, or what cannot be shown at all
        return f"<{type(value).__name__}>"


class CharwiseError(Exception):
    """The base of all errors below; catch it to catch them all."""

    def __init__(self, message: str = "", *others: object) -> None:
        super().__init__(shorter(message, 1000), *others)


class SettingError(CharwiseError, ValueError):
    """A value that cannot be used: of a setting, a file, a span, a template, or an output."""


class VocabularyError(CharwiseError, ValueError):
    """A tokenizer that charwise cannot use, or a text that its tokens cannot spell.

    `position` is the offset, in bytes, of the first byte that cannot be spelled.
    """

    def __init__(self, message: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class ConstraintError(CharwiseError, ValueError):
    """A constraint that is wrong, that cannot be satisfied, or a byte that it does not allow.

    `position` is the offset of that byte in what was given.
    """

    def __init__(self, message: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class ZeroProbabilityError(CharwiseError, ValueError):
    """A text that cannot be conditioned on, since no context that was kept spells it.

    `dropped` is the probability that a beam or a threshold left out before; with 0 the text itself
    has probability zero, and no setting helps.
    """

    def __init__(self, message: str = "", dropped: float = 0.0) -> None:
        super().__init__(message)
        self.dropped = dropped


class LimitError(CharwiseError, ValueError):
    """A text longer than the model's window, or a search that needs more contexts than allowed.

    `found` has the results of such a search until then.
    """

    def __init__(self, message: str = "", found: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.found = found


class ModelError(CharwiseError, RuntimeError):
    """A model that is not there, that does not load, or an engine or a server that fails."""


class MissingExtraError(CharwiseError, ImportError):
    """An optional dependency that is not installed: the message and `extra` say what brings it."""

    def __init__(self, message: str = "", extra: str = "") -> None:
        super().__init__(message)
        self.extra = extra


#: An extra → the modules that it brings, and that may be missing.
EXTRAS = {
    "transformers": ("torch", "transformers", "safetensors"),
    "llama-cpp": ("llama_cpp",),
    "constraints": ("llguidance", "jsonschema"),
    "plots": ("matplotlib",),
    "serve": ("fastapi", "prometheus_client", "uvicorn"),
    "gateway": ("starlette", "httpx"),
    "lsp": ("pygls", "pydantic"),
    "tables": ("pandas", "pyarrow"),
    "covariates": ("wordfreq",),
    "ray": ("ray",),
    "lm-eval": ("lm_eval",),
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra of a missing module; None for another's module."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return MissingExtraError(f"{module} is not installed. Run: {_command(extra)}", extra)
    return None


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error of Python, the system or torch says that memory does not suffice."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(
        words in message for words in ("out of memory", "allocate memory")
    )


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise `MissingExtraError` for an import within that fails: some part needs an extra."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{what}: {_command(extra)}. ({error})", extra) from error


def _command(extra: str) -> str:
    """Return the command that brings an extra; an environment without pip is one of uv."""
    if find_spec("pip"):
        return f"pip install 'charwise[{extra}]'"
    return f"uv pip install 'charwise[{extra}]', or uvx --from 'charwise[{extra}]' charwise"


def impossible(text: bytes, missing: float = 0.0) -> ZeroProbabilityError:
    """Return the error for a text that nothing evaluated spells, though `missing` was left out."""
    here = f"{text[-20:]!r} ({len(text)} bytes)"
    message = (
        f"no context that was kept goes on to {here}; up to {missing:.2g} of the probability was "
        "left out before. Use the preset 'accurate', or an Effort of more rounds."
        if missing > 0
        else f"the model gives the text ending in {here} probability zero, so nothing can be "
        "conditioned on it. Check the text, or whether the vocabulary can spell it; with a coarse "
        "preset, try the preset 'accurate'."
    )
    return ZeroProbabilityError(message, max(missing, 0.0))


def each_or_error(
    run: Callable[[Sequence[_T]], Sequence[_R]],
    items: Sequence[_T],
    errors: tuple[type[CharwiseError], ...],
) -> list[_R | CharwiseError]:
    """Return the result of each item, all from one call; where that fails, each from its own.

    An item that fails by itself has its error as its result, and costs the others nothing.
    """
    try:
        return list(run(items))
    except errors as error:
        if len(items) == 1:
            return [error]
    return [each_or_error(run, [item], errors)[0] for item in items]


def items(value: object) -> list[Any] | None:
    """Return the items of a list or the like; None of a text, a mapping, and a thing without."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        return list(value)  # type: ignore[call-overload, no-any-return]
    except TypeError:  # tensors without a dimension are iterable, until one tries
        return None


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a setting that is no whole number, too small, or too large, by `SettingError`."""
    count = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if count is None or count < least or (most is not None and count > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most:,}"
        raise SettingError(f"{name} is {quote(value)}: it must be a whole number, {bounds}.")


def check_number(name: str, value: object, low: float, high: float = sys.float_info.max) -> None:
    """Refuse a setting that is no number in [low, high], by `SettingError`."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= high:  # type: ignore[operator]
        bounds = f"from {low:g} to {high:g}" if high < 1e300 else f"{low:g} or more"
        raise SettingError(f"{name} is {quote(value)}: it must be a number, {bounds}.")


def check_share(name: str, value: object) -> None:
    """Refuse a setting that is no share of the probability in (0, 1], by `SettingError`."""
    check_number(name, value, 0.0, 1.0)
    if not value:
        raise SettingError(f"{name} is {value}: it must be above 0.")


def check_known(names: Mapping[str, object], options: Collection[str]) -> None:
    """Refuse the first keyword that a call does not have, by `TypeError`: which may be meant?"""
    unknown = sorted(names.keys() - set(options))
    if not unknown:
        return
    name, meant = unknown[0], "."
    if name in ("max_new_tokens", "max_tokens", "max_length"):
        meant = ": lengths are in bytes, max_new_bytes=…"
    elif near := get_close_matches(name, options, n=1):
        meant = f": is it {near[0]!r}?"
    raise TypeError(f"unexpected keyword {name!r}{meant}")
