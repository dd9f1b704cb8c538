"""The same ten texts, cut at three places into a prompt and choices: whose scores move?

    python examples/lm_eval/compare.py [--model FOLDER] [--preset NAME] [--json FILE]

Every item of items.jsonl is asked three times: with the space before the answer in the choice
(`before_space`), in the prompt (`after_space`), and with the answer's first letter in the prompt
too (`in_word`). The texts are the same, and so is what a model knows about them. The harness's own
`hf` adapter and charwise score them on the same model. Printed for both, at each cut:

- the accuracy;
- how far the *margin* moved, log p of the right choice less that of the best other choice, nats:
  the mean over items of its absolute difference from the margin at the first cut. All choices of
  an item have the characters that moved in common, so no margin should move.
- how far the *chain rule* fails, nats: the mean over choices of |log p(moved characters | prompt)
  + log p(rest | prompt and moved characters) − log p(choice | prompt)|. It should be 0.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

# The items are a file, and the model is in the package: nothing is asked of any server.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import lm_eval
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from rich.console import Console
from rich.table import Table

from charwise.evaluation.lm_eval import CharwiseLM
from charwise.models import EMBEDDED

HERE = Path(__file__).parent
CUTS = ("before_space", "after_space", "in_word")
MEASURES = ("margin_moved", "chain_rule")


def evaluated(model: LM, cuts: list[str]) -> dict[str, dict[str, Any]]:
    """The harness's own evaluation: accuracy, and `[items, choices]` log-likelihoods, by cut."""
    names = {f"cut_{cut}": cut for cut in cuts}
    results = lm_eval.simple_evaluate(
        model,
        tasks=list(names),
        task_manager=TaskManager(include_path=str(HERE), include_defaults=False),
        bootstrap_iters=0,
    )
    return {
        cut: {
            "accuracy": results["results"][name]["acc,none"],
            "scores": np.array(
                [
                    [logprob for logprob, _ in sample["filtered_resps"]]
                    for sample in sorted(results["samples"][name], key=lambda s: s["doc_id"])
                ]
            ),
        }
        for name, cut in names.items()
    }


def moved_characters(cut: str) -> list[tuple[str, str]]:
    """What each item's prompt has at this cut that it has not at the first: (prompt, moved)."""
    items = [json.loads(line) for line in (HERE / "items.jsonl").open(encoding="utf-8")]
    letters = {"before_space": 0, "after_space": 1, "in_word": 2}[cut]
    return [(item["before"], f" {item['choices'][0]}"[:letters]) for item in items]


def compare(model: LM) -> list[dict[str, Any]]:
    """A row a cut."""
    results = evaluated(model, list(CUTS))
    first = results[CUTS[0]]["scores"]
    rows = []
    for cut in CUTS:
        scores = results[cut]["scores"]
        row = {"cut": cut, "accuracy": results[cut]["accuracy"]}
        if cut != CUTS[0]:
            pairs = enumerate(moved_characters(cut))
            requests = [Instance("loglikelihood", {}, pair, n) for n, pair in pairs]
            moved = np.array([logprob for logprob, _ in model.loglikelihood(requests)])
            row["margin_moved"] = float(abs(margins(scores) - margins(first)).mean())
            row["chain_rule"] = float(abs(moved[:, None] + scores - first).mean())
        rows.append(row)
    return rows


def margins(scores: np.ndarray) -> np.ndarray:
    """`[items]` the right choice, which is the first, less the best of the others."""
    return scores[:, 0] - scores[:, 1:].max(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EMBEDDED, help="a folder, or a name on the hub")
    parser.add_argument("--preset", default="accurate", help="of charwise")
    parser.add_argument("--device", default="cpu", help="of both")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    args = parser.parse_args()
    os.chdir(HERE.parents[1])
    models = {
        "hf": HFLM(pretrained=args.model, dtype="float32", device=args.device),
        "charwise": CharwiseLM(
            args.model, preset=args.preset, device=args.device, batch_size="auto"
        ),
    }
    table = Table("adapter", "cut", "accuracy", "margin moved, nats", "chain rule off by, nats")
    rows = []
    for name, model in models.items():
        for row in compare(model):
            rows.append({"adapter": name, **row})
            off = [f"{row[key]:.4f}" if key in row else "" for key in MEASURES]
            table.add_row(name, row["cut"], f"{row['accuracy']:.0%}", *off)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
