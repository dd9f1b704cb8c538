"""What importing charwise costs: nothing heavy until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "tiktoken", "safetensors", "pandas", "matplotlib")


def loaded_after(statement: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `statement`."""
    script = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import charwise",
        "import charwise; charwise.Vocabulary; charwise.SortedVocabulary; charwise.healing",
        "import charwise; dir(charwise)",
        """
from charwise import Effort
from charwise.scoring.effort import effort_of
assert effort_of(Effort(5)) != effort_of("fast")
""",
        """
from charwise import SortedVocabulary, Vocabulary, healing
index = SortedVocabulary(Vocabulary.from_bytes([b"s", b"weep", b"sw", None], bos_ids=[3]))
assert healing.cut("sw", index) == ([3], b"sw")
assert healing.remaining(b"sw", [0], index.vocabulary) == b"w"
assert healing.allowed_next(b"w", index).tolist() == [1]
assert index.bitmask(b"s").tolist() == [0b101]
""",
    ],
    ids=["charwise", "names", "dir", "effort", "healing"],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    assert loaded_after(statement) == set()


def test_masks_need_torch_but_not_transformers() -> None:
    assert loaded_after(
        "from charwise import SortedVocabulary, Vocabulary\n"
        "SortedVocabulary(Vocabulary.from_bytes([b'a'])).mask(b'a')"
    ) == {"torch"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    import charwise

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = charwise.nothing
