"""Doctor's checks of Python, packages, processor, OpenMP and GPU."""

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddtree.cli.checks import Check
from ddtree.errors import ConfigError

CPUINFO = Path("/proc/cpuinfo")
MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True)
class SupportedRange:
    """Versions of a package that work: `minimum` <= version < `below`."""

    package: str
    minimum: str
    below: str | None = None

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        upper = "" if self.below is None else f",<{self.below}"
        return f"{self.package}>={self.minimum}{upper}"

    def contains(self, version: str) -> bool:
        """Compares release numbers; local parts such as +cpu don't count."""
        release = _release(version)
        return _release(self.minimum) <= release and (
            self.below is None or release < _release(self.below)
        )


SUPPORTED = (
    SupportedRange("torch", "2.11"),
    SupportedRange("transformers", "5.12", "5.25"),
    SupportedRange("accelerate", "1.0"),
    SupportedRange("safetensors", "0.5"),
    SupportedRange("gguf", "0.17"),
)


def python() -> Check:
    """The interpreter's version and place."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    value = f"{version} ({sys.executable})"
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return Check("python", "ok", value)
    return Check("python", "missing", value, "use Python 3.11 or later")


def packages(supported: tuple[SupportedRange, ...] = SUPPORTED) -> list[Check]:
    """The packages whose versions decide whether models load."""
    return [_package(entry) for entry in supported]


def _package(entry: SupportedRange) -> Check:
    wanted = entry.requirement.removeprefix(entry.package)
    command = f"{sys.executable} -m pip install '{entry.requirement}'"
    try:
        version = importlib.metadata.version(entry.package)
    except importlib.metadata.PackageNotFoundError:
        return Check(entry.package, "missing", f"not installed (supported: {wanted})", command)
    value = f"{version} (supported: {wanted})"
    if entry.contains(version):
        return Check(entry.package, "ok", value)
    return Check(entry.package, "missing", value, command)


def cores() -> Check:
    """Cores this process may use against the threads torch takes."""
    import torch

    usable = len(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    physical = psutil.cpu_count(logical=False)
    value = f"{usable} usable cores ({physical} physical), torch uses {threads} threads"
    if threads > usable:
        return Check("cores", "note", value, f"set OMP_NUM_THREADS={usable}: threads fight")
    if threads < usable and physical is not None and threads < physical:
        return Check("cores", "note", value, "OMP_NUM_THREADS keeps torch off some cores")
    return Check("cores", "ok", value)


def cpu_features(cpuinfo: Path = CPUINFO) -> Check:
    """Whether the processor computes in bf16 by itself."""
    name = "cpu bf16"
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return Check(name, "note", f"unknown: no {cpuinfo}", "compare --dtype float32 and bfloat16")
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    present = set(match.group(1).split()) if match else set()
    features = {name: name in present for name in ("avx512_bf16", "amx_bf16")}
    value = ", ".join(f"{feature} {'yes' if has else 'no'}" for feature, has in features.items())
    if any(features.values()):
        return Check(name, "ok", value)
    return Check(name, "note", value, "bf16 has no hardware here: compare --dtype float32")


def omp_waiting(environ: Mapping[str, str]) -> Check:
    """Whether OpenMP threads spin while they wait, which a busy neighbour punishes."""
    policy = environ.get("OMP_WAIT_POLICY")
    spins = environ.get("GOMP_SPINCOUNT")
    value = f"OMP_WAIT_POLICY {policy or 'unset'}, GOMP_SPINCOUNT {spins or 'unset'}"
    if (policy or "").lower() == "passive" and spins in (None, "0"):
        return Check("omp waiting", "ok", value)
    return Check(
        "omp waiting",
        "note",
        value,
        "on a machine with other busy processes: "
        "export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 (ddtree bench sets both itself)",
    )


def cuda() -> Check:
    """GPUs that torch sees."""
    import torch

    if not torch.cuda.is_available():
        return Check("cuda", "ok", f"none (torch {torch.__version__}); the CPU is used")
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    value = ", ".join(f"{each.name} {each.total_memory / 2**30:.0f} GiB" for each in devices)
    return Check("cuda", "ok", f"{value} (CUDA {torch.version.cuda})")


def sandbox() -> Check:
    """What programs of `ddtree eval` can run in; whether it holds is tried when it is used."""
    from ddtree.evals.sandbox.probe import TIERS

    reasons = []
    for name, make in TIERS.items():
        if name == "plain":
            continue
        try:
            return Check("sandbox", "ok", make().label)
        except ConfigError as error:
            reasons.append(f"{name}: {error}")
    advice = "for ddtree eval: apt install bubblewrap, pip install 'ddtree[eval]'"
    return Check("sandbox", "note", f"none ({'; '.join(reasons)})", advice)


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
