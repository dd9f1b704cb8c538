"""The control tokens of models of code, as each family spells them.

    PSM   <prefix> P <suffix> S <middle> …       prefix, suffix, then the middle is written
    SPM   <prefix> <suffix> S <middle> P …       suffix first: the middle follows the prefix

Before either may stand other files of the repository:

    <repository> r <file> x.py … <file> y.py     then the template of the file that is edited

Many tokenizers list some of these as ordinary added tokens, so that a text which mentions one
would be read as the token. Here they are control tokens, whatever a tokenizer says: no text is read
as one, and none is shown. Tokens that carry content, such as `<think>`, are not among them.
"""

from __future__ import annotations

from typing import NamedTuple


class Spelling(NamedTuple):
    """How a family of models spells its control tokens.

    Attributes:
        family: the models that have them.
        prefix, suffix, middle: the sentinels; `middle` is None where models know the suffix first
            only, and the prefix stands at the end of the prompt (Codestral).
        written: the sentinels as clients write them out, where that differs.
        repository: come before the name of a repository.
        files: come before a file, so that they end the one before.
        padding: fills up a middle.
        middles: end a middle.
        turns: end a turn: generation ends there, though a configuration says whether the end of
            a text is among them.
        marks: other control tokens; they end nothing.

    >>> spelling_of({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}).family
    'StarCoder, Granite'
    """

    family: str
    prefix: str
    suffix: str
    middle: str | None
    written: tuple[str, str, str] | None = None
    repository: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    padding: tuple[str, ...] = ()
    middles: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def sentinels(self) -> tuple[str, str, str | None]:
        """The sentinels before prefix, suffix and middle."""
        return self.prefix, self.suffix, self.middle

    @property
    def names(self) -> tuple[str, ...]:
        """The sentinels."""
        return tuple(name for name in (self.prefix, self.suffix, self.middle) if name)

    @property
    def in_text(self) -> tuple[str, str, str]:
        """The sentinels as clients write them out; the last is empty where there is none."""
        return self.written or (self.prefix, self.suffix, self.middle or "")

    @property
    def ends(self) -> tuple[str, ...]:
        """The tokens that end a text and a middle: text after them belongs elsewhere."""
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
        written=("<PRE> ", " <SUF>", " <MID>"),
        middles=("▁<EOT>",),
    ),
    Spelling(
        "Codestral",
        "[PREFIX]",
        "[SUFFIX]",
        None,
        marks=("[MIDDLE]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<pad>"),
    ),
)

#: Every control token; those of repositories; those that end a text; and those that end a turn.
NAMES = frozenset(name for one in SPELLINGS for name in one.control)
REPOSITORIES = frozenset(name for one in SPELLINGS for name in one.repository)
ENDS = frozenset(name for one in SPELLINGS for name in one.ends)
TURNS = frozenset(name for one in SPELLINGS for name in one.turns)


def spelling_of(names: set[str] | frozenset[str]) -> Spelling | None:
    """The spelling whose sentinels are all among these names of special tokens; None if none is.

    >>> spelling_of({"[PREFIX]", "[SUFFIX]"}).middle is None, spelling_of({"<s>"})
    (True, None)
    """
    return next((one for one in SPELLINGS if set(one.names) <= names), None)
