"""From what a model wrote to the program that its tests run with.

The order of things: cut the thinking, clean the text, find its blocks, choose one, add what it
lives on. Every step takes time linear in the text, runs nothing, and looks at no test. The rules
are the same for every arm, and `EXTRACTOR` is kept with the results: answers of two versions are
not compared.

What `Answer.flags` may say:

    thinking_cut, thinking_unclosed, thinking_inline_tag, answer_before_thinking, channels
    byte_order_mark, line_ends, special_tokens, cut_long
    odd_spaces, transcript, magics, dedented, wrapper
    stray_fence, glued_fence, late_fence, span_fence, fence_in_string, code_beside_fence
    other_label, trimmed, unparsable, continuation_cut, stub, reads_nothing, helpers
"""

import dataclasses
from collections.abc import Iterable

from ddtree.evals.extract.answer import Answer
from ddtree.evals.extract.bodies import head_of, is_promise, up_to_next
from ddtree.evals.extract.choice import Candidate, Choice, choose
from ddtree.evals.extract.cleaning import clean
from ddtree.evals.extract.definitions import definition, goal_of, has_code
from ddtree.evals.extract.fences import read_fences
from ddtree.evals.extract.helpers import helpers_for
from ddtree.evals.extract.lenient import alias_for
from ddtree.evals.extract.program import preamble_beside, program_of, sha256_of
from ddtree.evals.extract.thinking import ALL_TAGS, ThinkingTags, Visible, cut_thinking
from ddtree.evals.tasks import Task

EXTRACTOR = "1"
"""Changes with anything that may change a program."""


def extract(
    content: str | None,
    task: Task,
    finish_reason: str | None = None,
    thinking: ThinkingTags = ALL_TAGS,
) -> Answer:
    """The program in a chat's answer.

    `content` is the message's content alone: what a server keeps apart as reasoning is no answer.
    Content that never comes out of its thinking, or is empty because the limit came first
    (`finish_reason` "length"), is missing as `truncated_thinking`.
    """
    spoken = cut_thinking(content or "", thinking)
    if spoken.unclosed or not spoken.text.strip():
        return _unspoken(spoken, finish_reason)
    cleaned = clean(spoken.text)
    page = read_fences(cleaned.text)
    choice = choose(page, task)
    answer = dataclasses.replace(
        _answer(choice, task), blocks=len(page.blocks), thinking_chars=spoken.thinking_chars
    )
    return _flagged(answer, spoken.flags, cleaned.flags, page.flags)


def complete(continuation: str, task: Task) -> Answer:
    """The program that begins with the task's prompt and goes on with `continuation`.

    The continuation ends where something else begins at top level. A task whose prompt is no code
    is answered as in a chat.
    """
    if not task.prompt_is_code:
        return extract(continuation, task)
    cleaned = clean(continuation)
    if not cleaned.text.strip():
        return _flagged(Answer(program=None, missing="no_code", method="none"), cleaned.flags)
    body = up_to_next(cleaned.text, task)
    source = task.prompt + body.text
    if is_promise(source, task):
        answer = Answer(program=None, missing="no_code", method="none", flags=("stub",))
    else:
        answer = Answer(
            program=program_of(preamble_beside(task.prompt, task.preamble), source),
            missing=None,
            method="completion",
            code_sha256=sha256_of(body.text),
        )
    return _flagged(answer, cleaned.flags, body.flags)


def _unspoken(spoken: Visible, finish_reason: str | None) -> Answer:
    cut_off = spoken.unclosed or finish_reason == "length"
    answer = Answer(
        program=None,
        missing="truncated_thinking" if cut_off else "no_code",
        method="none",
        thinking_chars=spoken.thinking_chars,
    )
    return _flagged(answer, spoken.flags)


def _answer(choice: Choice, task: Task) -> Answer:
    found = choice.found
    if found is not None:
        helpers = _helpers(found, choice, task)
        return Answer(
            program=program_of(_preamble(found, task), helpers, _whole(found, task)),
            missing=None,
            method=found.method,
            flags=(*found.flags, "helpers") if helpers else found.flags,
            block=found.block,
            code_sha256=sha256_of(found.code),
        )
    stub = any(_is_promise(other, task) for other in choice.candidates)
    has_any = any(_is_code(other) and not _is_promise(other, task) for other in choice.candidates)
    return Answer(
        program=None,
        missing="entry_point_missing" if has_any else "no_code",
        method="none",
        flags=("stub",) if stub else (),
        lenient=_lenient(choice, task),
    )


def _preamble(found: Candidate, task: Task) -> str:
    is_body = found.method == "body"
    return preamble_beside(task.prompt, task.preamble) if is_body else task.preamble


def _whole(found: Candidate, task: Task) -> str:
    return head_of(task) + found.code if found.method == "body" else found.code


def _helpers(found: Candidate, choice: Choice, task: Task) -> str:
    """What `found` lives on: of two definitions of a name, that of the nearest piece before it."""
    places = [n for n, other in enumerate(choice.candidates) if other.whole == found.whole]
    at = places[-1] if places else len(choice.candidates)
    others = (*choice.candidates[at + 1 :], *choice.candidates[:at])
    sources = [(other.code, other.tree) for other in others if other.tree is not None]
    return helpers_for(_whole(found, task), sources, goal_of(task))


def _is_code(candidate: Candidate) -> bool:
    is_some = candidate.tree is not None and has_code(candidate.tree)
    return candidate.is_python or is_some


def _is_promise(candidate: Candidate, task: Task) -> bool:
    """Whether it defines the entry point: unchosen, that is as a stub."""
    return candidate.tree is not None and definition(candidate.tree, goal_of(task)) is not None


def _lenient(choice: Choice, task: Task) -> str | None:
    """A program under the lenient reading, from the last piece of code that allows one."""
    for candidate in reversed(choice.candidates):
        alias = None if candidate.tree is None else alias_for(candidate.tree, task)
        if alias is not None:
            helpers = _helpers(candidate, choice, task)
            return program_of(task.preamble, helpers, candidate.code, alias)
    return None


def _flagged(answer: Answer, *more: Iterable[str]) -> Answer:
    """With its flags and `more`, sorted."""
    flags = {*answer.flags, *(flag for some in more for flag in some)}
    return dataclasses.replace(answer, flags=tuple(sorted(flags)))
