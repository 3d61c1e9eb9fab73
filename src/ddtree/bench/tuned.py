"""A run with a time budget: probe, predict by replay, halve, leave finalists to be measured.

What was decided is kept in the run folder as it is decided, so that a run that is started again
decides the same.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.bench.group import BASELINE
from ddtree.bench.matrix import Matrix
from ddtree.bench.narrowing import (
    BASELINES,
    Cost,
    best_everywhere,
    choose,
    cost_of,
    keep,
    predict,
    probe_arms,
)
from ddtree.bench.pairing import CellData, busy_slots, speedup
from ddtree.bench.plan import Group, make_group, request_sampling
from ddtree.bench.watch import step_s
from ddtree.bench.workload import PromptSource
from ddtree.endpoint.replay import ReplayedArm, replay
from ddtree.errors import EndpointError
from ddtree.records.arms import Arm
from ddtree.records.files import write_atomic
from ddtree.records.requests import RequestRecord
from ddtree.records.settings import Setting
from ddtree.records.summary import Prediction, Rung, Skip
from ddtree.records.summary_json import read_tuning

# Of the time budget: what the probe and the rungs may take at most, so that the finalists get the
# rest.
_SCREEN_SHARE = 0.55
_PROBE_BLOCKS = 1
# Outputs replayed at most for one context and temperature.
_REPLAYED = 8

Key = tuple[int, float]


class TuningBook:
    """`tuning.json`: skips, predictions, rungs and the seconds spent, written as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = json.loads(path.read_text()) if path.exists() else {}
        self.skips, self.predictions, self.rungs = read_tuning(data)
        self.spent_s = float(data.get("spent_s", 0.0))

    def set_skips(self, skips: Sequence[Skip]) -> None:
        """What the grid leaves out."""
        self.skips = tuple(skips)
        self._write()

    def predicted(self, setting: Setting) -> tuple[Prediction, ...]:
        """What was foretold at a setting; empty before it was."""
        return tuple(p for p in self.predictions if p.setting == setting)

    def add_predictions(self, found: Sequence[Prediction]) -> None:
        """Keep a setting's predictions."""
        self.predictions = (*self.predictions, *found)
        self._write()

    def rung(self, setting: Setting, name: str) -> Rung | None:
        """A rung that is over."""
        found = [r for r in self.rungs if (r.setting, r.name) == (setting, name)]
        return found[0] if found else None

    def add_rung(self, rung: Rung) -> None:
        """Keep how a rung ended."""
        self.rungs = (*self.rungs, rung)
        self._write()

    def spend(self, seconds: float) -> None:
        """Count time against the budget, over all starts."""
        self.spent_s += seconds
        self._write()

    def _write(self) -> None:
        lists = {"skips": self.skips, "predictions": self.predictions, "rungs": self.rungs}
        data: dict[str, Any] = {
            name: [dataclasses.asdict(item) for item in items]  # type: ignore[call-overload]
            for name, items in lists.items()
        }
        write_atomic(self._path, json.dumps(data | {"spent_s": self.spent_s}, indent=1) + "\n")


@dataclass(frozen=True)
class _Place:
    """One setting: its full group, and what the probe measured there, `ar`'s outputs included."""

    group: Group
    probe: Group
    outputs: tuple[RequestRecord, ...]
    seconds: Mapping[Cost, float]
    part_s: float


class Tuning:
    """Narrows the groups of a matrix down to what the spec's minutes allow."""

    def __init__(
        self,
        matrix: Matrix,
        source: PromptSource,
        book: TuningBook,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.matrix = matrix
        self.spec = matrix.spec
        self.source = source
        self.book = book
        self._clock = clock
        self._started = clock()

    async def narrow(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The same groups with the arms that are worth measuring; their prompts are untouched.

        Every step draws prompts in the same order whether or not its outcome is on file.
        """
        places = await self._probe(groups)
        await self._predict(places)
        everywhere = best_everywhere({p.group.setting: self._foretold(p) for p in places})
        entered = {p.group.setting: self._candidates(p, everywhere) for p in places}
        kept = await self._rungs(places, entered, everywhere)
        finalists = self._affordable(places, kept, everywhere)
        self._tick()
        return tuple(
            dataclasses.replace(p.group, arms=_in_order(p.group, finalists[p.group.setting]))
            for p in places
        )

    async def _probe(self, groups: Sequence[Group]) -> list[_Place]:
        """Each cost once at each setting: round times, and outputs of the baseline to replay."""
        probes = []
        for group in groups:
            arms = tuple(a for a in group.arms if a in (BASELINE, *probe_arms(group.arms)))
            probe = await make_group(
                self.spec, self.source, group.setting, arms, _PROBE_BLOCKS, role="screen"
            )
            probes.append(probe)
        self._note(f"probe: {sum(len(p.arms) for p in probes)} cells")
        await self.matrix.run(probes)
        self._tick()
        return [self._place(g, p) for g, p in zip(groups, probes, strict=True)]

    def _place(self, group: Group, probe: Group) -> _Place:
        data = self.matrix.data(probe)
        seconds = {}
        for arm, cell in data.items():
            step = step_s(cell.finished)
            if step is not None:
                seconds[cost_of(arm)] = step
        outputs = tuple(data[BASELINE].finished)
        return _Place(group, probe, outputs, seconds, self._part_seconds(data))

    async def _predict(self, places: Sequence[_Place]) -> None:
        """Replay the baseline's outputs: once per context and temperature, for all
        concurrencies."""
        lengths: dict[Key, Mapping[Arm, float]] = {}
        if not self.spec.tuning.predict:
            return
        if self.spec.endpoint.arm_is_launch:
            kind = self.spec.endpoint.kind
            self._note(
                f"no predictions: a server of kind {kind} has no replay; every tree is tried"
            )
            return
        for place in places:
            if self.book.predicted(place.group.setting):
                continue
            setting = place.group.setting
            key = _key(setting)
            if key not in lengths:
                alike = [p for p in places if _key(p.group.setting) == key]
                lengths[key] = await self._acceptance(alike)
            mine = {arm: n for arm, n in lengths[key].items() if arm in place.group.arms}
            found = choose(predict(setting, mine, place.seconds), self.spec.tuning.candidates)
            self.book.add_predictions(found)
            self._tick()
            if found:
                best = found[0]
                self._note(
                    f"predicted at {setting.name}: {best.arm.label} is fastest, "
                    f"{best.speedup:.2f}x ({len(found)} arms)"
                )

    async def _acceptance(self, places: Sequence[_Place]) -> Mapping[Arm, float]:
        """Acceptance length of every arm, replayed over the baseline's outputs at places of one
        context and temperature; empty where that can't be."""
        arms = tuple(dict.fromkeys(a for p in places for a in p.group.arms if a != BASELINE))
        accepted: dict[Arm, int] = dict.fromkeys(arms, 0)
        rounds: dict[Arm, int] = dict.fromkeys(arms, 0)
        outputs = [(place.probe, record) for place in places for record in place.outputs]
        for probe, record in outputs[:_REPLAYED]:
            try:
                found = await self._replay(probe, record, arms)
            except EndpointError as error:
                self._note(f"no prediction at {probe.name}: {error}")
                return {}
            for arm in found:
                rounds[arm.arm] += arm.rounds
                accepted[arm.arm] += sum(a * n for a, n in enumerate(arm.accepted_histogram))
        return {arm: 1 + accepted[arm] / rounds[arm] for arm in arms if rounds[arm]}

    async def _replay(
        self, probe: Group, record: RequestRecord, arms: Sequence[Arm]
    ) -> Sequence[ReplayedArm]:
        prompt = next(p for p in probe.prompts if p.id == record.prompt_id)
        sampling = request_sampling(self.spec, probe, record.prompt_id)
        reason = record.finish_reason or "length"
        server = await self.matrix.servers.of(BASELINE)
        return await replay(
            server.client, prompt.token_ids, record.token_ids, reason, arms, sampling
        )

    def _foretold(self, place: _Place) -> tuple[Prediction, ...]:
        return self.book.predicted(place.group.setting)

    def _candidates(self, place: _Place, everywhere: Arm | None) -> tuple[Arm, ...]:
        """Trees that enter the first rung: the chosen ones, all where nothing was foretold."""
        trees = [arm for arm in place.group.arms if arm.method not in BASELINES]
        chosen = [p.arm for p in self._foretold(place) if p.chosen]
        if not self._foretold(place):
            return tuple(trees)
        return tuple(arm for arm in trees if arm in chosen or arm == everywhere)

    async def _rungs(
        self,
        places: Sequence[_Place],
        entered: Mapping[Setting, tuple[Arm, ...]],
        everywhere: Arm | None,
    ) -> dict[Setting, tuple[Arm, ...]]:
        """Halve until the finalists are left or the screening's time is up."""
        tuning, live = self.spec.tuning, dict(entered)
        always = () if everywhere is None else (everywhere,)
        number = 0
        while any(len(arms) > tuning.finalists + len(always) for arms in live.values()):
            name, prompts = f"rung {number + 1}", tuning.prompts * tuning.growth**number
            open_places = [
                p for p in places if len(live[p.group.setting]) > tuning.finalists + len(always)
            ]
            on_file = all(self.book.rung(p.group.setting, name) for p in open_places)
            needed = self._rung_seconds(open_places, live, prompts)
            if not on_file and needed > self._left() * _SCREEN_SHARE:
                self._note(
                    f"{name} would take {needed / 60:.0f} of the {self._left() / 60:.0f} minutes "
                    "left: the finalists are chosen by what is known"
                )
                break
            for place in open_places:
                setting = place.group.setting
                live[setting] = await self._rung(place, name, prompts, live[setting], always)
            number += 1
        return {
            setting: _first(self._ranked(setting, arms), tuning.finalists, everywhere)
            for setting, arms in live.items()
        }

    async def _rung(
        self,
        place: _Place,
        name: str,
        prompts: int,
        arms: tuple[Arm, ...],
        always: tuple[Arm, ...],
    ) -> tuple[Arm, ...]:
        setting = place.group.setting
        blocks = self._rung_blocks(setting, prompts)
        group = await make_group(
            self.spec, self.source, setting, (BASELINE, *arms), blocks, role="screen"
        )
        done = self.book.rung(setting, name)
        if done is not None:
            return done.kept
        await self.matrix.run([group])
        ratios = self._ratios(group, self.matrix.data(group))
        kept = keep(ratios, self.spec.tuning, always)
        size = len(group.prompts)
        self.book.add_rung(
            Rung(name, setting, size, arms, tuple(ratios[arm] for arm in arms), kept)
        )
        self._tick()
        self._note(f"{name} at {setting.name}: {len(kept)} of {len(arms)} arms go on")
        return kept

    def _rung_blocks(self, setting: Setting, prompts: int) -> int:
        return max(1, math.ceil(prompts / self.spec.block_prompts(setting.concurrency)))

    def _ratios(self, group: Group, data: Mapping[Arm, CellData]) -> dict[Arm, float | None]:
        base = data[BASELINE].blocks
        return {
            arm: speedup(cell.blocks, base, busy_slots(group.setting), self.spec.seed).value
            for arm, cell in data.items()
            if arm != BASELINE
        }

    def _ranked(self, setting: Setting, arms: Sequence[Arm]) -> list[Arm]:
        """Best first by the last rung an arm was in, else by prediction."""
        foretold = {p.arm: p.speedup for p in self.book.predicted(setting)}
        seen: dict[Arm, float] = {}
        for rung in self.book.rungs:
            if rung.setting == setting:
                pairs = zip(rung.arms, rung.speedups, strict=True)
                seen |= {arm: value for arm, value in pairs if value is not None}
        return sorted(arms, key=lambda a: (-seen.get(a, foretold.get(a, 0.0)), a.size))

    def _affordable(
        self,
        places: Sequence[_Place],
        kept: Mapping[Setting, tuple[Arm, ...]],
        everywhere: Arm | None,
    ) -> dict[Setting, tuple[Arm, ...]]:
        """Fewer finalists where all would take longer than what is left; one stays anyway."""
        count = max((len(arms) for arms in kept.values()), default=0)
        while count > 1:
            chosen = {s: _first(arms, count, everywhere) for s, arms in kept.items()}
            seconds = sum(self._group_seconds(p, len(chosen[p.group.setting])) for p in places)
            if seconds <= self._left():
                return chosen
            count -= 1
            self._note(
                f"measuring the finalists would take {seconds / 60:.0f} minutes, "
                f"{self._left() / 60:.0f} are left: at most {count} a setting"
            )
        return {s: _first(arms, 1, everywhere) for s, arms in kept.items()}

    def _group_seconds(self, place: _Place, trees: int) -> float:
        baselines = sum(arm.method in BASELINES for arm in place.group.arms)
        return (trees + baselines) * len(place.group.blocks) * place.part_s

    def _rung_seconds(
        self, places: Sequence[_Place], live: Mapping[Setting, Sequence[Arm]], prompts: int
    ) -> float:
        total = 0.0
        for place in places:
            blocks = self._rung_blocks(place.group.setting, prompts)
            total += (len(live[place.group.setting]) + 1) * blocks * place.part_s
        return total

    def _part_seconds(self, data: Mapping[Arm, CellData]) -> float:
        """Mean seconds of a part of the probe, from the first request to the last one's end."""
        spans = [_span(records) for cell in data.values() for records in cell.blocks.values()]
        found = [span for span in spans if span]
        return sum(found) / len(found) if found else 0.0

    def _left(self) -> float:
        minutes = self.spec.budget_minutes or 0.0
        return max(0.0, minutes * 60 - self.book.spent_s)

    def _tick(self) -> None:
        now = self._clock()
        self.book.spend(now - self._started)
        self._started = now

    def _note(self, text: str) -> None:
        self.matrix.recorder.progress.note(text)


def _key(setting: Setting) -> Key:
    return setting.context, setting.temperature


def _span(records: Sequence[RequestRecord]) -> float:
    ends = [record.end_s for record in records if record.end_s is not None]
    return max(ends) - min(record.sent_s for record in records) if ends else 0.0


def _first(arms: Sequence[Arm], count: int, everywhere: Arm | None) -> tuple[Arm, ...]:
    """The first `count`, and the arm that runs everywhere."""
    return tuple(dict.fromkeys([*arms[:count], *(a for a in arms if a == everywhere)]))


def _in_order(group: Group, finalists: Sequence[Arm]) -> tuple[Arm, ...]:
    return tuple(a for a in group.arms if a.method in BASELINES or a in finalists)
