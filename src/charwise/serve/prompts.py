"""The text before and after the cursor, in every form of a request."""

from __future__ import annotations

from typing import NamedTuple

from charwise.errors import LimitError, SettingError
from charwise.healing.fim import Template
from charwise.healing.fim_text import Files, parse_template
from charwise.serve.task import CompletionTask
from charwise.tokens.canonical import to_bytes
from charwise.tokens.line_ends import read
from charwise.tokens.prompts import Prompt, is_text, parts_of
from charwise.tokens.sentinels import REPOSITORIES, SPELLINGS, spelling_of
from charwise.tokens.vocabulary import Vocabulary


class Sides(NamedTuple):
    """The text on both sides of a cursor.

    Attributes:
        opening: token ids that come before, up to the last special one.
        before: the text before the cursor, after them.
        after: the text after it; None if nothing is known of it.
        files: whether `opening` is other files of a repository.

    >>> Sides((), b"import nump", None).before
    b'import nump'
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
        """Whether there is a gap to fill in. Blank lines are no other side: who types at the end of
        a text has not said that it ends there."""
        free = self.files or not self.opening
        return bool(self.after and self.after.strip()) and free


def sides_of(task: CompletionTask, vocabulary: Vocabulary) -> Sides:
    """Both sides of a request's cursor; a template written out in its prompt is taken apart.

    A prompt is a template only if it is one from its first character to its last, each sentinel
    once: of whatever family, since editors write out the one that they were set to. So is a
    repository that is written out, whose last file is the one with the cursor.

    Raises:
        VocabularyError: what is no prompt.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], bos_ids=[2])
    >>> sides_of(CompletionTask("<PRE> a <SUF>b <MID>"), vocabulary)[:3]
    ((), b'a', b'b')
    >>> sides_of(CompletionTask([2, 0, 1]), vocabulary)[:3]
    ((), b'ab', None)
    >>> sides_of(CompletionTask([2, 0, 2, 1]), vocabulary).opening
    (2, 0, 2)
    """
    after = None if task.suffix is None else to_bytes(task.suffix)
    if is_text(task.prompt):
        if isinstance(task.prompt, str) and not after:
            for spelling in SPELLINGS:
                if found := parse_template(task.prompt, spelling):
                    sides = Sides((), found.prefix.encode(), found.suffix.encode())
                    return _beside((*task.files, *found.files), sides, vocabulary)
        return _beside(task.files, Sides((), to_bytes(task.prompt), after), vocabulary)
    parts = parts_of(task.prompt)
    ids = vocabulary.encode_prompt(parts)
    if found_ids := _written_ids(ids, vocabulary):
        return found_ids
    special = [at for at, id in enumerate(ids) if vocabulary.tokens[id] is None]
    first = special[-1] + 1 if special else 0
    opening, text = tuple(ids[:first]), vocabulary.decode(ids[first:])
    prefix = vocabulary.implied_prefix
    if not opening or (opening == vocabulary.bos_ids and text.startswith(prefix)):
        return Sides((), text.removeprefix(prefix), after)
    return Sides(opening, text, after)


def prompt_tokens(task: CompletionTask, vocabulary: Vocabulary) -> int:
    """Return how many tokens a request's prompt has, its suffix included.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab", None], bos_ids=[3])
    >>> prompt_tokens(CompletionTask("abb"), vocabulary)
    3
    """
    sides = sides_of(task, vocabulary)
    opening = sides.opening or vocabulary.bos_ids
    texts = [text for text in (sides.before, sides.after) if text]
    return len(opening) + sum(len(vocabulary.encode(read(text))) for text in texts)


def check_room(tokens: int, window: int | None) -> None:
    """Refuse a prompt after which the window has no room for a token.

    Raises:
        LimitError: both lengths.

    >>> check_room(7, 8)
    Traceback (most recent call last):
    charwise.errors.LimitError: the prompt has 7 tokens, and the model's window is 8: there
    is no room for another. Shorten the prompt from its start.
    """
    if window is not None and tokens > window - 2:
        raise LimitError(
            f"the prompt has {tokens} tokens, and the model's window is {window}: there is no room "
            "for another. Shorten the prompt from its start."
        )


def _beside(files: Files, sides: Sides, vocabulary: Vocabulary) -> Sides:
    """Both sides after other files: behind the model's control tokens, or as text if it has none.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"\\n"], bos_ids=[0])
    >>> _beside((("<|file_sep|>", "x.py\\naa\\n"),), Sides((), b"a", None), vocabulary).before
    b'aa\\na'
    """
    if not files:
        return sides
    ids = {name: id for id, name in vocabulary.special.items()}
    own = spelling_of(set(ids))
    separator = next((ids[name] for name in own.files if name in ids), None) if own else None
    if own is None or separator is None:
        texts = [text.partition("\n")[2] for name, text in files if name not in REPOSITORIES]
        return sides._replace(before=read("".join(texts)).encode() + sides.before)
    repository = [ids[name] for name in own.repository if name in ids][:1]
    parts: list[str | bytes | int] = list(vocabulary.bos_ids)
    for name, text in files:
        marks = repository if name in REPOSITORIES else [separator] if name else []
        parts += [*marks, read(text)] if marks or name not in REPOSITORIES else []
    opening = vocabulary.encode_prompt([part for part in parts if part != ""])
    return sides._replace(opening=tuple(opening), files=True)


def _written_ids(ids: list[int], vocabulary: Vocabulary) -> Sides | None:
    """Both sides of a template given as ids, prefix first."""
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
    return Sides((), prefix, vocabulary.decode(rest[at + 1 : -1]))
