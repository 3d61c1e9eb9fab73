"""What is looked at on this machine: GPU memory, a local tokenizer."""

import asyncio
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from ddtree.endpoint.gpu import memory_used_mib, wait_for_floor
from ddtree.endpoint.tokens import LocalTokenizer
from ddtree.errors import ConfigError, EndpointError


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program of that name, first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + os.environ["PATH"])


def test_memory_of_every_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 1200; echo 3")
    assert memory_used_mib() == (1200, 3)


@pytest.mark.parametrize("script", ["echo broken", "exit 9"])
def test_a_driver_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    nvidia_smi(tmp_path, monkeypatch, script)
    assert memory_used_mib() is None


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory_used_mib() is None
    asyncio.run(wait_for_floor(None))


def test_memory_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second answer is down to what it was.
    nvidia_smi(
        tmp_path,
        monkeypatch,
        f"cd {tmp_path}; if [ -e asked ]; then echo 500; else echo 9000; fi; touch asked",
    )
    asyncio.run(wait_for_floor((400,), seconds=20))
    assert (tmp_path / "asked").exists()


def test_memory_that_never_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 400; echo 9000")
    with pytest.raises(EndpointError, match="8600 MiB more in use"):
        asyncio.run(wait_for_floor((400, 400), seconds=0))


def test_a_local_tokenizer(tmp_path: Path) -> None:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = LocalTokenizer(path)
        assert tokenizer.encode("b a c") == (2, 1, 0)
        assert tokenizer.decode((1, 2)) == "a b"


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.json is no file"):
        LocalTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="can't be used"):
        LocalTokenizer(tmp_path)
