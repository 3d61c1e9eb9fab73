"""Which sandbox works on this machine: each tier is tried, the strongest that holds is taken."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddtree.errors import ConfigError
from ddtree.evals.outcomes import Verdict
from ddtree.evals.sandbox.bubblewrap import bubblewrap
from ddtree.evals.sandbox.direct import landlock, plain
from ddtree.evals.sandbox.pool import Sandbox
from ddtree.evals.sandbox.probes import PROBES, UNCONFINED, Probe, scene
from ddtree.evals.sandbox.tier import Tier, TierName

TIERS: Mapping[TierName, Callable[[], Tier]] = {
    "bubblewrap": bubblewrap,
    "landlock": landlock,
    "plain": plain,
}
"""From the strongest to the weakest; ConfigError from one that can't be had here."""

UNSAFE_OPTION = "--allow-unsafe-exec"


@dataclass(frozen=True)
class ProbeReport:
    """How a tier did: names of probes that held, and of those that did not, with what came of
    them. `ok` where everything held that the tier promises."""

    tier: Tier
    passed: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether the tier may be used (`plain` promises little)."""
        return not self._broken

    @property
    def line(self) -> str:
        """For the report: tier, variant, interpreter, and how it did."""
        total = len(self.passed) + len(self.failed)
        unsafe = "UNSAFE: " if self.tier.name == "plain" else ""
        line = f"{unsafe}{self.tier.label}; {len(self.passed)} of {total} probes passed"
        return line + (f", but not: {', '.join(self.failed)}" if self.failed else "")

    @property
    def complaint(self) -> str:
        """What does not hold and should, with what came of it."""
        return "; ".join(f"not so: {name} ({self.failed[name]})" for name in self._broken)

    @property
    def _broken(self) -> list[str]:
        plain = self.tier.name == "plain"
        return [name for name in self.failed if not plain or name in UNCONFINED]


def probe(tier: Tier, probes: Sequence[Probe] = PROBES) -> ProbeReport:
    """Try a tier; ConfigError where its workers can't be started."""
    with Sandbox.open(tier) as sandbox, scene() as laid_out:
        passed, failed = [], {}
        for tried in probes:
            (verdict,) = sandbox.run([tried.job(laid_out)])
            if tried.holds(verdict, laid_out):
                passed.append(tried.name)
            else:
                failed[tried.name] = _words(verdict)
    return ProbeReport(tier, tuple(passed), failed)


def choose(allow_unsafe: bool = False, only: TierName | None = None) -> ProbeReport:
    """The strongest tier whose promises hold here (`report.tier`), and how it did.

    `plain` has to be allowed. With `only` no other tier is tried. ConfigError where none holds:
    it says why for each, and what to do.
    """
    reasons = []
    for name, make in TIERS.items():
        if only not in (None, name):
            continue
        if name == "plain" and not allow_unsafe:
            reasons.append(f"plain: runs programs unconfined, so that {UNSAFE_OPTION} has to ask")
            continue
        try:
            report = probe(make())
        except ConfigError as error:
            reasons.append(f"{name}: {error}")
            continue
        if report.ok:
            return report
        reasons.append(f"{name}: {report.complaint}")
    raise ConfigError(
        "no sandbox works here, and programs of a model's are not run without one.\n"
        + "\n".join(reasons)
    )


def _words(verdict: Verdict) -> str:
    values = f", {verdict.values[0]!r}" if verdict.values else ""
    detail = f", {verdict.detail}" if verdict.detail else ""
    return f"{verdict.outcome}{detail}{values}"
