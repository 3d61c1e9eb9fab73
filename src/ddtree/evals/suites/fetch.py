"""Suites' files: given, in the cache, or fetched where that was asked for; checked in any case.

A file is data. Nothing in it is imported or run, and loaders that lie beside it are left alone.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddtree.errors import ConfigError
from ddtree.evals.suites.sources import FILE_PREFIX, SuiteSource, source_of
from ddtree.records.files import write_atomic

Fetch = Callable[[str], bytes]
"""From `SuiteSource.address` to the file's bytes; raises OSError or one of this package's errors
where that fails."""

PROVENANCE_SUFFIX = ".provenance.json"


@dataclass(frozen=True)
class SuiteData:
    """A suite's file as it was read; `words` say where it comes from and what its digest is."""

    name: str
    data: bytes
    sha256: str
    words: str


class SuiteFiles:
    """Suites' files below `cache_dir`; without `fetch` there is no network."""

    def __init__(self, cache_dir: Path, fetch: Fetch | None = None) -> None:
        self._cache_dir = cache_dir
        self._fetch = fetch

    def path(self, name: str) -> Path:
        """Where the file of a named suite stands in the cache."""
        return self._cache_dir / source_of(name).file

    def read(self, name: str, given: Path | None = None) -> SuiteData:
        """The file of `name`: `given`, or else the cache's, or else fetched into the cache.

        For `file:PATH` it is that file. ConfigError where a file can't be read or fetched, isn't
        there (it says which, from where and where to put it), or is another than the pinned one
        or, where none is pinned, than the first one that the cache held.
        """
        if name.startswith(FILE_PREFIX):
            return _private(name, given)
        source = source_of(name)
        if given is not None:
            return _checked(source, _bytes_of(given), str(given), source.sha256)
        path = self.path(name)
        kept = _kept_digest(path)
        if path.is_file():
            found = _checked(source, _bytes_of(path), str(path), source.sha256 or kept)
            if source.sha256 is None and kept is None:
                _write_provenance(source, path, found.sha256)
            return found
        if self._fetch is None:
            raise ConfigError(_missing(source, path))
        data = _fetched(source, self._fetch)
        found = _checked(source, data, source.address, source.sha256 or kept)
        write_atomic(path, data)
        _write_provenance(source, path, found.sha256)
        return found


def _private(name: str, given: Path | None) -> SuiteData:
    if given is not None:
        raise ConfigError(f"suite {name}: names its file already; leave {given} out")
    data = _bytes_of(Path(name.removeprefix(FILE_PREFIX)))
    digest = hashlib.sha256(data).hexdigest()
    return SuiteData(name, data, digest, f"{name}, sha256 {digest}")


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from None


def _fetched(source: SuiteSource, fetch: Fetch) -> bytes:
    try:
        return fetch(source.address)
    except OSError as error:
        raise ConfigError(
            f"suite {source.name}: {source.address} could not be fetched ({error}); check the "
            "network, or give a copy of the file"
        ) from None


def _checked(source: SuiteSource, data: bytes, place: str, expected: str | None) -> SuiteData:
    digest = hashlib.sha256(data).hexdigest()
    if expected is not None and digest != expected:
        wanted = f"it must be {source.member} of {source.origin}, {source.revision}"
        if source.sha256 is None:
            wanted = (
                "the first file that was used had that; to trust this one, remove the "
                f"{PROVENANCE_SUFFIX} file beside the cache's {source.file}"
            )
        raise ConfigError(
            f"suite {source.name}: {place}: sha256 {digest}, expected {expected}; {wanted}"
        )
    trust = "pinned" if source.sha256 else "not pinned: trusted on first use"
    words = f"{source.name}: {source.member}, {source.revision}, {source.licence}"
    return SuiteData(source.name, data, digest, f"{words}, sha256 {digest} ({trust})")


def _missing(source: SuiteSource, path: Path) -> str:
    return (
        f"suite {source.name}: {path.name} is not here. `ddtree eval fetch {source.name}` gets it, "
        f"or bring {source.member} ({source.digest_words}) from {source.address} and put it at "
        f"{path}, or give its path"
    )


def _provenance_path(path: Path) -> Path:
    return path.with_name(path.name + PROVENANCE_SUFFIX)


def _kept_digest(path: Path) -> str | None:
    """The digest in the provenance beside `path`, None where there is none."""
    provenance = _provenance_path(path)
    if not provenance.is_file():
        return None
    try:
        return str(json.loads(_bytes_of(provenance))["sha256"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{provenance}: holds no provenance ({error}); remove it, and {path.name} if that is "
            "in doubt"
        ) from None


def _write_provenance(source: SuiteSource, path: Path, digest: str) -> None:
    provenance = {
        "suite": source.name,
        "address": source.address,
        "revision": source.revision,
        "sha256": digest,
        "pinned": source.sha256 is not None,
        "note": source.digest_words,
        "licence": source.licence,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_atomic(_provenance_path(path), json.dumps(provenance, indent=1) + "\n")
