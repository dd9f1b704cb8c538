"""Every error that charwise raises on purpose: the fault, its place, and a way out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import numpy as np

#: Characters of a message; what is longer is cut short in its middle.
_LONGEST = 1000


def shorter(text: str, most: int = 80) -> str:
    """A text, cut short in the middle.

    >>> shorter("0123456789", most=4)
    '01…89'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def one_line(text: str) -> str:
    """A text whose line breaks and other control characters are escaped.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def reason(message: str, most: int = 240) -> str:
    """Return a library's complaint, in one line and cut short.

    >>> reason("a\\nb", most=4)
    'a\\\\nb'
    """
    return shorter(one_line(message.strip()), most)


class CharwiseError(Exception):
    """The base of all errors below; catch it to catch them all."""

    def __init__(self, message: str = "", *others: object) -> None:
        super().__init__(shorter(message, _LONGEST), *others)


class SettingError(CharwiseError, ValueError):
    """A value that cannot be used: of a setting, a file, a span, a template, or an output.

    `number` says which of several is wrong, counted from 0.
    """

    def __init__(self, message: str = "", number: int = 0) -> None:
        super().__init__(message)
        self.number = number


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
    """A text longer than the model's window, or a search that needs more contexts than it may.

    `found` has the results of such a search until then.
    """

    def __init__(self, message: str = "", found: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.found = found


class ModelError(CharwiseError, RuntimeError):
    """A model that is not there, that does not load, or an engine or a server that fails."""


class MissingExtraError(CharwiseError, ImportError):
    """An optional dependency that is not installed; the message says which extra brings it."""


#: A module that may be missing → the extra that brings it.
_EXTRAS = {
    "torch": "transformers",
    "transformers": "transformers",
    "safetensors": "transformers",
    "llama_cpp": "llama-cpp",
    "llguidance": "constraints",
    "jsonschema": "constraints",
    "matplotlib": "plots",
    "fastapi": "serve",
    "prometheus_client": "serve",
    "uvicorn": "serve",
    "starlette": "gateway",
    "pygls": "lsp",
    "pydantic": "lsp",
    "pandas": "tables",
    "pyarrow": "tables",
    "ray": "ray",
    "httpx": "gateway",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra of a missing module; None for another's module.

    >>> print(missing_extra(ModuleNotFoundError("No module named 'torch'", name="torch")))
    torch is not installed. Run: pip install 'charwise[transformers]'
    """
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    extra = _EXTRAS[module]
    return MissingExtraError(f"{module} is not installed. Run: pip install 'charwise[{extra}]'")


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise `MissingExtraError` for an import within that fails: some part needs an extra.

    >>> with needs("tables", "tables need pandas"):
    ...     raise ImportError("none here")
    Traceback (most recent call last):
    charwise.errors.MissingExtraError: tables need pandas: pip install 'charwise[tables]'.
    (none here)
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{what}: pip install 'charwise[{extra}]'. ({error})") from error


def shown(given: object, most: int = 80) -> str:
    """Return the `repr` of a value for a message, cut short in the middle.

    >>> shown("naï"), shown("a" * 90, most=9)
    ("'naï'", "'aaa…aaa'")
    """
    try:
        whole = repr(given)
    except Exception:  # an int of very many digits, or what cannot be shown at all
        return f"<{type(given).__name__}>"
    return shorter(whole, most)


def impossible(text: bytes, missing: float) -> ZeroProbabilityError:
    """The error for a text that nothing evaluated can spell, though `missing` was left out.

    >>> impossible(b"ab", missing=0.0).dropped, impossible(b"ab", missing=0.1).dropped
    (0.0, 0.1)
    """
    if missing <= 0.0:
        return zero_probability(text)
    return ZeroProbabilityError(
        f"no context that was kept goes on to {text[-20:]!r} ({len(text)} bytes); up to "
        f"{missing:.2g} of the probability was left out before. Use the preset 'accurate', or an "
        "Effort with a smaller theta.",
        missing,
    )


def zero_probability(text: bytes) -> ZeroProbabilityError:
    """The error for a text that cannot be conditioned on.

    >>> str(zero_probability(b"ab"))[:42]
    "the model gives the text ending in b'ab' ("
    """
    return ZeroProbabilityError(
        f"the model gives the text ending in {text[-20:]!r} ({len(text)} bytes) probability zero, "
        "so nothing can be conditioned on it. Check the text, or whether the vocabulary can "
        "spell it; with a coarse preset, try the preset 'accurate'."
    )


def items(given: object) -> list[Any] | None:
    """Return the items of a list or the like; None of a text, a mapping, and a thing without items.

    >>> items(("a", "b")), items("ab"), items(3)
    (['a', 'b'], None, None)
    """
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        return None
    try:
        return list(given)  # type: ignore[call-overload, no-any-return]
    except TypeError:  # tensors without a dimension are iterable, until one tries
        return None


def check_flag(name: str, value: object) -> bool:
    """A switch as Python has it; NumPy's are taken.

    Raises:
        SettingError: what was given, and what is wanted.

    >>> check_flag("ended", True)
    True
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise SettingError(f"{name} is {shown(value)}: it must be True or False.")


def check_count(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse a value that is no whole number, too small, or too large.

    Raises:
        SettingError: what was given, and what is wanted.

    >>> check_count("max_tokens", 16, 1)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name} is {shown(value)}: it must be a whole number.")
    count = int(value)
    if count < least:
        raise SettingError(f"{name} is {shown(count)}: it must be {least} or more.")
    if most is not None and count > most:
        raise SettingError(f"{name} is {shown(count)}: it must be {most:,} or less.")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Refuse a value that is no number, or outside [low, high].

    Raises:
        SettingError: what was given, and what is wanted.

    >>> check_number("coverage", 0.5, 0.0, 1.0)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} is {shown(value)}: it must be a number.")
    try:
        number = float(value)
    except OverflowError:
        raise SettingError(f"{name} is {shown(value)}: no number can be so large.") from None
    if not low <= number <= high:
        most = f"lie in [{low:g}, {high:g}]" if math.isfinite(high) else f"be {low:g} or more"
        raise SettingError(f"{name} is {value}: it must {most}.")


def check_share(name: str, value: object) -> None:
    """Refuse a share of the probability that is outside (0, 1].

    Raises:
        SettingError: what was given, and what is wanted.

    >>> check_share("coverage", 0.5)
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value <= 1:
        raise SettingError(f"{name} is {shown(value)}: it must lie in (0, 1].")
    check_number(name, value, 0.0, 1.0)


def check_known(given: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse keywords that a call does not have.

    Raises:
        TypeError: the first of them, and which one may be meant.

    >>> check_known({"regx": "a+"}, ["regex", "grammar"])
    Traceback (most recent call last):
    TypeError: unexpected keyword 'regx': is it 'regex'?
    """
    unknown = sorted(given.keys() - set(known))
    if not unknown:
        return
    name, meant = unknown[0], "."
    if name in ("max_new_tokens", "max_tokens", "max_length"):
        meant = ": lengths are in bytes, max_new_bytes=…"
    elif near := get_close_matches(name, known, n=1):
        meant = f": is it {near[0]!r}?"
    raise TypeError(f"unexpected keyword {name!r}{meant}")
