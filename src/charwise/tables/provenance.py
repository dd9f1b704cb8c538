"""The origin of an output: all that its numbers depend on, and the sentence that reports it.

Outputs with the same facts, but for the date and the names of files, have the same numbers on the
same kind of processor.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charwise.errors import SettingError
from charwise.models import EMBEDDED
from charwise.tables.job import Job
from charwise.tables.output import Output
from charwise.tables.readers import Source

if TYPE_CHECKING:
    from charwise.char_lm import CharLM
    from charwise.tokens.vocabulary import Vocabulary

#: What a paper that uses the numbers should cite.
_CITATIONS = (
    "T. Vieira, B. LeBrun, M. Giulianelli, J. L. Gastaldi, B. DuSell, J. Terilla, T. J. O'Donnell "
    "and R. Cotterell. From Language Models over Tokens to Language Models over Characters. "
    "ICML 2025.",
    "M. Giulianelli, L. Malagutti, J. L. Gastaldi, B. DuSell, T. Vieira and R. Cotterell. On the "
    "Proper Treatment of Tokenization in Psycholinguistics. EMNLP 2024.",
)

_WHITESPACE = (
    "B.-D. Oh and W. Schuler. Leading Whitespaces of Language Models' Subword Vocabulary Pose a "
    "Confound for Calculating Word Probabilities. EMNLP 2024."
)
_ENDS_OF_WORDS = "T. Pimentel and C. Meister. How to Compute the Probability of a Word. EMNLP 2024."
_FREQUENCIES = "R. Speer. rspeer/wordfreq. Zenodo, 2022. doi:10.5281/zenodo.7199437."

_WORDS = {
    "leading": "whitespace counted with the word after it",
    "trailing": "whitespace counted with the word before it",
    "none": "whitespace not counted with words",
    "ending": "each counted with its end, by ASCII whitespace or the end of the text",
}

#: What decides a model's numbers, of the files in its folder.
_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.model", "*.gguf", "merges.txt", "vocab.txt")


def origin(
    job: Job, lm: CharLM, output: Output, revision: str | None, command: str
) -> dict[str, Any]:
    """Return the facts of an output that is to be finished; its inputs may be gone by now."""
    identity, done = output.identity, output.progress
    model = str(identity["--model"])
    options = {name.removeprefix("--"): identity[name] for name in identity if name[:2] == "--"}
    digests = [str(identity[f"file {n}"])[-64:] for n in range(1, len(job.sources) + 1)]
    info = lm.info()
    return {
        "charwise": version("charwise"),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        **options,
        "wordfreq": version("wordfreq") if job.measure.covariates else None,
        **_content(model, revision),
        "tokenizer SHA-256": _digest_of(lm.vocabulary),
        "engine": info.get("engine"),
        "device": info.get("device"),
        "dtype": info.get("dtype"),
        "inputs": [
            {"file": source.name, "SHA-256": digest}
            for source, digest in zip(job.sources, digests, strict=True)
        ],
        "texts": done.rows - done.bad,
        "rows": done.records,
        "left out": done.bad,
        "largest error in bits": done.largest,
    }


def _content(model: str, revision: str | None) -> dict[str, str | None]:
    """What says which weights those are: a commit on the hub, or a hash of files."""
    path = Path(EMBEDDED if model == "embedded" else model).expanduser()
    if path.is_file():
        return {"model SHA-256": Source(str(path)).digest()}
    if path.is_dir():
        whole = hashlib.sha256()
        for file in sorted({file for form in _MODEL_FILES for file in path.glob(form)}):
            whole.update(f"{file.name} {Source(str(file)).digest()}\n".encode())
        return {"model SHA-256": whole.hexdigest()}
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", revision=revision)
    # .../snapshots/COMMIT/config.json
    return {"model commit": Path(config).parent.name if isinstance(config, str) else revision}


def _digest_of(vocabulary: Vocabulary) -> str:
    """A hash of the bytes of all tokens, and of which begin and end a text."""
    whole = hashlib.sha256(repr((vocabulary.bos_ids, vocabulary.end_ids)).encode())
    for token in vocabulary.tokens:
        whole.update(repr(token).encode())
    return whole.hexdigest()


def commit() -> str | None:
    """The commit of the source that runs, with "-dirty" if it was changed; None for a wheel."""
    folder = Path(__file__).parents[3]
    if not (folder / ".git").exists():
        try:
            installed = json.loads(distribution("charwise").read_text("direct_url.json") or "{}")
        except PackageNotFoundError:
            return None
        identity = installed.get("vcs_info", {}).get("commit_id")
        return str(identity)[:12] if identity else None
    wanted = "describe --always --dirty --exclude=* --abbrev=12"  # no tag stands for a commit
    command = ["git", "-C", str(folder), *wanted.split()]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_origin(out: Path) -> dict[str, Any]:
    """Return the facts that lie beside an output."""
    if not out.is_file():
        raise SettingError(f"{out} is no file: --methods describes an output of `charwise score`.")
    beside = out.with_name(out.name + ".json")
    try:
        facts = json.loads(beside.read_bytes())
        facts["model"], facts["dtype"], facts["charwise"], facts["per"]
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingError(
            f"{beside} is not there, or `charwise score` did not write it: --methods "
            "describes an output of `charwise score … --out FILE`. Name that."
        ) from None
    if Source(str(out)).digest() != facts.get("output SHA-256"):
        raise SettingError(f"{out} is no longer as charwise wrote it: {beside} describes another.")
    return dict(facts)


def methods_of(outputs: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the facts of each finished output with the sentence on them, and papers to cite."""
    origins = [(out, _read_origin(Path(out))) for out in outputs]
    words = [facts for _, facts in origins if facts.get("per") == "word"]
    papers = [*_CITATIONS, *([_WHITESPACE] if words else [])]
    if any(facts.get("convention") == "ending" for facts in words):
        papers.append(_ENDS_OF_WORDS)
    if any(facts.get("covariates") for facts in words):
        papers.append(_FREQUENCIES)
    each = [{"out": out, "sentence": _sentence(facts), "origin": facts} for out, facts in origins]
    return each, papers


def _sentence(facts: Mapping[str, Any]) -> str:
    """Return the sentences that a section on methods needs."""
    per = "character" if facts["per"] == "char" else facts["per"]
    labels = [label for label in ("commit", "SHA-256") if facts.get(f"model {label}")]
    which = [f"{label} {facts[f'model {label}'][:12]}" for label in labels] + [facts["dtype"]]
    effort = f"preset {facts.get('preset')}"
    if not facts.get("preset"):
        effort = f"tolerance {facts.get('tolerance')} bits a byte"
    parts = [
        f"We computed the surprisal of {per}s in bits, from the distribution over characters that "
        f"sums over all token strings of {facts['model']} ({', '.join(filter(None, which))}), with "
        f"charwise {facts['charwise']}"
    ]
    if facts.get("commit"):
        parts.append(f", commit {facts['commit']}")
    parts.append(f" ({effort})")
    if per == "word" and facts.get("convention"):
        parts.append(f", {_WORDS[facts['convention']]}")
    if facts.get("context-column"):
        parts.append(". Each text was conditioned on its context, which was not scored.")
    else:
        parts.append(". Each text was scored on its own.")
    largest = facts.get("largest error in bits", 0.0)
    parts.append(f" The largest stated error of a row is {largest:.2g} bits.")
    if left_out := facts.get("left out", 0):
        parts.append(f" {left_out:,} of the texts had no score, and were left out.")
    if facts.get("covariates"):
        parts.append(
            f" Frequencies of words are those of wordfreq {facts['wordfreq']} for the language "
            f"{facts['covariates']!r}."
        )
    return "".join(parts)
