"""The template of a model that fills in the middle: its sentinels, found, laid out, recognised.

    PSM   <prefix> P <suffix> S <middle>         the middle comes last
    SPM   <prefix> <suffix> S <middle> P         it follows the prefix, which ends the prompt

Sentinels are ids. A text is read as having them only where a client has written a whole template
out (`with_sentinels`), which is how some editors send it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from charwise.errors import SettingError, TemplateError, shown
from charwise.healing import Cut, Rule, cut
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.sentinels import SPELLINGS, Spelling, spelling_of
from charwise.tokens.vocabulary import Vocabulary

#: How one names the sentinels of a model whose special tokens do not show them.
IN_PYTHON = "template=Template.named(vocabulary, prefix, suffix, middle), of charwise.template"

#: Prefix, suffix, middle; or suffix, prefix, middle.
Order = Literal["psm", "spm"]


@dataclass(frozen=True)
class Template:
    """The sentinels of a model, as token ids.

    Attributes:
        prefix, suffix: come before the two.
        middle: comes before the middle; None for models that take the suffix first, and whose
            prefix ends the prompt.
        family: whose they are.

    >>> vocabulary = Vocabulary.from_bytes(
    ...     [b"a", None, None, None], special={1: "<PRE>", 2: "<SUF>", 3: "<MID>"}
    ... )
    >>> Template.named(vocabulary, "<PRE>", "<SUF>", "<MID>")
    Template(prefix=1, suffix=2, middle=3, family='given')
    """

    prefix: int
    suffix: int
    middle: int | None
    family: str = "given"

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Template:
        """The template that a vocabulary's special tokens show.

        Raises:
            TemplateError: they are of no family in the table (`tokens.sentinels`).

        >>> names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
        >>> Template.of(Vocabulary.from_bytes([None] * 3 + [b"a"], special=dict(enumerate(names))))
        Template(prefix=0, suffix=1, middle=2, family='StarCoder, Granite')
        """
        spelling = spelling_of(set(vocabulary.special.values()))
        if spelling is None:
            raise TemplateError(
                "this model has no sentinels of fill-in-the-middle that are known: its special "
                f"tokens are those of none of {'; '.join(one.family for one in SPELLINGS)}. If it "
                f"was trained to fill in, name its sentinels: {IN_PYTHON}."
            )
        return cls.named(
            vocabulary, spelling.prefix, spelling.suffix, spelling.middle, spelling.family
        )

    @classmethod
    def named(
        cls,
        vocabulary: Vocabulary,
        prefix: str,
        suffix: str,
        middle: str | None = None,
        family: str = "given",
    ) -> Template:
        """A template by the spelling of its special tokens.

        Raises:
            TemplateError: the vocabulary has no special token of such a name.
        """
        ids = {name: id for id, name in vocabulary.special.items()}
        for name in (prefix, suffix, middle):
            if name is not None and name not in ids:
                raise TemplateError(
                    f"there is no special token {shown(name)}: those of this model are "
                    f"{', '.join(map(repr, list(ids)[:20])) or 'none'}."
                )
        return cls(ids[prefix], ids[suffix], None if middle is None else ids[middle], family)

    def order(self, given: Order | None) -> Order:
        """The order of a request: the one given, if the model knows it; PSM by default.

        Raises:
            TemplateError: PSM, of a model that knows the suffix first only.
            SettingError: for an unknown order.

        >>> Template(1, 2, 3).order(None), Template(1, 2, None).order(None)
        ('psm', 'spm')
        """
        if given is not None and not (isinstance(given, str) and given in ("psm", "spm")):
            raise SettingError(f"order is {shown(given)}: choose 'psm' or 'spm'.")
        if given == "psm" and self.middle is None:
            raise TemplateError(
                f"{self.family} has no sentinel before the middle: it takes the suffix first. "
                "Leave the order out, or ask for order='spm'."
            )
        return given or ("spm" if self.middle is None else "psm")

    def layout(
        self, start: Sequence[int], prefix: Sequence[int], suffix: Sequence[int], order: Order
    ) -> list[int]:
        """The ids of a prompt, after whose last one the middle comes.

        >>> Template(7, 8, 9).layout([0], [1, 2], [3], "psm")
        [0, 7, 1, 2, 8, 3, 9]
        >>> Template(7, 8, 9).layout([0], [1, 2], [3], "spm")
        [0, 7, 8, 3, 9, 1, 2]
        >>> Template(7, 8, None).layout([0], [1, 2], [3], "spm")
        [0, 8, 3, 7, 1, 2]
        """
        if self.middle is None:
            return [*start, self.suffix, *suffix, self.prefix, *prefix]
        if order == "spm":
            return [*start, self.prefix, self.suffix, *suffix, self.middle, *prefix]
        return [*start, self.prefix, *prefix, self.suffix, *suffix, self.middle]


def cut_written(
    ids: Sequence[int],
    index: SortedVocabulary,
    rule: Rule = "auto",
    template: Template | None = None,
) -> Cut | None:
    """A prompt that holds a whole template, cut where the prefix in it ends; None if it holds none.

    Editors write the template out and send it as a prompt. What they want healed is the end of the
    prefix, which in PSM lies before the suffix. Nothing else is touched: no sentinel, and not what
    comes before the template. In SPM the prefix ends the prompt, and `healing.cut` is all it takes.

    Args:
        ids: of the prompt, its sentinels as the tokens that they are.
        index: of the model's vocabulary.
        rule: where to cut, as for `healing.cut`.
        template: the model's; by default what its special tokens show.

    >>> tokens = [b"a", b"b", b"ab", b"c", None, None, None]
    >>> index = SortedVocabulary(Vocabulary.from_bytes(tokens, special={4: "", 5: "", 6: ""}))
    >>> cut_written([4, 3, 0, 5, 3, 6], index, template=Template(4, 5, 6))
    Cut(kept=[4, 3, 5, 3, 6], forced=b'a')
    >>> cut_written([3, 0], index, template=Template(4, 5, 6)) is None
    True
    """
    if template is None:
        try:
            template = Template.of(index.vocabulary)
        except TemplateError:
            return None
    ids = list(ids)
    if template.middle is None or not ids or ids[-1] != template.middle:
        return None
    sentinels = [(at, id) for at, id in enumerate(ids) if id in (template.prefix, template.suffix)]
    if [id for _, id in sentinels[-2:]] != [template.prefix, template.suffix]:
        return None
    (first, _), (last, _) = sentinels[-2:]
    kept, forced = cut(ids[first:last], index, rule)
    return Cut([*ids[:first], *kept, *ids[last:]], forced)


def with_sentinels(text: str, vocabulary: Vocabulary) -> str | list[str | int]:
    """A text that is a whole template as a prompt with ids; any other text as it is.

    A text is a template from its first character to its last, or it is none: each sentinel of the
    model occurs once, in an order that there is, and nothing follows the sentinel of the middle
    (PSM). Other files of the repository may come before it (`Written.files`). A text that begins
    with the name of a repository and other files is read likewise, without a template.
    Otherwise the name of a control token may be part of what somebody edits, and stays text.

    >>> names = {1: "<fim_prefix>", 2: "<fim_suffix>", 3: "<fim_middle>", 4: "<file_sep>"}
    >>> vocabulary = Vocabulary.from_bytes([b"a", None, None, None, None], special=names)
    >>> with_sentinels("<fim_prefix>a<fim_suffix><fim_middle>", vocabulary)
    [1, 'a', 2, 3]
    >>> with_sentinels("<file_sep>a<file_sep><fim_prefix>a<fim_suffix><fim_middle>", vocabulary)
    [4, 'a', 4, 1, 'a', 2, 3]
    >>> with_sentinels("print('<fim_prefix>')", vocabulary)
    "print('<fim_prefix>')"
    """
    spelling = spelling_of(set(vocabulary.special.values()))
    if spelling is None:
        return text
    ids = {name: id for id, name in vocabulary.special.items()}
    found = written(text, spelling)
    files = _files(text, spelling, begun=True) if found is None else found.files
    if files is None or any(name not in ids for name, _ in files if name):
        return text
    start: list[str | int] = list(vocabulary.bos_ids)
    for name, part in files:
        start += [ids[name], part] if name else [part]
    if found is None:
        return _parts(*start)
    template = Template.of(vocabulary)
    prefix = vocabulary.lead.decode() + found.prefix
    if template.middle is None:
        return _parts(*start, template.suffix, found.suffix, template.prefix, prefix)
    if found.order == "psm":
        sides = prefix, template.suffix, found.suffix
        return _parts(*start, template.prefix, *sides, template.middle)
    sides = found.suffix, template.middle, found.prefix
    return _parts(*start, template.prefix, template.suffix, *sides)


#: Control tokens that come before parts of a text, each with its part; the first may be "".
Files = tuple[tuple[str, str], ...]


class Written(NamedTuple):
    """Both sides of a template that is written out in a text.

    Attributes:
        prefix, suffix: the text on both sides.
        order: in which they come.
        files: what comes before the template: the name of a repository, and other files.

    >>> Written("a", "b", "psm").suffix
    'b'
    """

    prefix: str
    suffix: str
    order: Order
    files: Files = ()


def written(text: str, spelling: Spelling) -> Written | None:
    """Both sides of a text that is a whole template, as `with_sentinels` says; None if it is none.

    >>> spelling = spelling_of({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"})
    >>> written("<fim_prefix>a<fim_suffix>b<fim_middle>", spelling)
    Written(prefix='a', suffix='b', order='psm', files=())
    >>> written("<file_sep>x.py\\n<fim_prefix>a<fim_suffix>b<fim_middle>", spelling).files
    (('<file_sep>', 'x.py\\n'),)
    """
    if any(text.count(name) > 1 for name in spelling.in_text if name):
        return None
    first = min(text.find(name.strip()) for name in spelling.in_text if name)
    if first < 0:
        return None
    files = _files(text[:first], spelling)
    sides = _sides(text[first:], spelling)
    return None if files is None or sides is None else sides._replace(files=files)


def begun(text: str, spelling: Spelling) -> Written | None:
    """The last file of a repository that is written out without a template; None if it is none.

    >>> spelling = spelling_of({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"})
    >>> begun("<repo_name>r<file_sep>x.py\\nimport", spelling)[0::3]
    ('x.py\\nimport', (('<repo_name>', 'r'), ('<file_sep>', '')))
    """
    files = _files(text, spelling, True) if text.startswith(spelling.repository) else None
    if files is None:
        return None
    name, last = files[-1]
    return Written(last, "", "psm", (*files[:-1], (name, "")))


def _sides(text: str, spelling: Spelling) -> Written | None:
    """Both sides of a text that begins with a sentinel."""
    before, between, last = map(re.escape, spelling.in_text)
    if spelling.middle is None:
        if found := re.fullmatch(f"{between}(.*){before}(.*)", text, re.DOTALL):
            return Written(found[2], found[1], "spm")
        return None
    if found := re.fullmatch(f"{before}(.*){between}(.*){last}", text, re.DOTALL):
        return Written(found[1], found[2], "psm")
    before = re.escape(spelling.in_text[0].rstrip())  # two sentinels share the space between them
    if found := re.fullmatch(f"{before}{between}(.*){last}(.*)", text, re.DOTALL):
        return Written(found[2], found[1], "spm")
    return None


#: What a file's text may have in front of the first control token: the path of the file.
_PATH = re.compile(r"[^\s<>\"'`]*[./\\][^\s<>\"'`]*\n")


def _files(text: str, spelling: Spelling, begun: bool = False) -> Files | None:
    """The files that a text consists of; None if it is no list of files.

    It begins with a control token, or, as some models have it, with the path of a file. A control
    token's name in quotes, or between spaces, is part of a file.

    Args:
        text: all of it.
        spelling: of the model's family.
        begun: whether the last file may be one that is being written: then the text begins with
            the name of a repository, and there is a file.
    """
    if not text and not begun:
        return ()
    names = "|".join(map(re.escape, (*spelling.repository, *spelling.files)))
    found = [
        one
        for one in (re.finditer(names, text) if names else ())
        if text[one.start() - 1 : one.start()] not in _QUOTES
        or text[one.end() : one.end() + 1] != text[one.start() - 1]
    ]
    if not found or (found[0].start() > 0 and not _PATH.match(text)):
        return None
    if begun and not (text.startswith(spelling.repository) and found[1:]):
        return None
    ends = [*(one.start() for one in found[1:]), len(text)]
    first = [("", text[: found[0].start()])] if found[0].start() else []
    return (
        *first,
        *((one[0], text[one.end() : end]) for one, end in zip(found, ends, strict=True)),
    )


#: A name that stands between two of one kind is quoted, and no control token.
_QUOTES = frozenset(("'", '"', "`", " "))


def _parts(*parts: str | int) -> list[str | int]:
    return [part for part in parts if part != ""]
