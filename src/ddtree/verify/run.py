"""The whole procedure: every arm against `ar`, greedy and sampled, alone and in a batch.

For each way of sampling `ar` decodes every prompt alone: the baseline. It is held against its own
scores, which shows what is wrong with all arms alike. The control scores its outputs by one row and
by as many rows as the widest arm verifies. Then each arm, and `ar` itself in a batch, decodes the
same prompts with the same seeds, and each output is graded. Sampled text is tested against the
target's distribution besides.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ddtree.errors import DDTreeError
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling
from ddtree.verify.control import ControlResult, run_control
from ddtree.verify.grade import (
    OutputGrade,
    grade_baseline_output,
    grade_output,
    summarise_grades,
)
from ddtree.verify.law import LawResult, law_test
from ddtree.verify.outputs import Comparison, Output
from ddtree.verify.report import Row, SamplingResult, VerifyReport
from ddtree.verify.scoring import CachedScorer, Position, Scorer
from ddtree.verify.signature import locate, signature
from ddtree.verify.source import Call, Source

BASELINE = Arm("ar")

Note = Callable[[str], None]


@dataclass(frozen=True)
class VerifyPlan:
    """What to check. `concurrencies` are tried for each arm; `ar` alone is the baseline and isn't
    compared with itself. Request i samples with seed `seed + i`, each prompt `samples` times.
    `control_outputs` bounds how many outputs the control scores. `dtype` is the target's, `eos_ids`
    the ids that end its text; those that end a baseline's are added.
    """

    prompts: tuple[tuple[int, ...], ...]
    arms: tuple[Arm, ...]
    samplings: tuple[Sampling, ...]
    max_tokens: int
    concurrencies: tuple[int, ...]
    dtype: str
    block_size: int = 1
    samples: int = 1
    control_outputs: int = 8
    seed: int = 0
    eos_ids: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        """Rows of the widest verifying pass."""
        return max(self.block_size, *((arm.budget or 0) + 1 for arm in self.arms))

    def calls(self, arm: Arm, sampling: Sampling) -> list[Call]:
        """One call per prompt and sample; greedy ones need no second sample."""
        times = self.samples if sampling.temperature > 0 else 1
        prompts = self.prompts * times
        return [
            Call(prompt, self.max_tokens, arm, sampling.with_seed(self.seed + number))
            for number, prompt in enumerate(prompts)
        ]


async def run_verify(
    plan: VerifyPlan, source: Source, scorer: Scorer | None, note: Note
) -> VerifyReport:
    """Run the plan. Without a scorer outputs that differ stay unclassified; `note` hears how far
    it is."""
    known = None if scorer is None else CachedScorer(scorer)
    results = []
    for sampling in plan.samplings:
        usable = await _usable(known, plan, sampling, note)
        results.append(await _Mode(plan, sampling, source, usable, note).run())
    return VerifyReport(plan.dtype, plan.rows, tuple(results))


async def _usable(
    scorer: CachedScorer | None, plan: VerifyPlan, sampling: Sampling, note: Note
) -> CachedScorer | None:
    """The scorer, if it gives scores for this way of sampling."""
    if scorer is None:
        return None
    prompt = plan.prompts[0]
    seeded = sampling.with_seed(plan.seed)
    try:
        found = await scorer.score((*prompt, prompt[-1]), len(prompt), 1, seeded)
    except DDTreeError as error:
        note(f"{sampling.label}: no scores, differences stay unclassified: {error}")
        return None
    if all(position.has_scores for position in found):
        return scorer
    note(f"{sampling.label}: no scores, differences stay unclassified")
    return None


@dataclass(frozen=True)
class _Mode:
    """One way of sampling."""

    plan: VerifyPlan
    sampling: Sampling
    source: Source
    scorer: CachedScorer | None
    note: Note

    async def run(self) -> SamplingResult:
        self.note(f"{self.sampling.label}: baseline")
        baseline = await self._generate(BASELINE, 1)
        self.note(f"{self.sampling.label}: control")
        control = await self._control(baseline)
        grades = await self._baseline_grades(baseline, control)
        rows, tested = [self._row((BASELINE, 1), baseline, grades, control)], baseline
        for arm, concurrency in self._rows():
            self.note(f"{self.sampling.label}: {arm.label}, {concurrency} at once")
            outputs = await self._generate(arm, concurrency)
            grades = await self._grades(baseline, outputs, control)
            rows.append(self._row((arm, concurrency), outputs, grades, control))
            tested = outputs
        law = await self._law(tested)
        return SamplingResult(
            self.sampling, control, tuple(rows), law, scored=self.scorer is not None
        )

    def _rows(self) -> Iterator[tuple[Arm, int]]:
        for concurrency in self.plan.concurrencies:
            if concurrency > 1:
                yield BASELINE, concurrency
            for arm in self.plan.arms:
                yield arm, concurrency

    async def _generate(self, arm: Arm, concurrency: int) -> list[Output]:
        """Outputs in the order of the calls, `concurrency` calls at once."""
        calls = iter(self.plan.calls(arm, self.sampling))
        outputs: list[Output] = []
        while batch := list(islice(calls, concurrency)):
            outputs += await asyncio.gather(*map(self.source.generate, batch))
        return outputs

    async def _control(self, baseline: Sequence[Output]) -> ControlResult | None:
        if self.scorer is None:
            return None
        some = baseline[: self.plan.control_outputs]
        return await run_control(some, self.scorer, self.plan.rows, self.plan.dtype)

    async def _baseline_grades(
        self, baseline: Sequence[Output], control: ControlResult | None
    ) -> list[OutputGrade]:
        """The baseline held against its own scores; nothing to hold without them."""
        if self.scorer is None:
            same = Comparison(True, None, None)
            return [OutputGrade("identical", same, tokens=len(o.token_ids)) for o in baseline]
        dtype = self.plan.dtype
        return [await grade_baseline_output(o, self.scorer, dtype, control) for o in baseline]

    async def _grades(
        self,
        baseline: Sequence[Output],
        outputs: Sequence[Output],
        control: ControlResult | None,
    ) -> list[OutputGrade]:
        pairs = zip(baseline, outputs, strict=True)
        dtype = self.plan.dtype
        ended = [o for o in baseline if o.finish_reason == "stop"]
        stops = self.plan.eos_ids | {token for o in ended for token in o.token_ids[-1:]}
        if self.plan.eos_ids:
            stops |= set(self.sampling.stop_token_ids)
        return [await grade_output(*pair, self.scorer, dtype, control, stops) for pair in pairs]

    def _row(
        self,
        place: tuple[Arm, int],
        outputs: Sequence[Output],
        grades: Sequence[OutputGrade],
        control: ControlResult | None,
    ) -> Row:
        found = summarise_grades(grades, control)
        cause = signature(list(zip(outputs, grades, strict=True)))
        rounds = [len(path) for output in outputs for path in output.ranks or ()]
        length = 1 + sum(rounds) / len(rounds) if rounds else None
        return Row(*place, found, length, cause, locate(outputs, grades))

    async def _law(self, outputs: Sequence[Output]) -> LawResult | None:
        """The test on the last arm's outputs, teacher-forced on their own prefixes."""
        if self.scorer is None or self.sampling.temperature == 0:
            return None
        self.note(f"{self.sampling.label}: distribution")
        positions: list[Position] = []
        for output in outputs:
            text = output.prompt + output.token_ids
            try:
                positions += await self.scorer.score(text, len(output.prompt), 1, output.sampling)
            except DDTreeError as error:
                self.note(f"no distribution test: {error}")
                return None
        return law_test(positions, self.plan.seed)
