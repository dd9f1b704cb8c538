"""The model behind a covering's search: a tree of an engine answers its queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from charwise.coverings.covering import Floats, Query, Source
from charwise.engine import TokenTree


def tree_source(tree: TokenTree) -> Source:
    """Return the source that answers a covering's queries by a tree, a model call for each batch.

    Contexts follow the tree's root. Only the log-probabilities of a query's ids are kept.
    """
    ends = list(tree.index.vocabulary.end_ids)

    def answer(queries: Sequence[Query]) -> Iterator[tuple[Floats, float]]:
        branches = tree.extend([(0, query.context) for query in queries])
        nodes = [branch[-1] if branch else 0 for branch in branches]
        rows = tree.logprobs(nodes).double().cpu().numpy()  # [queries, width]
        tree.forget(nodes)
        for query, row in zip(queries, rows, strict=True):
            top = max((float(row[id]) for id in ends), default=-math.inf)
            log_end = top + math.log(np.exp(row[ends] - top).sum()) if top > -math.inf else top
            yield row[query.ids], log_end

    return answer
