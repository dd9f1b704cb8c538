"""The control tokens of models: how each family spells them, and which begin and end a text.

    PSM   <prefix> P <suffix> S <middle> …       prefix, suffix, then the middle is written
    SPM   <prefix> <suffix> S <middle> P …       suffix first: the middle follows the prefix
    SPM   <suffix> S <prefix> P <middle> …       the same, of models trained so (Seed-Coder)

Before either may stand other files of the repository:

    <repository> r <file> x.py … <file> y.py     then the template of the file that is edited

Many tokenizers list some of these as ordinary added tokens. Here they are control tokens, whatever
a tokenizer says: no text is read as one, and none is shown. Tokens that carry content, such as
`<think>`, are not among them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Spelling(NamedTuple):
    """How a family of models spells its control tokens."""

    family: str
    prefix: str
    suffix: str
    middle: str | None  # None where the prefix stands at the end of the prompt
    #: The sentinels as clients write them out, where that differs.
    client_names: tuple[str, str, str] | None = None
    #: Whether models know no other order than suffix, prefix, middle.
    suffix_first: bool = False
    repository: tuple[str, ...] = ()  # before the name of a repository
    files: tuple[str, ...] = ()  # before a file: they end the one before
    padding: tuple[str, ...] = ()  # fills up a middle
    middles: tuple[str, ...] = ()  # end a middle
    #: End a turn, and generation; whether a text too, a configuration says.
    turns: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # others, which end nothing

    @property
    def sentinels(self) -> tuple[str, str, str | None]:
        """The sentinels before prefix, suffix and middle."""
        return self.prefix, self.suffix, self.middle

    @property
    def names(self) -> tuple[str, ...]:
        """The sentinels that there are."""
        return tuple(filter(None, self.sentinels))

    @property
    def in_text(self) -> tuple[str, str, str]:
        """The sentinels as clients write them out; "" for none."""
        return self.client_names or (self.prefix, self.suffix, self.middle or "")

    @property
    def ends(self) -> tuple[str, ...]:
        """The tokens that end a text and a middle."""
        return (*self.files, *self.repository, *self.padding, *self.middles)

    @property
    def control(self) -> tuple[str, ...]:
        """All control tokens of the family."""
        return (*self.names, *self.ends, *self.turns, *self.marks)


#: By family; the first whose sentinels a vocabulary has is its own.
SPELLINGS = (
    Spelling(
        "StarCoder, Granite",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        repository=("<repo_name>", "<reponame>"),
        files=("<file_sep>", "<filename>"),
        padding=("<fim_pad>",),
        turns=("<|end|>",),
        marks=(
            *("<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>"),
            *("<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>"),
            *("<jupyter_script>", "<empty_output>", "<commit_before>", "<commit_msg>"),
            *("<commit_after>", "<code_to_intermediate>", "<intermediate_to_code>"),
            *("<pr>", "<pr_status>", "<pr_is_merged>", "<pr_base>", "<pr_file>", "<pr_base_code>"),
            *("<pr_diff>", "<pr_diff_hunk>", "<pr_comment>", "<pr_event_id>", "<pr_review>"),
            *("<pr_review_state>", "<pr_review_comment>", "<pr_in_reply_to_review_id>"),
            *("<pr_in_reply_to_comment_id>", "<pr_diff_hunk_comment_line>"),
            *("<|system|>", "<|user|>", "<|assistant|>"),
        ),
    ),
    Spelling(
        "Qwen, CodeGemma, Granite 4",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository=("<|repo_name|>", "<|reponame|>"),
        files=("<|file_sep|>", "<|file_separator|>", "<|filename|>"),
        padding=("<|fim_pad|>",),
        turns=("<|im_end|>", "<end_of_turn>"),
        marks=(
            *("<|im_start|>", "<start_of_turn>", "<|start_of_role|>", "<|end_of_role|>"),
            *("<pad>", "<|pad|>"),
            *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
            *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
            *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
        ),
    ),
    Spelling(
        "DeepSeek-Coder",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        turns=("<|EOT|>",),
        marks=(
            *("<pad>", "<｜▁pad▁｜>"),
            *("<｜User｜>", "<｜Assistant｜>", "<|User|>", "<|Assistant|>"),
        ),
    ),
    Spelling(
        "Code Llama",
        "▁<PRE>",
        "▁<SUF>",
        "▁<MID>",
        client_names=("<PRE> ", " <SUF>", " <MID>"),
        middles=("▁<EOT>",),
    ),
    Spelling(
        "Codestral",
        "[PREFIX]",
        "[SUFFIX]",
        None,
        marks=("[MIDDLE]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<pad>"),
    ),
    # Zed's crates/edit_prediction/src/fim.rs; llama.cpp's src/llama-vocab.cpp.
    Spelling(
        "GLM, CodeGeeX 4",
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        marks=("[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|observation|>"),
    ),
    # Seed-Coder's report, arXiv 2506.03524; the cards of zed-industries/zeta-2 and zeta-2.1.
    Spelling(
        "Seed-Coder, Zeta 2",
        "<[fim-prefix]>",
        "<[fim-suffix]>",
        "<[fim-middle]>",
        suffix_first=True,
        files=("<filename>",),
        marks=("<[PAD▁TOKEN]>", "<[SEP▁TOKEN]>"),
    ),
    # The card of bigcode/santacoder.
    Spelling("SantaCoder", "<fim-prefix>", "<fim-suffix>", "<fim-middle>", padding=("<fim-pad>",)),
)

#: Every control token; those of repositories; those that end a text; and those that end a turn.
NAMES = frozenset(name for one in SPELLINGS for name in one.control)
REPOSITORIES = frozenset(name for one in SPELLINGS for name in one.repository)
ENDS = frozenset(name for one in SPELLINGS for name in one.ends)
TURNS = frozenset(name for one in SPELLINGS for name in one.turns) | {"<|eot_id|>", "<|eom_id|>"}


#: Tokens that separate documents, as model families spell them.
_DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>")

#: Markers of turns, which plain text does not have.
_TURN_MARKERS = TURNS | {
    *("<|im_start|>", "<start_of_turn>", "<|start_of_role|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|user|>", "<|assistant|>", "<|system|>"),
}

_MARKUP = re.compile(r"[<\[{(].*[>\])}]|[<▁\[]*(?:EOS|EOT|eos)[>\]]*", re.DOTALL)


class ControlTokens(NamedTuple):
    """What a tokenizer does around its control tokens, where they are written out in a text."""

    #: Names that chat templates have for some ("bos_token") → their spellings.
    roles: Mapping[str, str] = {}
    #: Those that take the whitespace before them, or after them.
    strip_before: frozenset[int] = frozenset()
    strip_after: frozenset[int] = frozenset()
    #: Bytes that are implied between a control token and a text, or one that begins with a space.
    prefix: bytes = b""
    space_prefix: bytes = b""


def spelling_of(names: set[str] | frozenset[str]) -> Spelling | None:
    """Return the spelling whose sentinels are all among these names of special tokens, or None."""
    return next((one for one in SPELLINGS if set(one.names) <= names), None)


def start_and_end(
    special: Mapping[int, str],
    tokens: Sequence[bytes | None],
    *,
    added: Sequence[int] = (),
    start: int | None = None,
    end: int | None = None,
    configured: Iterable[int] = (),
) -> dict[str, Any]:
    """Return `bos_ids`, `end_ids` and the sentences on them, as arguments of `Vocabulary`.

    A model of chats may name markers of turns as its start and end token (`<|im_start|>`), which
    plain text does not follow in its training data. So a text begins after the tokens `added` by
    the tokenizer itself, else after the `start` that it names, unless that is a marker of turns,
    else after the token that ends a document. Words are no end tokens, though `configured`.
    """
    configured = list(configured)
    words = [id for id in configured if id != end and id not in special and _is_word(id, tokens)]
    ends = [] if end is None else [end]
    ends += [id for id in configured if id not in words and id not in ends]
    rule = "as the tokenizer and the model's configuration say"
    plain = [id for id in ends if special.get(id) not in _TURN_MARKERS]
    ids = {name: id for id, name in special.items()}
    known = next((ids[name] for name in _DOCUMENT_ENDS if name in ids), None)
    if not plain and known is not None:
        plain = [known]
        rule = f"{special[known]}, which ends a document; others {rule}" if ends else special[known]
    if words:
        listed = ", ".join(
            f"{id} ({(tokens[id] or b'').decode('utf-8', 'replace')!r})" for id in words
        )
        rule += f"; the configuration's end token {listed} is a word, and is ignored"
    separator = next(iter([*plain, *ends]), None)
    control = [id for id, name in special.items() if name in ENDS]
    all_ends = tuple(sorted({*ends, *plain, *control}))
    if not all_ends and not words:
        rule = "no end-of-text token exists"
    first, why = _start(special, added, start, separator)
    return {"bos_ids": first, "bos_rule": why, "end_ids": all_ends, "end_rule": f"{rule}."}


def _is_word(id: int, tokens: Sequence[bytes | None]) -> bool:
    """Whether an id is a token of text that does not look like markup, such as `</s>`."""
    token = tokens[id] if 0 <= id < len(tokens) else None
    return token is not None and not _MARKUP.fullmatch(token.decode("utf-8", "replace"))


def _start(
    special: Mapping[int, str], added: Sequence[int], start: int | None, separator: int | None
) -> tuple[tuple[int, ...], str]:
    """The ids before any text, and the sentence that says why these."""
    if added:
        return tuple(added), "the start token that the tokenizer itself adds."
    if start is not None and special.get(start) not in _TURN_MARKERS:
        return (start,), "the tokenizer's start token, which it does not add."
    if separator is None and start is not None:
        return (start,), "the tokenizer's start token, though it is a marker of turns."
    if separator is None:
        return (), "neither a start token nor an end-of-text token exists."
    if start is None:
        return (separator,), "no start token exists: conditioned on the end-of-text token instead."
    return (separator,), (
        f"{special.get(separator)}, which ends a document: the tokenizer's start token "
        f"{special[start]} is a marker of turns, which it does not add."
    )
