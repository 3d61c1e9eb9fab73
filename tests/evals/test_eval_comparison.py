"""Rows and paired results from graded samples."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.errors import ConfigError
from ddtree.evals import comparison
from ddtree.evals.comparison import GradedSample
from ddtree.evals.outcomes import OUTCOMES
from ddtree.evals.statistics import cluster_interval, wilson
from ddtree.records.arms import Arm
from ddtree.records.evals import EvalSummary
from mutations.planting import Mutation, assert_caught

AR, TREE = Arm("ar"), Arm("ddtree", 16, 4)
FAILED, PASSED = "assertion", "passed"


def sample(task: int, outcome: str = PASSED, number: int = 0, **changes) -> GradedSample:
    plain = comparison.GradedSample(
        task=f"t{task}",
        sample=number,
        outcome=outcome,  # type: ignore[arg-type]
        lenient_passed=outcome == PASSED,
        method="fence",
        flags=(),
        missing=None,
        text=f"answer {task}",
        token_ids=(task, number),
        finish_reason="stop",
    )
    return dataclasses.replace(plain, **changes)


def answers(outcomes: str) -> list[GradedSample]:
    """p passed, f failed, x sandbox error; one task each."""
    names = {"p": PASSED, "f": FAILED, "x": "sandbox_error"}
    return [sample(n, names[letter]) for n, letter in enumerate(outcomes)]


def check_single_samples() -> None:
    found = comparison.row(TREE, answers("ppfp"), 0, speeds=comparison.Speeds(10.0, 2.0, 3.5))
    assert (found.tasks, found.samples, found.passed) == (4, 4, 3)
    assert found.pass_at == {1: 0.75}
    assert found.interval == wilson(3, 4)
    assert found.outcomes == {"passed": 3, "assertion": 1}
    assert (found.tokens_per_s, found.speedup, found.acceptance_length) == (10.0, 2.0, 3.5)
    assert found.paired is None


def check_sandbox_errors_are_no_wrong_answers() -> None:
    found = comparison.row(AR, answers("ppfx"), 0)
    assert (found.tasks, found.samples, found.passed) == (3, 4, 2)
    assert found.pass_at == {1: pytest.approx(2 / 3)}
    assert found.interval == wilson(2, 3)
    assert found.outcomes["sandbox_error"] == 1
    result = comparison.paired(answers("pppf"), answers("pxfp"), 0)
    assert (result.both, result.only_baseline, result.only_arm, result.neither) == (1, 1, 1, 0)
    assert result.compared == 4


def check_several_samples() -> None:
    samples = [sample(t, FAILED if t == n else PASSED, n) for t in range(4) for n in range(2)]
    found = comparison.row(AR, samples, 5)
    assert found.pass_at == {1: 0.75, 2: 1.0}
    assert found.interval == cluster_interval([0.5, 0.5, 1.0, 1.0], 5)
    # One task with fewer samples: what would be left is another set of tasks.
    assert set(comparison.row(AR, samples[1:], 5).pass_at) == {1}


def check_table() -> None:
    result = comparison.paired(answers("pppff"), answers("ppffp"), 1)
    assert (result.both, result.only_baseline, result.only_arm, result.neither) == (2, 1, 1, 1)
    assert result.mcnemar_p == 1
    assert result.difference == 0
    assert result.interval is not None
    assert result.interval.low < 0 < result.interval.high
    assert 0 < result.excluded_loss < 1
    loss = comparison.paired(answers("pppp"), answers("ppff"), 1)
    assert loss.difference == -0.5
    assert loss.excluded_loss > 0.5


def check_discordant() -> None:
    arm = [sample(0), sample(1, "timeout", text="while True: pass")]
    (found,) = comparison.paired(answers("pp"), arm, 0).discordant
    assert dataclasses.astuple(found) == (
        *("t1", "passed", "timeout", "answer 1", "while True: pass"),
    )


def check_pairs_by_name() -> None:
    """Whatever finished first: tasks and samples are paired by name."""
    baseline = [sample(t, FAILED if t % 3 else PASSED, n) for t in range(6) for n in range(2)]
    shuffled = baseline[7:] + baseline[:7]
    result = comparison.paired(baseline, shuffled, 0)
    assert (result.only_baseline, result.only_arm) == (0, 0)
    assert result.identical == result.compared == 12
    assert result.discordant == ()
    assert result.interval is None


def check_first_samples_make_the_table() -> None:
    baseline = [sample(t, PASSED, n) for t in range(3) for n in range(2)]
    arm = [sample(t, PASSED if n == 0 else FAILED, n) for t in range(3) for n in range(2)]
    result = comparison.paired(baseline, arm[::-1], 0)
    assert (result.both, result.only_baseline) == (3, 0)
    assert result.difference == -0.5


def check_identity() -> None:
    """By token ids where both have them, by text elsewhere."""
    base = answers("ppp")
    arm = [
        sample(0, token_ids=(9,)),
        sample(1, token_ids=None),
        sample(2, token_ids=None, text="another"),
    ]
    assert comparison.paired(base, arm, 0).identical == 1
    retold = [dataclasses.replace(item, text="spelled otherwise") for item in base]
    assert comparison.paired(base, retold, 0).identical == 3


def check_extraction_is_counted() -> None:
    samples = [
        sample(0),
        sample(1, "no_code", method="none", missing="no_code"),
        sample(2, "truncated_thinking", method="none", missing="truncated_thinking"),
        sample(3, "entry_point_missing", lenient_passed=True, missing="entry_point_missing"),
        sample(4, finish_reason="length"),
    ]
    found = comparison.row(AR, samples, 0)
    assert found.methods == {
        "fence": 2,
        "none, no_code": 1,
        "none, truncated_thinking": 1,
        "fence, entry_point_missing": 1,
    }
    assert (found.passed, found.lenient_passed) == (2, 3)
    assert found.length_share == 0.2


def check_moved_extraction_is_an_alarm() -> None:
    base = answers("p" * 60)
    moved = [
        sample(n, "no_code", method="none", missing="no_code") if n % 2 else sample(n)
        for n in range(60)
    ]
    assert comparison.paired(base, base, 0).method_shift is None
    assert comparison.paired(base, moved, 0).method_shift is not None


CHECKS = (
    check_single_samples,
    check_sandbox_errors_are_no_wrong_answers,
    check_several_samples,
    check_table,
    check_discordant,
    check_pairs_by_name,
    check_first_samples_make_the_table,
    check_identity,
    check_extraction_is_counted,
    check_moved_extraction_is_an_alarm,
)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_code_as_it_is(check) -> None:
    check()


def test_what_can_not_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="task 't2', sample 0; both must"):
        comparison.paired(answers("ppp"), answers("pp"), 0)
    with pytest.raises(ConfigError, match="a sample comes twice"):
        comparison.paired(answers("pp"), [*answers("pp"), sample(1)], 0)
    with pytest.raises(ConfigError, match="no sample was graded for both"):
        comparison.paired(answers("px"), answers("xp"), 0)
    with pytest.raises(ConfigError, match=r"ddtree\(16,4\): no sample was graded"):
        comparison.row(TREE, answers("x"), 0)


def test_the_stronger_evidence_is_named() -> None:
    base, worse = answers("pppp"), [sample(0, FAILED, token_ids=(7,)), *answers("pppp")[1:]]

    def said(arm, grade=None):
        against = comparison.paired(base, arm, 0, grade)
        return comparison.evidence(comparison.row(TREE, arm, 0, against=against))

    assert "All 4 outputs are identical. That is the stronger evidence" in said(base)
    assert "excludes a loss of more than 52.7 points" in said(base)
    assert "3 of 4 outputs are identical and the others differ by near-ties" in said(
        worse, "near-ties"
    )
    assert "others are not lossless. That is the stronger evidence, whatever passes" in said(
        worse, "not-lossless"
    )
    for grade in (None, "unclassified"):
        assert "the tests are the evidence: pass@1 alone excludes" in said(worse, grade)
    assert comparison.evidence(comparison.row(AR, base, 0)).startswith("The baseline")


@given(st.lists(st.tuples(*[st.sampled_from(OUTCOMES)] * 2), min_size=1, max_size=12))
def test_every_sample_is_somewhere(outcomes) -> None:
    base = [sample(n, a) for n, (a, _) in enumerate(outcomes)]
    arm = [sample(n, b) for n, (_, b) in enumerate(outcomes)]
    graded = [pair for pair in outcomes if "sandbox_error" not in pair]
    if not graded:
        with pytest.raises(ConfigError):
            comparison.paired(base, arm, 0)
        return
    result = comparison.paired(base, arm, 0)
    table = (result.both, result.only_baseline, result.only_arm, result.neither)
    assert sum(table) == len(graded)
    assert len(result.discordant) == result.only_baseline + result.only_arm
    found = comparison.row(AR, base, 0)
    assert sum(found.outcomes.values()) == sum(found.methods.values()) == len(outcomes)


def test_it_survives_the_summary() -> None:
    against = comparison.paired(answers("ppf"), answers("pff"), 0, "near-ties")
    rows = (
        comparison.row(AR, answers("ppf"), 0),
        comparison.row(TREE, answers("pff"), 0, against=against),
    )
    words = dict.fromkeys(
        ("suite", "suite_sha256", "model", "prompting", "sampling", "extractor", "sandbox"), "x"
    )
    summary = EvalSummary(
        **words,
        samples=1,
        max_tokens=9,
        selfcheck="x",
        rows=rows,
        noise=None,
        problems=(),
        provenance={},
    )
    assert EvalSummary.from_json(summary.to_json()) == summary


MODULE = "ddtree.evals.comparison"
MUTATIONS = (
    Mutation(
        "a sandbox error counted as wrong",
        MODULE,
        (('return self.outcome != "sandbox_error"', "return True"),),
        (check_sandbox_errors_are_no_wrong_answers,),
        harmless_to=check_single_samples,
    ),
    Mutation(
        "paired by order",
        MODULE,
        (
            (
                "[(sample, sides[1][key]) for key, sample in sides[0].items()]",
                "list(zip(baseline, arm))",
            ),
        ),
        (check_pairs_by_name,),
        harmless_to=check_table,
    ),
    Mutation(
        "any sample makes the table",
        MODULE,
        (("key=lambda pair: pair[0].sample)", "key=lambda pair: -pair[0].sample)"),),
        (check_first_samples_make_the_table,),
        harmless_to=check_table,
    ),
    Mutation(
        "samples as if they were tasks",
        MODULE,
        (("if single\n", "if True\n"),),
        (check_several_samples,),
        harmless_to=check_single_samples,
        error=Exception,
    ),
    Mutation(
        "losses and gains swapped",
        MODULE,
        (("    losses, gains = passing", "    gains, losses = passing"),),
        (check_table,),
        error=Exception,
    ),
    Mutation(
        "outputs compared as text",
        MODULE,
        (("if baseline.token_ids is not None and arm.token_ids is not None:", "if False:"),),
        (check_identity,),
    ),
    Mutation(
        "missing answers look like found ones",
        MODULE,
        (("sample.method if sample.missing is None else", "sample.method if True else"),),
        (check_extraction_is_counted,),
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation) -> None:
    assert_caught(mutation)
