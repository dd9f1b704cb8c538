"""The model of lm-evaluation-harness, in the real harness and against the oracle."""

import json
import math
import random
import runpy
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import charwise
from charwise import CharLM
from charwise.errors import CharwiseError, SettingError
from commands import run
from models import Case, cases, examples

REASON = "needs lm-evaluation-harness: pip install 'charwise[lm-eval]' accelerate"

lm_eval = pytest.importorskip("lm_eval", reason=REASON)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.api.registry import Registry  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from charwise.evaluation.lm_eval import BYTES_PER_TOKEN, CharwiseLM  # noqa: E402

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "lm_eval"


@pytest.fixture(scope="module")
def model() -> CharwiseLM:
    return CharwiseLM("embedded", preset="fast", batch_size="auto")


def ask(model: CharwiseLM, kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    """What a model answers to requests of one kind."""
    requests = [
        Instance(kind, {}, arguments=pair, idx=n, task_name="", doc_id=n)
        for n, pair in enumerate(arguments)
    ]
    return getattr(model, kind)(requests, disable_tqdm=True)


def evaluate(model: Any, *tasks: Any, **options: Any) -> dict[str, Any]:
    """The harness's own evaluation, of the tasks of the examples or of others."""
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    options = {"task_manager": manager, "bootstrap_iters": 0, **options}
    return lm_eval.simple_evaluate(model, tasks=list(tasks), **options)


# --- what is computed ---------------------------------------------------------------------------


@given(cases(), st.integers(0, 8))
@examples(200)
def test_loglikelihood_and_greedy_are_those_of_the_oracle(case: Case, cut: int):
    oracle = case.model
    try:
        text = case.text.decode()
    except UnicodeDecodeError:
        return
    context, continuation = text[:cut], text[cut:]
    before, whole = context.encode(), text.encode()
    truths = [oracle.prefix(part) for part in (before, whole)]
    model = CharwiseLM(CharLM(oracle.lm, preset="exact"))
    if truths[0] == 0:
        return
    if truths[1] == 0:
        with pytest.raises(CharwiseError):
            ask(model, "loglikelihood", (context, continuation))
        return
    ((logprob, greedy),) = ask(model, "loglikelihood", (context, continuation))
    assert logprob == pytest.approx(math.log(truths[1] / truths[0]), rel=1e-9, abs=1e-9)
    rows = [oracle.next(whole[:t]) for t in range(len(before), len(whole))]
    ahead = [
        row[byte] - np.delete(row, byte).max()
        for row, byte in zip(rows, whole[len(before) :], strict=True)
    ]
    if all(abs(lead) > 1e-9 for lead in ahead):  # a tie may fall either way
        assert greedy == all(lead > 0 for lead in ahead)


def test_a_cut_changes_nothing(model: CharwiseLM):
    """log p(context) + log p(continuation | context) is the text's, wherever it is cut."""
    text = "try:\n    return self.items[name]\nexcept KeyError:\n    return None\n"
    (whole,) = ask(model, "loglikelihood_rolling", (text,))
    cuts = range(0, len(text), 7)
    starts = ask(model, "loglikelihood_rolling", *((text[:cut],) for cut in cuts))
    rests = ask(model, "loglikelihood", *((text[:cut], text[cut:]) for cut in cuts))
    # A start is a text of its own, with fewer alternatives looked at: `fast` sees 1 in 100.
    for start, (rest, _) in zip(starts, rests, strict=True):
        assert start + rest == pytest.approx(whole, abs=0.1)


def test_rolling_is_the_whole_text_and_special_tokens_are_characters(model: CharwiseLM):
    lm, text = charwise.load(), "def f(x):\n    return x\n" * 3
    answers = ask(model, "loglikelihood_rolling", (text,), ("",), ("import",))
    whole, word = (lm.prefix_logprob(each, preset="fast") for each in (text, "import"))
    assert answers == [pytest.approx(whole, rel=1e-5), 0.0, pytest.approx(word, rel=1e-5)]
    name = lm.vocabulary.special[lm.vocabulary.bos_ids[0]]
    ((logprob, _),) = ask(model, "loglikelihood", ("x = 1\n", name))
    score = lm.score(name, context="x = 1\n", preset="fast", end=True)
    assert score.raw == name.encode()
    assert logprob == pytest.approx(score.logprobs.sum(), rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, "auto"])
def test_answers_keep_the_order_of_the_requests(batch_size: int | str):
    model = CharwiseLM("embedded", preset="fast", batch_size=batch_size)
    pairs = [("import", " os"), ("x", ""), ("from collections import", " defaultdict"), ("", "def")]
    together = ask(model, "loglikelihood", *pairs)
    assert together[1] == (0.0, True)
    for pair, answer in zip(pairs, together, strict=True):
        (alone,) = ask(model, "loglikelihood", pair)
        assert answer == (pytest.approx(alone[0], abs=1e-4), alone[1])


# --- generation ---------------------------------------------------------------------------------


def test_lengths_stops_and_neutral_settings(model: CharwiseLM):
    """Tasks of the harness spell defaults of transformers."""
    context = "import os\nimport sys\n"
    neutral = {"num_beams": 1, "min_p": 0.0, "repetition_penalty": 1.0, "do_sample": False}
    free, short, alias, stopped = ask(
        model,
        "generate_until",
        (context, {"max_gen_toks": 12}),
        (context, {"max_gen_toks": 3, "until": None, **neutral}),
        (context, {"max_tokens": 3, "until": ""}),
        (context, {"max_gen_toks": 12, "until": "\n"}),
    )
    assert 0 < len(short) <= 3 * BYTES_PER_TOKEN < len(free)
    assert free.startswith(short)
    assert alias == short
    assert free.startswith(stopped + "\n")


def test_samples_follow_the_seed_of_the_harness(model: CharwiseLM):
    request = ("def ", {"do_sample": True, "max_gen_toks": 16, "temperature": 1.5, "top_p": 0.9})
    drawn = []
    for seed in (1, 1, 2):
        random.seed(seed)
        drawn.append(ask(model, "generate_until", request))
    assert drawn[0] == drawn[1] != drawn[2]
    cold = ("def ", {"do_sample": False, "max_gen_toks": 16, "temperature": 1.5})
    assert ask(model, "generate_until", cold) == ask(model, "generate_until", cold)


def test_a_long_context_loses_its_beginning(model: CharwiseLM):
    window = charwise.load().engine.window
    long = "x = 1\n" * window + "for i in rang"
    (answer,) = ask(model, "generate_until", (long, {"max_gen_toks": window // 2, "until": "\n"}))
    assert answer.startswith("e(")
    for settings in ({"max_gen_toks": window}, {"num_beams": 2, "typical_p": 0.9}):
        with pytest.raises(SettingError):
            ask(model, "generate_until", (long, settings))


def test_wrong_settings_are_refused(model: CharwiseLM):
    for settings in ({"batch_size": "many"}, {"preset": "best"}):
        with pytest.raises(SettingError):
            CharwiseLM(**settings)
    with pytest.raises(SettingError, match="chat templates"):
        evaluate(model, "cut_before_space", apply_chat_template=True)


# --- in the harness -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_harness_has_tasks_of_each_kind_for_it():
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(FOLDER / "items.jsonl")}},
        "test_split": "test",
        "num_fewshot": 0,
    }
    rolling = common | {
        "task": "rolling",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{before}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    written = common | {
        "task": "written",
        "output_type": "generate_until",
        "doc_to_text": "{{before}} {{choices[0][0]}}",
        "doc_to_target": "{{choices[0][1:].strip()}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    arguments = "pretrained=embedded,preset=fast,batch_size=auto"
    answers = evaluate("charwise", "cut_in_word", rolling, written, model_args=arguments)
    assert answers["config"]["vocabulary"].startswith("Vocabulary(")
    assert "rounds=4" in answers["config"]["effort"]
    results = answers["results"]
    assert results["cut_in_word"]["acc,none"] >= 0.9
    assert results["written"]["exact_match,none"] > 0
    items = [json.loads(line)["before"] for line in (FOLDER / "items.jsonl").open(encoding="utf-8")]
    scores = [charwise.load().score(item, preset="fast") for item in items]
    bits = -sum(score.logprobs.sum() for score in scores) / math.log(2)
    size = sum(len(score.raw) for score in scores)
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(bits / size, rel=1e-5)


def test_releases_with_plugins_find_it_by_themselves():
    """They hand the entry points of `lm_eval.models` to their registry."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    target = project["entry-points"]["lm_eval.models"]["charwise"]
    entry = EntryPoint("charwise", target, "lm_eval.models")
    registry: Registry[Any] = Registry("model", base_cls=LM)
    registry.register("charwise", target=entry)
    assert registry.get("charwise") is CharwiseLM


def test_answers_are_cached(model: CharwiseLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache = str(tmp_path / "answers")
    first = evaluate(model, "cut_in_word", use_cache=cache, limit=3)
    assert (tmp_path / "answers_rank0.db").exists()
    monkeypatch.setattr(CharLM, "scores", lambda *_, **__: pytest.fail("it is in the cache"))
    again = evaluate(model, "cut_in_word", use_cache=cache, limit=3)
    assert again["results"] == first["results"]


@pytest.mark.slow
def test_scores_of_the_stock_adapter_move_and_ours_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The comparison of docs/evaluation.md."""
    pytest.importorskip("accelerate", reason=REASON)
    file = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["compare.py", "--json", str(file)])
    runpy.run_path(str(FOLDER / "compare.py"), run_name="__main__")
    rows = {(row["adapter"], row["cut"]): row for row in json.loads(file.read_text())}
    for cut in ("after_space", "in_word"):
        ours, stock = rows["charwise", cut], rows["hf", cut]
        assert ours["margin_moved"] < 1e-2  # the tolerance of the preset, over a few words
        assert ours["chain_rule"] < 1e-2
        assert ours["accuracy"] == rows["charwise", "before_space"]["accuracy"]
        assert stock["chain_rule"] > 1
    assert rows["hf", "in_word"]["margin_moved"] > 1


@pytest.mark.slow
def test_the_command_is_that_of_the_harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Without the harness's own tasks, of which it would read all fourteen thousand files."""
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "manager.py"))
    options = "--model charwise --model_args pretrained=embedded,preset=fast --limit 2"
    command = ["lm-eval", *options.split()]
    command += ["--include_path", str(FOLDER), "--tasks", "cut_after_space", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", sys.argv)  # the command sets it
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "|cut_after_space|" in result.stdout
    assert "|acc" in result.stdout
