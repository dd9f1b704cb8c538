"""What is before and after the cursor, in whatever form a request has it."""

from __future__ import annotations

from typing import NamedTuple

from charwise.errors import TemplateError
from charwise.serve.task import CompletionTask
from charwise.template import Template, written
from charwise.tokens.canonical import to_bytes
from charwise.tokens.prompt_parts import Prompt, is_text, parts_of
from charwise.tokens.sentinels import SPELLINGS
from charwise.tokens.vocabulary import Vocabulary


class Sides(NamedTuple):
    """The text on both sides of a cursor.

    Attributes:
        opening: token ids that come before, up to the last special one.
        before: the text before the cursor, after them.
        after: the text after it; None if nothing is known of it.

    >>> Sides((), b"import nump", None).before
    b'import nump'
    """

    opening: tuple[int, ...]
    before: bytes
    after: bytes | None

    @property
    def prompt(self) -> Prompt:
        """What is before the cursor, as a prompt."""
        return [*self.opening, self.before] if self.opening else self.before

    @property
    def between(self) -> bool:
        """Whether there is a gap to fill in. Blank lines are no other side: who types at the end of
        a text has not said that it ends there."""
        return bool(self.after and self.after.strip()) and not self.opening


def sides_of(task: CompletionTask, vocabulary: Vocabulary) -> Sides:
    """Both sides of a request's cursor; a template written out in its prompt is taken apart.

    A prompt is a template only if it is one from its first character to its last, each sentinel
    once: of whatever family, since editors write out the one that they were set to.

    Raises:
        TokenizationError: what is no prompt.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], bos_ids=[2])
    >>> sides_of(CompletionTask("<PRE> a <SUF>b <MID>"), vocabulary)
    Sides(opening=(), before=b'a', after=b'b')
    >>> sides_of(CompletionTask([2, 0, 1]), vocabulary)
    Sides(opening=(), before=b'ab', after=None)
    >>> sides_of(CompletionTask([2, 0, 2, 1]), vocabulary).opening
    (2, 0, 2)
    """
    after = None if task.suffix is None else to_bytes(task.suffix)
    if is_text(task.prompt):
        if isinstance(task.prompt, str) and not after:
            for spelling in SPELLINGS:
                if found := written(task.prompt, spelling):
                    return Sides((), found.prefix.encode(), found.suffix.encode())
        return Sides((), to_bytes(task.prompt), after)
    parts = parts_of(task.prompt)
    ids = vocabulary.encode_prompt(parts)
    if found_ids := _written_ids(ids, vocabulary):
        return found_ids
    special = [at for at, id in enumerate(ids) if vocabulary.tokens[id] is None]
    first = special[-1] + 1 if special else 0
    opening, text = tuple(ids[:first]), vocabulary.decode(ids[first:])
    if opening == vocabulary.bos_ids:
        return Sides((), text.removeprefix(vocabulary.lead), after)
    return Sides(opening, text, after)


def _written_ids(ids: list[int], vocabulary: Vocabulary) -> Sides | None:
    """Both sides of a template given as ids, prefix first."""
    try:
        template = Template.of(vocabulary)
    except TemplateError:
        return None
    marks = [template.prefix, template.suffix, template.middle]
    start = list(vocabulary.bos_ids)
    rest = ids[len(start) :] if start and ids[: len(start)] == start else ids
    if template.middle is None or [id for id in rest if vocabulary.tokens[id] is None] != marks:
        return None
    if rest[0] != template.prefix or rest[-1] != template.middle:
        return None
    at = rest.index(template.suffix)
    prefix = vocabulary.decode(rest[1:at]).removeprefix(vocabulary.lead)
    return Sides((), prefix, vocabulary.decode(rest[at + 1 : -1]))
