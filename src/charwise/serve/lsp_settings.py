"""The settings of the language server: how an editor's JSON becomes `Wishes`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from charwise.errors import SettingError
from charwise.serve.offers import Wishes

#: The name under which editors keep them.
SECTION = "charwise"

#: Settings that say which model is loaded: they count at the start alone.
MODEL = ("model", "device", "dtype", "revision")


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda letter: letter[1].upper(), name)


#: As an editor writes it → as `Wishes` has it.
NAMES = {_camel(one.name): one.name for one in fields(Wishes)}


@dataclass(frozen=True)
class Settings:
    """What an editor has set.

    Attributes:
        wishes: what to offer.
        enabled: whether anything is offered.
        warm: whether a change is read before a completion is asked for.
        model: which model to load, and how: arguments of `charwise.load`.

    >>> settings, wrong = Settings().changed({"maxBytes": 8, "until": "page", "colour": "red"})
    >>> settings.wishes.max_bytes, settings.wishes.until, len(wrong)
    (8, 'line', 2)
    >>> wrong[0]
    "until is 'page': choose 'line', 'block' or 'length'."
    """

    wishes: Wishes = field(default_factory=Wishes)
    enabled: bool = True
    warm: bool = True
    model: Mapping[str, str] = field(default_factory=dict)

    def changed(self, given: object, *, starting: bool = False) -> tuple[Settings, list[str]]:
        """The settings with those that were given in their place, and what is wrong with the rest.

        Args:
            given: a JSON object, or one that has them under "charwise"; None for none. What is
                null there is at its default.
            starting: whether a model may still be chosen.
        """
        if isinstance(given, Mapping) and isinstance(given.get(SECTION), Mapping):
            given = given[SECTION]
        if given is None:
            return self, []
        if not isinstance(given, Mapping):
            return self, [f"settings are an object, not {given!r}."]
        settings, wrong = self, list[str]()
        for name, value in given.items():
            try:
                settings = settings._with(str(name), value, starting)
            except SettingError as error:
                wrong.append(str(error))
        return settings, wrong

    def _with(self, name: str, value: Any, starting: bool) -> Settings:
        if name in NAMES:
            at = NAMES[name]
            return replace(self, wishes=replace(self.wishes, **{at: _value(at, value)}))
        if name in ("enabled", "warm"):
            if not isinstance(value, bool | None):
                raise SettingError(f"{name} is {value!r}: it must be true or false.")
            on: dict[str, Any] = {name: value is not False}
            return replace(self, **on)
        if name in MODEL:
            if not isinstance(value, str | None):
                raise SettingError(f"{name} is {value!r}: it must be a string.")
            model = {**self.model, name: value} if value else dict(self.model)
            if not starting and model != self.model:
                raise SettingError(
                    f"{name} is read when the server starts: restart it for {value!r}."
                )
            return replace(self, model=model)
        known = ", ".join(sorted([*NAMES, "enabled", "warm", *MODEL]))
        raise SettingError(f"unknown setting {name!r}: there are {known}.")


def _value(name: str, value: Any) -> Any:
    """A value as `Wishes` wants it: null is the default, a JSON list a tuple."""
    if value is None:
        return next(one.default for one in fields(Wishes) if one.name == name)
    return tuple(value) if isinstance(value, list) else value
