"""Doctor's checks of the cache folder and the models known by name."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddtree.cli.checks import Check

if TYPE_CHECKING:
    from ddtree.models import zoo

# A wheel, its member and the converted model lie side by side while an entry is made.
FIRST_FETCH_BYTES = 500_000_000


def cache_folder(cache: Path) -> Check:
    """Where models go, whether it can be written, and what is free there."""
    parent = cache
    while not parent.exists():
        parent = parent.parent
    free = shutil.disk_usage(parent).free
    value = f"{cache}, {free / 1e9:.1f} GB free"
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return Check(
            "cache", "missing", f"{value}, not writable", "export XDG_CACHE_HOME=/a/writable/folder"
        )
    if free < FIRST_FETCH_BYTES:
        wanted = f"a first fetch takes {FIRST_FETCH_BYTES / 1e6:.0f} MB"
        return Check("cache", "note", value, f"free some space: {wanted}")
    return Check("cache", "ok", value)


def zoo_entries(cache: Path) -> list[Check]:
    """Target and drafter of every model known by name."""
    # Imported late: it takes seconds, and `ddtree --help` should not wait for it.
    from ddtree.models import zoo

    checks = []
    for entry in zoo.ZOO.values():
        status = zoo.zoo_status(entry, cache)
        checks += [target_check(status, _has_pip()), drafter_check(status)]
    return checks


def target_check(status: "zoo.ZooStatus", has_pip: bool) -> Check:
    """Present, intact and as converted elsewhere; an absent one is fetched at first use."""
    name = status.entry.name
    pull = f"ddtree models pull {name}"
    if status.manifest is None:
        if has_pip:
            return Check(name, "note", "not fetched yet (first use does it)", pull)
        advice = f"{sys.executable} -m ensurepip --upgrade && {pull}"
        return Check(name, "missing", "not fetched, and pip is missing", advice)
    if not status.is_intact:
        value = f"{status.target}: model.safetensors is damaged (sha256 {status.weights_sha256})"
        return Check(name, "missing", value, f"rm -r '{status.target}' && {pull}")
    value = f"{status.target}, sha256 {status.weights_sha256}"
    if status.is_as_expected:
        return Check(name, "ok", value)
    return Check(
        name,
        "note",
        f"{value}, expected {status.entry.converted_sha256}",
        f"transformers {status.manifest.transformers} converted it to other bytes than the tested "
        "ones; results may differ in the last bits from published ones",
    )


def drafter_check(status: "zoo.ZooStatus") -> Check:
    """The drafter inside this package."""
    name = f"{status.entry.name} drafter"
    if status.is_drafter_intact:
        return Check(name, "ok", f"shipped, sha256 {status.drafter_sha256}")
    found = "absent" if status.drafter_sha256 is None else f"sha256 {status.drafter_sha256}"
    return Check(
        name,
        "missing",
        f"{found}, expected {status.entry.drafter_sha256}",
        f"{sys.executable} -m pip install --force-reinstall --no-deps ddtree",
    )


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None
