"""Files of suites: where they come from, and that no other file takes their place."""

import hashlib
import json
from pathlib import Path

import pytest
from suite_files import json_lines_of, private_record

from ddtree.errors import ConfigError, ModelError
from ddtree.evals.suites import fetch as fetching
from ddtree.evals.suites import sources
from ddtree.evals.suites.sources import SuiteSource
from mutations.planting import Mutation, planted

DATA, OTHER = b"the file\n", b"another file\n"
DIGEST, OTHER_DIGEST = (hashlib.sha256(data).hexdigest() for data in (DATA, OTHER))


def source(name: str, sha256: str | None) -> SuiteSource:
    return SuiteSource(
        name=name,
        kind="hub",
        origin="owner/set",
        member="parts/file.jsonl",
        revision="abc",
        sha256=sha256,
        licence="MIT",
        tasks=1,
        description="tiny",
    )


ADDRESS = "https://huggingface.co/datasets/owner/set/resolve/abc/parts/file.jsonl"


@pytest.fixture(autouse=True)
def registry(monkeypatch) -> None:
    monkeypatch.setattr(sources, "SOURCES", (source("pinned", DIGEST), source("open", None)))


class Net:
    """A network that holds one file."""

    def __init__(self, data: bytes = DATA, error: Exception | None = None) -> None:
        self.data, self.error = data, error
        self.asked: list[str] = []

    def __call__(self, address: str) -> bytes:
        self.asked.append(address)
        if self.error is not None:
            raise self.error
        return self.data


def files(folder: Path, net: Net | None = None) -> fetching.SuiteFiles:
    return fetching.SuiteFiles(folder, net)


def provenance(folder: Path, name: str) -> dict:
    path = files(folder).path(name)
    return json.loads(path.with_name(path.name + fetching.PROVENANCE_SUFFIX).read_text())


def refused(folder: Path, name: str, net: Net | None = None, given: Path | None = None) -> str:
    try:
        files(folder, net).read(name, given)
    except ConfigError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def check_fetched_once(folder: Path) -> None:
    net = Net()
    for name in ("pinned", "open"):
        first = files(folder, net).read(name)
        assert (first.data, first.sha256) == (DATA, DIGEST)
        assert files(folder, net).read(name) == first
        assert files(folder).read(name) == first
        record = provenance(folder, name)
        assert record.pop("when").endswith("+00:00")
        assert record == {
            "suite": name,
            "address": ADDRESS,
            "revision": "abc",
            "sha256": DIGEST,
            "pinned": name == "pinned",
            "note": {
                "pinned": f"sha256 {DIGEST}",
                "open": "sha256 not pinned: trust on first use",
            }[name],
            "licence": "MIT",
        }
        assert {path.name for path in files(folder).path(name).parent.iterdir()} == {
            "file.jsonl",
            "file.jsonl.provenance.json",
        }
    assert net.asked == [ADDRESS, ADDRESS]


def check_another_file_is_refused(folder: Path) -> None:
    message = refused(folder, "pinned", Net(OTHER))
    assert OTHER_DIGEST in message
    assert f"expected {DIGEST}" in message
    assert ADDRESS in message
    assert not files(folder).path("pinned").exists()
    path = folder / "mine"
    path.write_bytes(OTHER)
    message = refused(folder, "pinned", given=path)
    assert message.startswith(f"suite pinned: {path}: sha256 {OTHER_DIGEST}, expected {DIGEST}")
    cached = files(folder).path("pinned")
    cached.parent.mkdir(parents=True)
    cached.write_bytes(OTHER)
    assert OTHER_DIGEST in refused(folder, "pinned", Net())


def check_first_use_is_kept(folder: Path) -> None:
    """Whether the first file was fetched, or laid there by hand."""
    cached = files(folder).path("open")
    cached.parent.mkdir(parents=True)
    cached.write_bytes(DATA)
    assert "trusted on first use" in files(folder).read("open").words
    assert provenance(folder, "open")["sha256"] == DIGEST
    cached.write_bytes(OTHER)
    message = refused(folder, "open")
    assert f"sha256 {OTHER_DIGEST}, expected {DIGEST}; the first file" in message
    cached.unlink()
    assert OTHER_DIGEST in refused(folder, "open", Net(OTHER))
    assert not cached.exists()
    cached.with_name(cached.name + fetching.PROVENANCE_SUFFIX).unlink()
    assert files(folder, Net(OTHER)).read("open").sha256 == OTHER_DIGEST


CHECKS = (check_fetched_once, check_another_file_is_refused, check_first_use_is_kept)


@pytest.mark.parametrize("check", CHECKS)
def test_on_the_code_as_it_is(check, tmp_path) -> None:
    check(tmp_path)


def test_without_a_network_the_message_says_all(tmp_path) -> None:
    path = tmp_path / "pinned" / "file.jsonl"
    for part in ("ddtree eval fetch", ADDRESS, f"sha256 {DIGEST}", str(path)):
        assert part in refused(tmp_path, "pinned")
    assert "not pinned: trust on first use" in refused(tmp_path, "open")
    assert list(tmp_path.iterdir()) == []


def test_a_given_file_needs_no_cache(tmp_path) -> None:
    given = tmp_path / "mine"
    given.write_bytes(DATA)
    net = Net()
    for name in ("pinned", "open"):
        found = files(tmp_path / "cache", net).read(name, given)
        assert found.data == DATA
        assert DIGEST in found.words
    assert net.asked == []
    assert not (tmp_path / "cache").exists()
    assert "mine2: can't be read (No such file" in refused(
        tmp_path, "pinned", given=tmp_path / "mine2"
    )


def test_a_failed_fetch_leaves_nothing(tmp_path) -> None:
    message = refused(tmp_path, "pinned", Net(error=OSError("no route")))
    assert f"{ADDRESS} could not be fetched (no route)" in message
    with pytest.raises(ModelError, match="pip"):
        files(tmp_path, Net(error=ModelError("pip"))).read("pinned")
    assert list(tmp_path.iterdir()) == []


def test_a_torn_provenance_is_named(tmp_path) -> None:
    files(tmp_path, Net()).read("open")
    path = files(tmp_path).path("open").with_name("file.jsonl" + fetching.PROVENANCE_SUFFIX)
    for text in ("{", "[]", "{}"):
        path.write_text(text)
        assert f"{path}: holds no provenance" in refused(tmp_path, "open")


def test_a_private_file_is_read_where_it_is(tmp_path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(json_lines_of(private_record()))
    found = files(tmp_path).read(f"file:{path}")
    assert found.data == path.read_bytes()
    assert found.sha256 in found.words
    assert "leave" in refused(tmp_path, f"file:{path}", given=path)
    assert "can't be read" in refused(tmp_path, "file:/nowhere")


def test_unknown_names_are_refused(tmp_path) -> None:
    assert "got 'humanevil', expected one of pinned, open, or file:PATH" in refused(
        tmp_path, "humanevil"
    )


MODULE = fetching.__name__
MUTATIONS = (
    Mutation(
        "no digest is compared",
        MODULE,
        (("if expected is not None and digest != expected:", "if False:"),),
        (check_another_file_is_refused, check_first_use_is_kept),
        harmless_to=None,
    ),
    Mutation(
        "a fetched file is written before it is checked",
        MODULE,
        (
            (
                "        found = _checked(source, data, source.address, source.sha256 or kept)\n"
                "        write_atomic(path, data)\n",
                "        write_atomic(path, data)\n"
                "        found = _checked(source, data, source.address, source.sha256 or kept)\n",
            ),
        ),
        (check_another_file_is_refused, check_first_use_is_kept),
    ),
    Mutation(
        "the first digest is not kept",
        MODULE,
        (("if source.sha256 is None and kept is None:", "if False:"),),
        (check_first_use_is_kept,),
    ),
    Mutation(
        "the cache is passed by",
        MODULE,
        (("if path.is_file():", "if False:"),),
        (check_fetched_once,),
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bugs_are_caught(mutation: Mutation, tmp_path) -> None:
    with planted(mutation):
        for number, check in enumerate(mutation.caught_by):
            folder = tmp_path / str(number)
            folder.mkdir()
            with pytest.raises((AssertionError, OSError, ConfigError)):
                check(folder)
