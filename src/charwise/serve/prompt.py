"""The text around the cursor, in every form of a request."""

from __future__ import annotations

from typing import NamedTuple

from charwise.errors import SettingError
from charwise.healing.fim import Template
from charwise.healing.fim_text import Files, parse_template
from charwise.serve.task import Task
from charwise.tokens.canonical import to_bytes
from charwise.tokens.line_ends import read
from charwise.tokens.prompts import Prompt, is_text, parts_of
from charwise.tokens.sentinels import REPOSITORIES, SPELLINGS, spelling_of
from charwise.tokens.vocabulary import Vocabulary


class CursorContext(NamedTuple):
    """The text on both sides of a cursor.

    Attributes:
        opening: token ids that come before, up to the last special one.
        before: the text before the cursor, after them.
        after: the text after it; None if nothing is known of it.
        files: whether `opening` is other files of a repository.
    """

    opening: tuple[int, ...]
    before: bytes
    after: bytes | None
    files: bool = False

    @property
    def prompt(self) -> Prompt:
        """The text before the cursor, as a prompt."""
        return [*self.opening, self.before] if self.opening else self.before

    @property
    def between(self) -> bool:
        """Whether there is a gap to fill in. Blank lines are no text after it: who types at the end
        of a text has not said that it ends there."""
        free = self.files or not self.opening
        return bool(self.after and self.after.strip()) and free

    def for_model(self, window: int | None) -> tuple[CursorContext, bool]:
        """Return the context as a model reads it, and whether other files were cut to fit.

        Lines end in `\\n`, and other files get half of the window.
        """
        after = None if self.after is None else read(self.after)
        most = (window or 2 * len(self.opening)) // 2
        too_long = self.files and len(self.opening) > most
        opening = self.opening[-most:] if too_long else self.opening
        return self._replace(opening=opening, before=read(self.before), after=after), too_long


def parse_prompt(task: Task, vocabulary: Vocabulary) -> CursorContext:
    """Return both sides of a cursor; a template written out in a prompt is taken apart.

    A prompt is a template only if it is one from its first character to its last, each sentinel
    once: of whatever family, since editors write out the one that they were set to. So is a
    repository that is written out, whose last file is the one with the cursor.

    Raises:
        VocabularyError: for what is no prompt.
    """
    after = None if task.suffix is None else to_bytes(task.suffix)
    if is_text(task.prompt):
        if isinstance(task.prompt, str) and not after:
            for spelling in SPELLINGS:
                if parsed := parse_template(task.prompt, spelling):
                    both = CursorContext((), parsed.prefix.encode(), parsed.suffix.encode())
                    return _after_files((*task.files, *parsed.files), both, vocabulary)
        both = CursorContext((), to_bytes(task.prompt), after)
        return _after_files(task.files, both, vocabulary)
    ids = vocabulary.encode_prompt(parts_of(task.prompt))
    if template := _parse_ids(ids, vocabulary):
        return template
    special = [at for at, id in enumerate(ids) if vocabulary.tokens[id] is None]
    first = special[-1] + 1 if special else 0
    opening, text = tuple(ids[:first]), vocabulary.decode(ids[first:])
    prefix = vocabulary.implied_prefix
    if not opening or (opening == vocabulary.bos_ids and text.startswith(prefix)):
        return CursorContext((), text.removeprefix(prefix), after)
    return CursorContext(opening, text, after)


def _after_files(files: Files, context: CursorContext, vocabulary: Vocabulary) -> CursorContext:
    """The context after other files: behind the model's control tokens, or as text."""
    if not files:
        return context
    ids = {name: id for id, name in vocabulary.special.items()}
    own = spelling_of(set(ids))
    separator = next((ids[name] for name in own.files if name in ids), None) if own else None
    if own is None or separator is None:
        texts = [text.partition("\n")[2] for name, text in files if name not in REPOSITORIES]
        return context._replace(before=read("".join(texts)).encode() + context.before)
    repository = [ids[name] for name in own.repository if name in ids][:1]
    parts: list[str | bytes | int] = list(vocabulary.bos_ids)
    for name, text in files:
        marks = repository if name in REPOSITORIES else [separator] if name else []
        parts += [*marks, read(text)] if marks or name not in REPOSITORIES else []
    opening = vocabulary.encode_prompt([part for part in parts if part != ""])
    return context._replace(opening=tuple(opening), files=True)


def _parse_ids(ids: list[int], vocabulary: Vocabulary) -> CursorContext | None:
    """The context of a template given as ids, prefix first; None if it is none."""
    try:
        template = Template.of(vocabulary)
    except SettingError:
        return None
    marks = [template.prefix, template.suffix, template.middle]
    start = list(vocabulary.bos_ids)
    rest = ids[len(start) :] if start and ids[: len(start)] == start else ids
    if template.middle is None or [id for id in rest if vocabulary.tokens[id] is None] != marks:
        return None
    if rest[0] != template.prefix or rest[-1] != template.middle:
        return None
    at = rest.index(template.suffix)
    prefix = vocabulary.decode(rest[1:at]).removeprefix(vocabulary.implied_prefix)
    return CursorContext((), prefix, vocabulary.decode(rest[at + 1 : -1]))
