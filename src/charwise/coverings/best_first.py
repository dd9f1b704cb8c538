"""The model behind a covering's search: a tree of an engine answers its queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from charwise.coverings.covering import Floats, Query, Source
from charwise.token_lm import TokenTree
from charwise.tokens.index import SortedVocabulary


def tree_source(tree: TokenTree, index: SortedVocabulary) -> Source:
    """Return the source that answers a covering's queries by a tree, a model call for each batch.

    Contexts follow the tree's root. Only the log-probabilities of a query's ids are kept.
    """
    nodes: dict[tuple[int, ...], int] = {(): tree.root}
    ends = list(index.vocabulary.end_ids)

    def answer(queries: Sequence[Query]) -> Iterator[tuple[Floats, float]]:
        new = [query.context for query in queries if query.context]
        made = tree.extend([(nodes[context[:-1]], context[-1]) for context in new])
        nodes.update(zip(new, made, strict=True))
        asked = [nodes[query.context] for query in queries]
        rows = tree.logprobs(asked).double().cpu().numpy()  # [queries, width]
        tree.forget(asked)
        for query, row in zip(queries, rows, strict=True):
            top = max((float(row[id]) for id in ends), default=-math.inf)
            log_end = top + math.log(np.exp(row[ends] - top).sum()) if top > -math.inf else top
            yield row[query.ids], log_end

    return answer
