"""Do the evaluation's tests see bugs? Most of these would be read as a better or a worse model."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import test_eval_generate as generating
import test_eval_grade as grading
import test_eval_lossless as comparing
import test_eval_prompting as asking
import test_eval_speeds as timing
import test_eval_summarise as summing

from mutations.planting import Mutation, assert_caught


def in_folder(check: Callable[[Path], None]) -> Callable[[], None]:
    """The check in a folder of its own."""

    def one() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return one


blocks_in_turn = in_folder(generating.check_blocks_go_forth_and_back)
second_run = in_folder(generating.check_noise_is_a_second_run)
same_samples = in_folder(generating.check_samples_differ_and_arms_do_not)
missing_alone = in_folder(generating.check_only_what_is_missing)
failures_left_out = in_folder(generating.check_failures_are_asked_again_and_left_out)
living_server = in_folder(generating.check_a_server_that_answers_stays)
identical = in_folder(comparing.check_identical)
corrupted = in_folder(comparing.check_corrupted)
paired_by_task = in_folder(comparing.check_pairs_by_task)
scored_as_drawn = in_folder(comparing.check_scored_as_drawn)
noise = in_folder(summing.check_noise)
own_grades = in_folder(summing.check_grades)
common_answers = in_folder(summing.check_only_common_answers_count)
speeds = in_folder(summing.check_speeds)
sandbox_errors = in_folder(summing.check_sandbox_errors)

GENERATE, GRADE, LOSSLESS, SUMMARISE = (
    f"ddtree.evals.{name}" for name in ("generate", "grade", "lossless", "summarise")
)

MUTATIONS = (
    Mutation(
        "a second run asks for everything again",
        GENERATE,
        (("if (task.id, sample) not in done[side]", "if True"),),
        (missing_alone,),
        second_run,
    ),
    Mutation(
        "answers of whichever side",
        GENERATE,
        (("if record.cell == side.cell and record.error", "if record.error"),),
        (noise, common_answers, missing_alone),
        living_server,
        error=Exception,
    ),
    Mutation(
        "failures on file as answers",
        GENERATE,
        (("record.cell == side.cell and record.error is None:", "record.cell == side.cell:"),),
        (failures_left_out, common_answers),
        second_run,
    ),
    Mutation(
        "arms always in one order",
        GENERATE,
        (("sides[:: -1 if number % 2 else 1]", "sides"),),
        (blocks_in_turn,),
        second_run,
    ),
    Mutation(
        "a living server started again",
        GENERATE,
        (("            await client.server_info()\n", '            raise EndpointError("")\n'),),
        (living_server, failures_left_out),
        second_run,
    ),
    Mutation(
        "all samples with one seed",
        "ddtree.evals.prompting",
        (("{spec.seed}:{task}:{sample}", "{spec.seed}:{task}"),),
        (asking.check_seeds, same_samples),
        second_run,
    ),
    Mutation(
        "seeds of each arm's own",
        "ddtree.evals.prompting",
        (
            (
                "sampling=sampling_of(spec, task.id,",
                "sampling=sampling_of(spec, task.id + arm.label,",
            ),
        ),
        (asking.check_seeds, same_samples),
        second_run,
    ),
    Mutation(
        "a sandbox's failure as a wrong answer",
        GRADE,
        (
            (
                "        verdict = verdicts[task, answer.program]\n",
                "        found = verdicts[task, answer.program]\n"
                '        lost = found.outcome == "sandbox_error"\n'
                '        verdict = Verdict("assertion") if lost else found\n',
            ),
        ),
        (grading.check_a_sandbox_error_stays_one, sandbox_errors),
        grading.check_pairs_of_programs_and_verdicts,
    ),
    Mutation(
        "verdicts of other programs",
        GRADE,
        (("run(list(jobs.values()))", "list(run(list(jobs.values())))[::-1]"),),
        (grading.check_pairs_of_programs_and_verdicts,),
        grading.check_lenient,
    ),
    Mutation(
        "a program again for each answer",
        GRADE,
        (
            (
                "jobs.setdefault((task.id, program), job)",
                "jobs[task.id, program + ' ' * len(jobs)] = jobs[task.id, program] = job",
            ),
        ),
        (grading.check_a_common_program_runs_once,),
        grading.check_pairs_of_programs_and_verdicts,
    ),
    Mutation(
        "answers in the order they finished in",
        GRADE,
        (("key=lambda key: (place[key[0]], key[1]))", "key=lambda key: 0)"),),
        (grading.check_order,),
        grading.check_pairs_of_programs_and_verdicts,
    ),
    Mutation(
        "whatever may be read leniently passes",
        GRADE,
        (("is not None and verdicts[task, answer.lenient].passed", "is not None"),),
        (grading.check_lenient,),
        grading.check_pairs_of_programs_and_verdicts,
    ),
    Mutation(
        "outputs paired by place",
        LOSSLESS,
        (
            (
                "= outputs.get(key), _output(",
                "= list(outputs.values())[len(pairs) % len(outputs)], _output(",
            ),
        ),
        (paired_by_task,),
        identical,
        error=Exception,
    ),
    Mutation(
        "samples scored as if they were the first",
        LOSSLESS,
        (("sampling_of(spec, *key)", "sampling_of(spec, key[0], 0)"),),
        (scored_as_drawn,),
        corrupted,
    ),
    Mutation(
        "every arm graded by the last one's answers",
        LOSSLESS,
        (
            (
                "for label, answers in sides.items():",
                "for label in sides:\n        answers = list(sides.values())[-1]",
            ),
        ),
        (corrupted,),
        identical,
    ),
    Mutation(
        "the first arm's grade for all",
        SUMMARISE,
        (("grades.get(side.cell)", "next(iter(grades.values()), None)"),),
        (own_grades,),
        noise,
    ),
    Mutation(
        "arms on tasks of their own",
        SUMMARISE,
        (("if (s.task, s.sample) in common]", "]"),),
        (common_answers,),
        noise,
        error=Exception,
    ),
    Mutation(
        "noise against the last arm",
        SUMMARISE,
        (
            (
                "paired(results[baseline], results[side]",
                "paired(results[list(results)[-2]], results[side]",
            ),
        ),
        (noise,),
        own_grades,
    ),
    Mutation(
        "a sandbox's failures unsaid",
        SUMMARISE,
        (("        if errors:\n", "        if errors > 9:\n"),),
        (sandbox_errors,),
        common_answers,
    ),
    Mutation(
        "the mean of ratios, which favours whoever varies",
        "ddtree.evals.speeds",
        (("math.exp(sum(logs) / len(logs))", "sum(map(math.exp, logs)) / len(logs)"),),
        (timing.check_means,),
        speeds,
    ),
    Mutation(
        "a speed of what never ran together",
        "ddtree.evals.speeds",
        (("record.attempt or record.error is not None", "False"),),
        (timing.check_asked_again_is_no_measurement,),
        speeds,
    ),
    Mutation(
        "ratios to another block",
        "ddtree.evals.speeds",
        (("(rate, others[block]) for", "(rate, next(iter(others.values()))) for"),),
        (timing.check_ratios_are_of_the_same_block, timing.check_means),
        speeds,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_seen(mutation: Mutation) -> None:
    assert_caught(mutation)
