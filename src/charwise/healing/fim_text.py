"""Templates of fill-in-the-middle that a client has written out in a prompt.

Some editors send the sentinels as text, or as ids among the ids of a prompt. The end of the prefix
inside such a template is healed. No other text is read as having sentinels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from charwise.healing.fim import Order, Template
from charwise.tokens.sentinels import Spelling, spelling_of
from charwise.tokens.vocabulary import Vocabulary


def template_in(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int] | None:
    """Where the prefix lies in a prompt that holds a whole template, with the sentinel before it.

    In PSM the end of the prefix lies before the suffix. In SPM the prefix ends the prompt, and so
    it does where there is no template: None.
    """
    if spelling_of(set(vocabulary.special.values())) is None:
        return None
    template = Template.of(vocabulary)
    if template.middle is None or not ids or ids[-1] != template.middle:
        return None
    sentinels = [at for at, id in enumerate(ids) if id in (template.prefix, template.suffix)][-2:]
    if [ids[at] for at in sentinels] != [template.prefix, template.suffix]:
        return None
    return sentinels[0], sentinels[1]


def with_sentinels(text: str, vocabulary: Vocabulary) -> str | list[str | int]:
    """A text that is a whole template as a prompt with ids; any other text as it is.

    A text is a template from its first character to its last, or it is none (`parse_template`).
    Otherwise the name of a control token may be part of what somebody edits, and stays text.
    """
    spelling = spelling_of(set(vocabulary.special.values()))
    parsed = None if spelling is None else parse_template(text, spelling)
    ids = {name: id for id, name in vocabulary.special.items()}
    if parsed is None or any(name and name not in ids for name, _ in parsed.files):
        return text
    parts: list[str | int] = list(vocabulary.bos_ids)
    for name, part in parsed.files:
        parts += [ids[name], part] if name else [part]
    prefix, suffix, order, _ = parsed
    if order is None:
        parts.append(prefix)
    else:
        # The implied space belongs to the prefix where that follows a sentinel of its own.
        template = Template.of(vocabulary)
        spaced = order == "psm" or template.middle is None
        prefix = (vocabulary.implied_prefix.decode() if spaced else "") + prefix
        parts = template.layout(parts, [prefix], [suffix], order)
    return [part for part in parts if part != ""]


#: Control tokens that come before parts of a text, each with its part; the first may be "".
Files = tuple[tuple[str, str], ...]


class WrittenTemplate(NamedTuple):
    """Both sides of a template that is written out in a text.

    Attributes:
        prefix, suffix: the text on both sides.
        order: in which they come; None of the last file of a repository without a template.
        files: what comes before the template: the name of a repository, and other files.
    """

    prefix: str
    suffix: str
    order: Order | None
    files: Files = ()


def parse_template(text: str, spelling: Spelling) -> WrittenTemplate | None:
    """Both sides of a text that is a whole template; None if it is none.

    Each sentinel of the model occurs once, in an order that there is, and nothing follows the
    sentinel of the middle (PSM). Other files of the repository may come before. A text that begins
    with the name of a repository and other files is read likewise, without a template.
    """
    names = [name for name in spelling.in_text if name]
    first = min(text.find(name.strip()) for name in names)
    if first >= 0 and not any(text.count(name) > 1 for name in names):
        files, sides = _files(text[:first], spelling), _sides(text[first:], spelling)
        if files is not None and sides is not None:
            return sides._replace(files=files)
    files = _files(text, spelling) if text.startswith(spelling.repository) else None
    if files is None or len(files) < 2:
        return None
    name, last = files[-1]
    return WrittenTemplate(last, "", None, (*files[:-1], (name, "")))


def _sides(text: str, spelling: Spelling) -> WrittenTemplate | None:
    """Both sides of a text that begins with a sentinel."""
    before, between, last = map(re.escape, spelling.in_text)
    if spelling.middle is None:
        parsed = re.fullmatch(f"{between}(.*){before}(.*)", text, re.DOTALL)
        return WrittenTemplate(parsed[2], parsed[1], "spm") if parsed else None
    if parsed := re.fullmatch(f"{before}(.*){between}(.*){last}", text, re.DOTALL):
        return WrittenTemplate(parsed[1], parsed[2], "psm")
    before = re.escape(spelling.in_text[0].rstrip())  # two sentinels share the space between them
    parsed = re.fullmatch(f"{before}{between}(.*){last}(.*)", text, re.DOTALL)
    return WrittenTemplate(parsed[2], parsed[1], "spm") if parsed else None


#: What a file's text may have in front of the first control token: the path of the file.
_PATH = re.compile(r"[^\s<>\"'`]*[./\\][^\s<>\"'`]*\n")


def _files(text: str, spelling: Spelling) -> Files | None:
    """The files that a text consists of; None if it is no list of files.

    It begins with a control token, or, as some models have it, with the path of a file. A control
    token's name in quotes, or between spaces, is part of a file.
    """
    if not text:
        return ()
    names = "|".join(map(re.escape, (*spelling.repository, *spelling.files)))
    marks = [
        mark
        for mark in (re.finditer(names, text) if names else ())
        if text[max(0, mark.start() - 1) : mark.start()] not in ("'", '"', "`", " ")
        or text[mark.end() : mark.end() + 1] != text[mark.start() - 1]
    ]
    if not marks or (marks[0].start() > 0 and not _PATH.match(text)):
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    first = [("", text[: marks[0].start()])] if marks[0].start() else []
    return (*first, *((m[0], text[m.end() : end]) for m, end in zip(marks, ends, strict=True)))
