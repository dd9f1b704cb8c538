"""The settings of the language server: from an editor's JSON to a request for completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from charwise.api.request import MOST_COMPLETIONS, CheckedSettings, Until
from charwise.cursor.options import GenerationOptions
from charwise.errors import SettingError
from charwise.serve.task import Task

#: The name under which editors keep them.
SECTION = "charwise"

_Count = Annotated[int, Field(ge=0)]


class EditorSettings(CheckedSettings):
    """The settings of an editor; in its JSON, names are in camelCase.

    docs/editors.md says what each means.
    """

    model_config = ConfigDict(alias_generator=to_camel)

    enabled: bool = True
    menu: bool = False
    warm: bool = True
    infill: bool = True
    candidates: Annotated[int, Field(ge=1, le=MOST_COMPLETIONS)] = 1
    max_bytes: Annotated[int, Field(ge=1)] = 128
    until: Annotated[
        Until | None, BeforeValidator(lambda value: None if value == "length" else value)
    ] = "line"
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: _Count = 0
    seed: _Count | None = None
    seconds: Annotated[float, Field(ge=0)] | None = 1.0
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    before: _Count | None = None
    after: _Count | None = None

    def task(self, before: str, after: str) -> Task:
        """Return the task between two texts."""
        same = {"temperature", "top_p", "top_k", "seed", "stop", "seconds"}
        return Task(
            # As bytes: the name of a sentinel in a document is text.
            before.encode("utf-8", "replace"),
            after.encode("utf-8", "replace"),
            fills_in=self.infill,
            options=GenerationOptions(n=self.candidates, **self.model_dump(include=same)),
            max_bytes=self.max_bytes,
            until=self.until,
            threshold=self.threshold,
        )

    def changed(self, updates: object) -> tuple[EditorSettings, list[str]]:
        """Return the settings with these in a JSON object changed, and the mistakes in it.

        It may have them under "charwise". A setting that is null there is at its default.
        """
        if isinstance(updates, Mapping) and isinstance(updates.get(SECTION), Mapping):
            updates = updates[SECTION]
        if updates is None:
            return self, []
        if not isinstance(updates, Mapping):
            return self, [f"settings are an object, not {updates!r}."]
        values = self.model_dump(by_alias=True, exclude_unset=True)
        names, wrong = sorted(map(to_camel, EditorSettings.model_fields)), list[str]()
        for name, value in updates.items():
            if name not in names:
                wrong.append(f"unknown setting {name!r}: there are {', '.join(names)}.")
            elif value is None:
                values.pop(name, None)
            else:
                try:
                    EditorSettings(**{name: value})
                    values[name] = value
                except SettingError as error:
                    wrong.append(str(error))
        return EditorSettings(**values), wrong
