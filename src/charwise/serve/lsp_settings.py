"""The settings of the language server: from an editor's JSON to what is asked of the model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from charwise.errors import SettingError, check_count, check_number
from charwise.serve.asked import Asked, Mode, Until

#: The name under which editors keep them.
SECTION = "charwise"

#: Settings that are called something else in a request.
_ASKED = {"candidates": "n"}

#: Settings that say which model is loaded, and how: they count at the start alone.
MODEL = ("model", "device", "dtype", "revision", "preset", "tolerance")


@dataclass(frozen=True)
class Settings:
    """What an editor has set; in its JSON, names are in camelCase.

    Attributes:
        enabled: whether anything is offered.
        warm: whether a change is read at once, before a completion is asked for.
        infill: whether the text after the cursor counts, if the model can fill in. It is never
            repeated in any case.
        candidates: how many offers.
        max_bytes: of an offer.
        until: "line", "block", or None for as far as it gets: "length" in JSON.
        stop: strings before which offers end.
        mode: "exact", "healed" or "plain".
        temperature, top_p, top_k, seed: how offers are drawn; 0 takes the most probable.
        seconds: a time budget; what there is then is offered.
        threshold: probability under which nothing is offered.
        before, after: characters of the text that are read; None for what the window holds.
        load: which model to load, and how: arguments of `charwise.load`.

    >>> settings, wrong = Settings().changed({"maxBytes": 8, "topK": -1, "colour": "red"})
    >>> settings.max_bytes, settings.top_k, len(wrong)
    (8, 0, 2)
    >>> wrong[0]
    'topK is -1: it must be 0 or more.'
    """

    enabled: bool = True
    warm: bool = True
    infill: bool = True
    candidates: int = 1
    max_bytes: int = 128
    until: Until | None = "line"
    stop: tuple[str, ...] = ()
    mode: Mode = "exact"
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    seconds: float | None = 1.0
    threshold: float = 0.0
    before: int | None = None
    after: int | None = None
    load: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("enabled", "warm", "infill"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} is {getattr(self, name)!r}: it must be true or false.")
        if isinstance(self.stop, str) or not all(isinstance(one, str) for one in self.stop):
            raise SettingError(f"stop is {self.stop!r}: it must be a list of strings.")
        check_count("max_bytes", self.max_bytes, 1)
        for name in ("seed", "before", "after"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0)
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0.0, math.inf)
        self.asked("", None)

    def asked(self, before: str, after: str | None) -> Asked:
        """What is asked of the model between two texts; `after` only where it may count.

        >>> Settings().asked("import nu", None).max_bytes
        128
        """
        return Asked(
            # As bytes: the name of a sentinel in a document is text.
            before.encode("utf-8", "replace"),
            None if after is None else after.encode("utf-8", "replace"),
            mode=self.mode,
            n=self.candidates,
            max_bytes=self.max_bytes,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop=self.stop,
            until=self.until,
            seconds=self.seconds,
            threshold=self.threshold,
        )

    def changed(self, given: object, *, starting: bool = False) -> tuple[Settings, list[str]]:
        """The settings with those that were given in their place, and what is wrong with the rest.

        Args:
            given: a JSON object, or one that has them under "charwise"; None for none. What is
                null in it is at its default.
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
        if name in MODEL:
            load = {**self.load, name: value} if value is not None else dict(self.load)
            if not starting and load != self.load:
                raise SettingError(
                    f"{name} is read when the server starts: restart it for {value!r}."
                )
            return replace(self, load=load)
        if name not in NAMES:
            known = ", ".join(sorted([*NAMES, *MODEL]))
            raise SettingError(f"unknown setting {name!r}: there are {known}.")
        at = NAMES[name]
        if value is None:
            value = getattr(Settings, at)
        if at == "until" and value == "length":
            value = None
        new: dict[str, Any] = {at: tuple(value) if isinstance(value, list) else value}
        try:
            return replace(self, **new)
        except TypeError:
            raise SettingError(f"{name} is {value!r}: it cannot be that.") from None
        except SettingError as error:
            raise SettingError(_renamed(str(error), at, name)) from None


def _renamed(why: str, at: str, name: str) -> str:
    """What is wrong with a setting, by the name that the editor knows.

    >>> _renamed("n is 0: it must be 1 or more.", "candidates", "candidates")
    'candidates is 0: it must be 1 or more.'
    """
    begun = f"{_ASKED.get(at, at)} is "
    return f"{name} is {why.removeprefix(begun)}" if why.startswith(begun) else why


def camel(name: str) -> str:
    """A name as JSON has it.

    >>> camel("max_bytes")
    'maxBytes'
    """
    return re.sub("_(.)", lambda letter: letter[1].upper(), name)


#: As an editor writes it → as `Settings` has it.
NAMES = {camel(one.name): one.name for one in fields(Settings) if one.name != "load"}
