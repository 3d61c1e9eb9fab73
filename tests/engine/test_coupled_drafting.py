"""Drafting that looks at the noise: other trees, the same tokens."""

import pytest

from engine import coupling_checks as checks

CHECKS = [
    checks.check_outputs,
    checks.check_draws_are_drafted,
    checks.check_other_requests,
    checks.check_switch,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check_passes(check):
    check()
