"""The arguments that name a constraint, one keyword of several; and two constraints at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypedDict

from charwise.constraints.constraint import Choices, Constraint, Flags, checked, choices
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
    if len(given) > 1:
        raise ConstraintError(
            f"{' and '.join(sorted(given))} are given: give one, or constraint=both(…, …)."
        )
    return next((_MAKERS[name](value) for name, value in given.items()), None)


class _Both(Constraint):
    """Two constraints at once. Made by `both`."""

    def __init__(self, one: Constraint, other: Constraint) -> None:
        self.one, self.other = one, other
        self.characters = one.characters or other.characters
        self.has_check = one.has_check or other.has_check

    @property
    def fault(self) -> str | None:  # type: ignore[override]
        """Why the text so far is not valid by one of them; None if it is."""
        return self.one.fault or self.other.fault

    def allowed(self) -> Flags:
        """Return the bytes that both allow, `[257]` bool."""
        return self.one.allowed() & self.other.allowed()

    def mask(self) -> Flags:
        """Return the tokens that both allow, `[width]` bool."""
        return self.one.mask() & self.other.mask()

    def after(self, data: str | bytes) -> Self:
        """Both after more bytes.

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

    def over(self, index: SortedVocabulary) -> Self:
        """The same over the tokens of a vocabulary."""
        return type(self)(self.one.over(index), self.other.over(index))

    def __repr__(self) -> str:
        return f"both({self.one!r}, {self.other!r})"


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
    shared: Constraint | None = None
    if isinstance(one, Grammar) and isinstance(other, Grammar):
        shared = both_patterns(one, other)
    elif isinstance(one, Choices):
        shared = one.those_of(other)
    elif isinstance(other, Choices):
        shared = other.those_of(one)
    shared = shared or _Both(one, other)
    if not shared.allowed().any():
        raise ConstraintError("the two constraints share no text: nothing satisfies both.")
    return shared
