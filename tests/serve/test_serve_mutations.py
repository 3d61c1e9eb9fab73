"""The checks of sampling over HTTP see the bugs they are for."""

import pytest
import sampled_checks as checks
from tiny_server import tiny_server

from mutations.planting import Mutation, planted

PLANTED = [
    Mutation(
        "choices share a seed",
        "ddtree.serve.choices",
        (("derived_seed(first.seed, index) for", "first.seed for"),),
        (checks.check_choices_are_requests_of_their_own, checks.check_a_drawn_seed_is_told),
        checks.check_a_seed_repeats,
    ),
    Mutation(
        "log-probabilities of the first tokens in every chunk",
        "ddtree.serve.choices",
        (("self.request.logprobs[self.sent : self.sent +", "self.request.logprobs[0 : 0 +"),),
        (checks.check_logprobs_are_the_target_s_own,),
        checks.check_choices_are_requests_of_their_own,
    ),
    Mutation(
        "choices one after the other",
        "ddtree.serve.choices",
        (
            (
                "coming = {asyncio.ensure_future(choice.next()): choice for choice in self.items}",
                "coming = {asyncio.ensure_future(self.items[0].next()): self.items[0]}",
            ),
            (
                "                    yield choice, piece\n",
                "                    elif choice.index + 1 < len(self.items):\n"
                "                        after = self.items[choice.index + 1]\n"
                "                        coming[asyncio.ensure_future(after.next())] = after\n"
                "                    yield choice, piece\n",
            ),
        ),
        (checks.check_chunks_of_choices_interleave,),
        checks.check_streams_are_the_whole,
    ),
    Mutation(
        "the prompt counted for every choice",
        "ddtree.serve.completions",
        (
            (
                "for s in stats[:: self.choices.per_prompt])",
                "for s in stats)",
            ),
        ),
        (checks.check_choices_are_requests_of_their_own,),
        checks.check_streams_are_the_whole,
    ),
    Mutation(
        "one choice's statistics for all",
        "ddtree.serve.completions",
        (
            (
                "        if not self.wishes.stats or len(self._all) == 1:\n"
                "            return {}\n"
                '        return {"ddtree": choice.request.summary()}',
                "        if not self.wishes.stats or len(self._all) == 1:\n"
                "            return {}\n"
                '        return {"ddtree": self._all[0].request.summary()}',
            ),
        ),
        (checks.check_choices_are_requests_of_their_own, checks.check_a_drawn_seed_is_told),
        checks.check_chunks_of_choices_interleave,
    ),
    Mutation(
        "tokens of equal text vanish",
        "ddtree.serve.logprobs",
        (("if token != chosen and text in taken:", "if False:"),),
        (checks.check_logprobs_are_the_target_s_own,),
        checks.check_streams_are_the_whole,
    ),
    Mutation(
        "no log-probability of the chosen token among the best",
        "ddtree.serve.logprobs",
        (("scores.top if chosen in listed else", "scores.top if True else"),),
        (checks.check_logprobs_are_the_target_s_own,),
        checks.check_streams_are_the_whole,
    ),
    Mutation(
        "offsets count bytes of single tokens",
        "ddtree.serve.choices",
        (("self.length += len(self.uncut.push(", "self.length += len(list("),),
        (checks.check_logprobs_are_the_target_s_own,),
        checks.check_streams_are_the_whole,
    ),
    Mutation(
        "bad words in the middle of a text pass",
        "ddtree.serve.prompts",
        (('for text in (word, " " + word.lstrip())]', "for text in (word,)]"),),
        (checks.check_banned_words_never_come,),
        checks.check_a_seed_repeats,
    ),
]


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_caught(mutation):
    with planted(mutation), tiny_server() as server:
        for check in mutation.caught_by:
            with pytest.raises(mutation.error):
                check(server)
        assert mutation.harmless_to is not None
        mutation.harmless_to(server)
