"""Do the checks see bugs? Each of a list of planted bugs must make the named checks fail.

A mutation is a change of a module's source (see `planting`), written down with the checks that
catch it and, where the bug costs speed and not correctness, with the check that can't. Trees, rows
and windows are checked against enumeration (`core_battery`), the engine against transformers'
plain decoding of a tiny float64 model (`engine_checks`), its draft windows against a second drafter
(`window_checks`), sampling against its definition in plain Python (`sampling_checks`), rounds of a
fixed shape against the ragged loop (`fixed_checks`). On the code
as it is every check passes.
A change of the source that removes a mutation's text must restate the mutation.
"""

import pytest

from mutations import core_battery as battery
from mutations import (
    core_mutations,
    coupling_mutations,
    engine_mutations,
    fixed_mutations,
    sampling_mutations,
    window_mutations,
)
from mutations import engine_checks as engine
from mutations import fixed_checks as fixed
from mutations import sampling_checks as sampling
from mutations import window_checks as windows
from mutations.planting import assert_caught, planted

MUTATIONS = (
    *core_mutations.TREE_MUTATIONS,
    *core_mutations.ROW_MUTATIONS,
    *core_mutations.PLACE_MUTATIONS,
    *core_mutations.WINDOW_MUTATIONS,
    *engine_mutations.COMMIT_MUTATIONS,
    *engine_mutations.ROUND_MUTATIONS,
    *engine_mutations.SLIDING_MUTATIONS,
    *engine_mutations.DRAFT_MUTATIONS,
    *engine_mutations.REQUEST_MUTATIONS,
    *window_mutations.WINDOW_MUTATIONS,
    *fixed_mutations.FIXED_MUTATIONS,
    *sampling_mutations.NOISE_MUTATIONS,
    *sampling_mutations.FILTER_MUTATIONS,
    *sampling_mutations.EDIT_MUTATIONS,
    *sampling_mutations.WALK_MUTATIONS,
    *sampling_mutations.LOGPROB_MUTATIONS,
    *coupling_mutations.COUPLING_MUTATIONS,
)
CHECKS = (
    *coupling_mutations.COUPLING_CHECKS,
    battery.check_optimal_trees,
    battery.check_scores,
    battery.check_selection,
    battery.check_flags,
    battery.check_rows,
    battery.check_walk,
    battery.check_placing,
    battery.check_windows,
    engine.check_output,
    engine.check_plain_output,
    engine.check_gap_output,
    engine.check_sliding_output,
    engine.check_trees,
    engine.check_acceptance,
    engine.check_drafter_context,
    engine.check_long_chunk_context,
    engine.check_drafts,
    engine.check_per_query_drafts,
    engine.check_stop,
    engine.check_limit,
    fixed.check_scripted,
    fixed.check_against_ragged,
    fixed.check_ended_rows,
    windows.check_meanings,
    windows.check_long_windows,
    windows.check_batch_windows,
    windows.check_window_limits,
    sampling.check_keyed_noise,
    sampling.check_filter_definition,
    sampling.check_exact_edges,
    sampling.check_single_draws,
    sampling.check_edited_rows,
    sampling.check_walks,
    sampling.check_laws,
    sampling.check_margins,
    sampling.check_seeded_text,
    sampling.check_logprobs,
)


@pytest.fixture(autouse=True)
def forget_the_last_run():
    """Each test changes the code or changes it back."""
    engine.mixed_run.cache_clear()
    yield
    engine.mixed_run.cache_clear()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_passes(check):
    check()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation):
    assert_caught(mutation)


def test_every_check_catches_something():
    used = {check for mutation in MUTATIONS for check in mutation.caught_by}
    assert used == set(CHECKS)


def test_planting_is_undone():
    mutation = core_mutations.ROW_MUTATIONS[0]
    with planted(mutation), pytest.raises(AssertionError):
        battery.check_rows()
    battery.check_rows()


def test_mutation_names_differ():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
