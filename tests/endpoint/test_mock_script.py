"""When the mock's chunks leave."""

import math

from ddtree.endpoint.mock_script import MockScript, first_due


def test_chunks_leave_after_the_delay_or_in_step_with_the_servers_clock() -> None:
    script = MockScript(round_s={"ddtree": 0.25})
    assert first_due(script, "ddtree", 10.1, 0.5) == 10.6
    in_step = MockScript(round_s={"ddtree": 0.25}, in_step=True)
    due = {first_due(in_step, "ddtree", now, 0.5) for now in (10.01, 10.1, 10.25)}
    assert due == {10.75}
    assert first_due(in_step, "ddtree", 10.26, 0.5) == 11.0


def test_rounds_that_take_no_time_have_no_steps() -> None:
    assert first_due(MockScript(in_step=True), "ar", 10.1, 0.5) == 10.6
    assert math.isclose(first_due(MockScript(), "ar", 10.1, 0.0), 10.1)
