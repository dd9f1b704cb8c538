"""The arguments that name a constraint, one keyword of several; and two constraints at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self, TypedDict

from charwise.constraints.constraint import (
    Choices,
    Constraint,
    Flags,
    TokenConstraint,
    checked,
    choices,
    fault_of,
    has_check,
)
from charwise.constraints.grammars import Grammar, both_patterns, grammar, regex
from charwise.constraints.schemas import json_schema
from charwise.errors import ConstraintError, check_known, shown
from charwise.tokens.index import SortedVocabulary


class ConstraintKeywords(TypedDict, total=False):
    """The constraints on a completion: at most one of these.

    Attributes:
        regex: a regular expression that all of it matches.
        json_schema: a schema, as Python objects or as JSON text.
        grammar: a grammar in Lark's notation, or in llama.cpp's GBNF.
        choices: one of these strings.
        constraint: any `Constraint`, for example `both(regex("…"), choices([…]))`.
    """

    regex: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    grammar: str | None
    choices: Iterable[str | bytes] | None
    constraint: Constraint | None


_MAKERS: dict[str, Callable[[Any], Constraint]] = {
    "constraint": checked,
    "regex": regex,
    "json_schema": json_schema,
    "grammar": grammar,
    "choices": choices,
}


def constraint_of(may_follow: ConstraintKeywords) -> Constraint | None:
    """The constraint that was asked for; None if none was.

    Raises:
        ConstraintError: two of them, or one that is wrong.
        TypeError: another keyword.
    """
    if not isinstance(may_follow, Mapping):
        raise ConstraintError(f"{shown(may_follow)} is no constraint: give a dict of keywords.")
    given = {name: value for name, value in may_follow.items() if value is not None}
    check_known(given, _MAKERS)
    if not given:
        return None
    if len(given) > 1:
        raise ConstraintError(
            f"{' and '.join(sorted(given))} are given: give one, or constraint=both(…, …)."
        )
    [(name, value)] = given.items()
    return _MAKERS[name](value)


class _Both:
    """Two constraints at once. Made by `both`."""

    def __init__(self, one: Constraint, other: Constraint) -> None:
        self.one, self.other = one, other

    @property
    def characters(self) -> bool:
        """Whether one of them is over whole characters."""
        return self.one.characters or self.other.characters

    @property
    def check(self) -> Literal[True] | None:
        """Whether one of them checks finished texts."""
        return has_check(self.one) or has_check(self.other) or None

    @property
    def fault(self) -> str | None:
        """Why the text so far is not valid by one of them; None if it is."""
        return fault_of(self.one) or fault_of(self.other)

    def allowed(self) -> Flags:
        """Return the bytes that both allow, `[257]`."""
        return self.one.allowed() & self.other.allowed()

    def after(self, data: bytes) -> Self:
        """_Both after more bytes.

        Raises:
            ConstraintError: at the first byte that one of them does not allow.
        """
        both, refused = list[Constraint](), list[ConstraintError]()
        for each in (self.one, self.other):
            try:
                both.append(each.after(data))
            except ConstraintError as error:
                refused.append(error)
        if refused:
            raise min(refused, key=lambda error: error.position)
        return type(self)(*both)

    def over(self, index: SortedVocabulary) -> _BothTokens:
        """The same over the tokens of a vocabulary."""
        return _BothTokens(self.one.over(index), self.other.over(index))

    def __repr__(self) -> str:
        return f"both({self.one!r}, {self.other!r})"


class _BothTokens:
    """Two constraints over the tokens of one vocabulary: a token that both allow."""

    def __init__(self, one: TokenConstraint, other: TokenConstraint) -> None:
        self.one, self.other = one, other

    def mask(self) -> Flags:
        """`[width]`: the tokens that both allow."""
        return self.one.mask() & self.other.mask()

    def after(self, data: bytes) -> Self:
        """_Both after the bytes of a token."""
        return type(self)(self.one.after(data), self.other.after(data))


def both(one: Constraint, other: Constraint) -> Constraint:
    """Return a constraint to the members that the sets of two constraints share.

    Of two regular expressions one is made, and of choices those are left that the other allows:
    these know from the start where a shared member can be reached. Otherwise a byte is allowed that
    each of them allows, and the way may turn out to end in nothing, when what each still allows is
    no longer the same.

    Raises:
        ConstraintError: what is no constraint, or where nothing may follow from the start.

    >>> from charwise.constraints import choices, regex
    >>> both(choices(["cat", "car", "dog"]), regex("c.*t")).after(b"ca").allowed()[ord("t")]
    np.True_
    """
    for given in (one, other):
        checked(given)
    if isinstance(one, Grammar) and isinstance(other, Grammar):
        joined = both_patterns(one, other)
        if joined is not None:
            return joined
    shared: Constraint = _Both(one, other)
    if isinstance(one, Choices):
        shared = one.those_of(other)
    elif isinstance(other, Choices):
        shared = other.those_of(one)
    if not shared.allowed().any():
        raise ConstraintError("the two constraints share no text: nothing satisfies both.")
    return shared
