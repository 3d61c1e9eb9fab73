"""Stop strings and whole characters, streamed and not; and bugs that these checks see."""

import pytest
import stop_checks as checks
from scripted import scripted_server

from mutations.planting import Mutation, planted


@pytest.fixture(scope="module")
def scripted():
    with scripted_server() as server:
        yield server


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_promises(scripted, check):
    check(scripted)


PLANTED = [
    Mutation(
        "nothing is held back",
        "ddtree.models.text",
        (("safe = len(text) - self._possible(text)", "safe = len(text)"),),
        (checks.check_chunks_hold_back_what_may_stop, checks.check_stops_of_such_characters),
        checks.check_characters_are_never_split,
    ),
    Mutation(
        "held back as long as the longest stop",
        "ddtree.models.text",
        (("safe = len(text) - self._possible(text)", "safe = len(text) - self._longest + 1"),),
        (checks.check_chunks_hold_back_what_may_stop,),
        checks.check_characters_are_never_split,
    ),
    Mutation(
        "characters are split",
        "ddtree.models.text",
        (("certain = len(text.rstrip(_INCOMPLETE))", "certain = len(text)"),),
        (checks.check_characters_are_never_split,),
        checks.check_echo_opens_the_text,
    ),
    Mutation(
        "the server looks for no stop of its own",
        "ddtree.serve.choices",
        (("request.prompt, stops, least)", "request.prompt, (), least)"),),
        (checks.check_chunks_hold_back_what_may_stop, checks.check_a_stop_ends_ids_and_text),
        checks.check_characters_are_never_split,
    ),
    Mutation(
        "min_tokens holds the engine's stop off alone",
        "ddtree.serve.choices",
        (("request.prompt, stops, least)", "request.prompt, stops)"),),
        (checks.check_min_tokens_hold_a_stop_off,),
        checks.check_echo_opens_the_text,
    ),
    Mutation(
        "offsets of the text given out",
        "ddtree.serve.choices",
        (("self.uncut.push(", "self.decoder.push("),),
        (checks.check_a_stop_ends_ids_and_text,),
        checks.check_echo_opens_the_text,
    ),
]


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation):
    with planted(mutation), scripted_server() as server:
        for check in mutation.caught_by:
            with pytest.raises(mutation.error):
                check(server)
        assert mutation.harmless_to is not None
        mutation.harmless_to(server)
