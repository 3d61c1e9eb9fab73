"""Requests: what is asked, how it is drawn, where it stops."""

import itertools

import pytest

from ddtree.endpoint.calls import Chat, Message
from ddtree.evals import prompting
from ddtree.evals.extract.extract import complete, extract
from ddtree.evals.tasks import AssertTests, CallTests, IOCase, StdinTests, Task
from ddtree.records.sampling import Sampling
from evals.eval_parts import AR, CHAIN, RIGHT, TREE, WARM, fenced, spec_of, task

FUNCTION = task(1)
CALLED = Task("square", "Write a function for squares.\n", "square", CallTests(((3,),), (9,)))
ASSERTED = Task("cube", "Write a function.", "cube", AssertTests("assert cube(2) == 8\n"))
METHOD = Task(
    "half", "Halve it.\n\n", "half", CallTests(((4,),), (2,), of_class="Solution"), preamble="x = 1"
)
SCRIPT = Task("sum", "Add all numbers.\n", None, StdinTests((IOCase("1 2\n", "3\n"),)))
BLOCK_AT_END = "in exactly one ```python block as the last thing of your answer."
SMALL = (2, 3, 4)


def test_a_function_is_completed_in_a_block() -> None:
    text = prompting.chat_text(FUNCTION)
    assert text.startswith("Complete the following Python function.")
    assert "its name and signature unchanged" in text
    assert text.endswith(f"```python\n{FUNCTION.prompt.rstrip()}\n```")
    assert text.count("```python\n") == 1


@pytest.mark.parametrize("called", [CALLED, ASSERTED, METHOD], ids=lambda item: item.id)
def test_a_function_that_tests_call_is_named(called: Task) -> None:
    text = prompting.chat_text(called)
    assert text.startswith(called.prompt.rstrip() + "\n\nAnswer with Python code")
    assert f"defines `{called.entry_point}`" in text
    assert text.endswith(BLOCK_AT_END)


def test_a_program_reads_and_prints() -> None:
    text = prompting.chat_text(SCRIPT)
    assert text.startswith("Add all numbers.\n\nWrite a complete Python program that reads")
    assert "`None`" not in text
    assert "exactly one ```python block as the last thing of your answer." in text


def test_tests_are_never_shown() -> None:
    for asked in (FUNCTION, CALLED, ASSERTED, METHOD, SCRIPT):
        text = prompting.chat_text(asked)
        assert "assert" not in text
        assert "1 2" not in text


def test_an_answer_in_the_form_that_was_asked_for_is_read() -> None:
    read = extract(fenced(RIGHT.format(1)), FUNCTION)
    assert (read.missing, read.method, read.flags) == (None, "fence", ())


def test_a_conversation_is_one_turn_with_the_templates_variables() -> None:
    spec = spec_of(thinking=True, template=(("effort", "low"),))
    prompt = prompting.prompt_of(CALLED, spec)
    assert prompt == Chat(
        (Message("user", prompting.chat_text(CALLED)),),
        (("effort", "low"), ("enable_thinking", True)),
    )
    plain = prompting.prompt_of(CALLED, spec_of())
    assert isinstance(plain, Chat)
    assert plain.template == ()


def test_a_completion_is_the_prompt_itself() -> None:
    assert prompting.prompt_of(FUNCTION, spec_of(prompting="completion")) == FUNCTION.prompt


def test_a_completion_stops_where_the_function_ends() -> None:
    body = "    y = x + 1  # def\n    assert y\n    print(y)\n    return y\n"
    request = prompting.request_of(spec_of(prompting="completion"), FUNCTION, SMALL, AR, 0)
    assert not [stop for stop in request.stop if stop in body]
    for after in ("def other():", "class A:", "# Test", "if __name__ ==", "print(add1(2))", "@f"):
        cut = min(
            (body + after).find(stop) for stop in request.stop if (body + after).find(stop) >= 0
        )
        assert complete(body[:cut], FUNCTION).missing is None
        assert (body + after)[cut:] == "\n" + after
    assert prompting.request_of(spec_of(), FUNCTION, SMALL, AR, 0).stop == ()


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_a_request_says_all(form: str) -> None:
    request = prompting.request_of(
        spec_of(prompting=form, max_tokens=77), FUNCTION, SMALL, TREE, sample=0
    )
    assert (request.prompt, request.max_tokens, request.arm) == (SMALL, 77, TREE)
    assert request.keep_text
    assert not request.ignore_eos


def check_seeds() -> None:
    """The same for every arm; another one for each task, sample and evaluation."""
    spec = spec_of(arms=(AR, CHAIN, TREE), sampling=WARM, samples=3)
    some = [task(number) for number in range(1, 6)]
    seeds = set()
    for asked, sample in itertools.product(some, range(3)):
        of_arms = {
            prompting.request_of(spec, asked, SMALL, arm, sample).sampling for arm in spec.arms
        }
        assert len(of_arms) == 1
        drawn = of_arms.pop()
        assert drawn.temperature == WARM.temperature
        assert drawn.seed is not None
        assert 0 <= drawn.seed < 2**32
        seeds.add(drawn.seed)
    assert len(seeds) == 15
    other = spec_of(sampling=WARM, samples=3, seed=8)
    assert prompting.sampling_of(other, some[0].id, 0).seed not in seeds
    again = spec_of(sampling=WARM, max_tokens=99)
    assert prompting.sampling_of(again, some[0].id, 0).seed in seeds


def test_seeds_are_shared_by_arms_alone() -> None:
    check_seeds()


@pytest.mark.parametrize("greedy", [Sampling(), Sampling(repetition_penalty=1.2)])
def test_greedy_answers_have_no_seed(greedy: Sampling) -> None:
    request = prompting.request_of(spec_of(sampling=greedy), FUNCTION, SMALL, AR, 0)
    assert request.sampling == greedy
    assert request.sampling.seed is None


def test_a_seed_in_the_sampling_itself_is_replaced() -> None:
    """One seed for all would draw the same answer again and again."""
    spec = spec_of(sampling=Sampling(temperature=1.0, seed=5), samples=2)
    drawn = {prompting.sampling_of(spec, "t", sample).seed for sample in range(2)}
    assert len(drawn) == 2
    assert 5 not in drawn
