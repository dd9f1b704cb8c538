"""A request answered: from memory, or by drawing candidates until each of them ends.

All of this runs on the thread that has the model.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple

from charwise.char_lm import CharLM
from charwise.cursor.generation import Cursor
from charwise.cursor.middle import opening_of, score_middles
from charwise.cursor.options import Limit
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import CharwiseError, SettingError
from charwise.healing.fim import Request, Template
from charwise.scoring.score import Scorer
from charwise.serve.drawing import Begun, Drawing, Tell, advance
from charwise.serve.memory import Memory
from charwise.serve.prompts import Sides, sides_of
from charwise.serve.stoppable import StoppableLM, Stopped
from charwise.serve.suggestion_cache import SuggestionCache
from charwise.serve.task import Answer, Candidate, CompletionTask
from charwise.tokens.line_ends import line_end, read, write


class _Kept(NamedTuple):
    """How much is kept: states, token trees, and bytes of them."""

    states: int = 0
    trees: int = 0
    size: int = 0


class Completions:
    """The completions of one model.

    Args:
        lm: the model; it is asked through a `StoppableLM`.
        most_bytes: of what is kept: keys and values, log-probabilities, rows.

    Attributes:
        lm: the model as a character model that can be stopped.
        engine: its engine.
        memory, suggestions: states and completions that are kept.
        kept: how much that was when a request was last begun. Other threads read this: what is
            known itself changes under their eyes.
        template: of a model that fills in.

    >>> import charwise
    >>> completions = Completions(charwise.load())
    >>> answer = completions.answer(CompletionTask("import nump", max_bytes=4), Limit())
    >>> answer.candidates[0].text, answer.candidates[0].finish
    ('y as', 'length')
    >>> completions.answer(CompletionTask("import numpy", max_bytes=4), Limit()).candidates[0].text
    ' as'
    """

    def __init__(self, lm: CharLM, most_bytes: int = 2**28) -> None:
        self.engine = StoppableLM(lm.engine)
        self.lm = CharLM(self.engine, preset=lm.effort)
        self.memory = Memory(self.lm)
        self._most_bytes = most_bytes
        self._drawing: list[SharedTree] = []
        self.suggestions = SuggestionCache()
        self.kept = _Kept()
        try:
            self.template: Template | None = Template.of(lm.vocabulary)
        except SettingError:
            self.template = None

    def answer(self, task: CompletionTask, limit: Limit, tell: Tell | None = None) -> Answer:
        """The answer to a request.

        Args:
            task: the request.
            limit: ends it between two model calls, with what there is then.
            tell: called with what can be sent of each candidate as it is drawn; candidates are
                then in the order in which they were drawn.

        Raises:
            Stopped: cancelled. CharwiseError: as `CharLM.complete`.
        """
        steps = self.steps(task, limit, tell)
        while True:
            try:
                drawing = next(steps)
            except StopIteration as ended:
                answer: Answer = ended.value
                return answer
            [error] = advance([drawing])
            if error is not None:
                steps.close()
                raise error

    def steps(
        self, task: CompletionTask, limit: Limit, tell: Tell | None = None
    ) -> Generator[Drawing, None, Answer]:
        """Yield the drafts to advance, until `answer` is ready: for several answers at a time.

        Other requests may be begun and advanced meanwhile. The model reads `\\n` at the end of each
        line, and the answer has the line ends of the text.
        """
        sides = sides_of(task, self.lm.vocabulary)
        end = line_end(sides.before, sides.after or b"")
        after = None if sides.after is None else read(sides.after)
        sides = sides._replace(before=read(sides.before), after=after)
        room = (self.engine.window or 2 * len(sides.opening)) // 2  # of other files
        far = sides.files and len(sides.opening) > room
        if far:
            rest = sides.opening[-room:]
            sides = sides._replace(opening=(*self.lm.vocabulary.bos_ids, *rest))

        def told(number: int, text: str) -> object:
            return tell and tell(number, write(text, end))

        answer = yield from self._steps(task, sides, limit, tell and told)
        candidates = tuple(one.written(end, task.options.stop) for one in answer.candidates)
        return replace(answer, candidates=candidates, truncated=answer.truncated or far)

    def _steps(
        self, task: CompletionTask, sides: Sides, limit: Limit, tell: Tell | None
    ) -> Generator[Drawing, None, Answer]:
        """`steps`, of texts whose lines end in `\\n`."""
        started = time.perf_counter()
        key = (replace(task, prompt="", suffix=None, files=()), sides.opening, sides.after)
        if task.repeatable and tell is None and (found := self._remembered(key, sides, task)):
            return replace(found, seconds=time.perf_counter() - started)
        with self.engine.until(limit):
            try:
                begun = self._begin(sides)
                self._drawing.append(begun.cursor.shared)
            except Stopped as stopped:
                if stopped.why != "time":
                    raise
                late = Candidate("", b"", 0.0, "time", None, ())
                return Answer((late,), 0, seconds=time.perf_counter() - started)
            finally:
                self.bound()
        prompt_seconds = time.perf_counter() - started
        drawing: Drawing | None = None
        try:
            drawing = Drawing(task, sides, begun, limit, tell)
            drawing.begin()
            while not drawing.ended:
                yield drawing
            candidates = drawing.candidates()
        finally:
            self._drawing.remove(begun.cursor.shared)
            if drawing is not None:
                drawing.close()
        if begun.request is not None and tell is None and not task.options.temperature:
            with self.engine.until(limit):
                candidates = _ranked(self.lm, begun.whole, begun.request, candidates)
        if task.repeatable:
            self.suggestions.add(key, sides.before, candidates)
        return Answer(
            candidates,
            begun.tokens,
            cached=begun.cached,
            seconds=time.perf_counter() - started,
            prompt_seconds=prompt_seconds,
            truncated=begun.truncated,
        )

    @property
    def size(self) -> int:
        """The bytes that are kept."""
        return self.memory.size

    @property
    def token_trees(self) -> int:
        """How many token trees are kept."""
        return self.memory.trees

    def bound(self) -> None:
        """Keep to the most bytes: free doubles first, then whole texts.

        What is drawn from just now stays.
        """
        busy, size = set(map(id, self._drawing)), self.size
        if size > self._most_bytes:
            self.memory.thin(size - self._most_bytes, busy)
            size = self.size
        while size > self._most_bytes and self.memory.forget_oldest():
            size = self.size
        self.kept = _Kept(len(self.memory), self.token_trees, size)

    def _remembered(self, key: object, sides: Sides, task: CompletionTask) -> Answer | None:
        left = self.suggestions.lookup(key, sides.before)
        left = tuple(one for one in left if one.probability >= task.threshold)
        if not left:
            return None
        tokens = len(self.lm.vocabulary.encode_beginning(sides.before[-256:]))
        return Answer(left, tokens, from_memory=True, cached=tokens)

    def _begin(self, sides: Sides) -> Begun:
        if sides.between and self.template is not None:
            assert sides.after is not None
            return self._between(sides.before, sides.after, sides.opening)
        before = len(self.memory)
        known = self.memory.after(*self.lm.vocabulary.split_prompt(sides.prompt))
        return _at(known.state, b"", len(self.memory) == before)

    def _between(self, before: bytes, after: bytes, opening: tuple[int, ...]) -> Begun:
        known = self.memory.between(before, after, opening)
        assert known.request is not None
        begun = _at(known.state, known.request.ending, known.text != before)
        cut = begun.truncated or _cut(known.request)
        return begun._replace(request=known.request, whole=known.state.whole, truncated=cut)


def _at(state: Cursor, ending: bytes, known: bool) -> Begun:
    shared = state.shared
    first = len(shared.opening.ids) + len(shared.given)
    rest = len(shared.index.vocabulary.encode_beginning(state.raw[state.exact_from :]))
    tokens = first + rest
    cut = shared.left_out > 0
    return Begun(state, ending, tokens, first if known else 0, truncated=cut)


def _cut(request: Request) -> bool:
    return bool(request.prefix_cut or request.suffix_cut)


def _ranked(
    lm: CharLM, whole: bytes, request: Request, candidates: Sequence[Candidate]
) -> tuple[Candidate, ...]:
    """Middles ranked by their probability as strings, with their ends, as `CharLM.infill` does.

    That is the sum over all tokens that spell one, what it takes over from the suffix, and its end.
    It costs about one more reading of the prompt, for all together. They stay as they came if there
    is one, if a rule or a limit cut one short, or if time is over.

    Args:
        lm: the model.
        whole: the state's text: what the prefix gave back, and what was typed since.
        request: the sides.
        candidates: what was drawn.
    """
    _, before = opening_of(request, lm.index)
    whole_middles = all(one.finish == "end" for one in candidates)
    if len(candidates) < 2 or not whole_middles or not whole.startswith(before):
        return tuple(candidates)
    typed = whole[len(before) :]
    found = [typed + one.raw for one in candidates]
    try:
        scorer = Scorer(lm.engine, lm.index, lm.effort)
        logprobs = score_middles(scorer, request, found)
    except Stopped as stopped:
        if stopped.why != "time":
            raise
        return tuple(candidates)
    except CharwiseError:  # an effort too coarse for one of them
        return tuple(candidates)
    order = sorted(range(len(found)), key=lambda n: -logprobs[n])
    return tuple(candidates[n] for n in order)
