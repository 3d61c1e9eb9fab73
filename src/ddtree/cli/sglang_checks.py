"""Doctor's check of SGLang: whether DDTREE would register there."""

import importlib.metadata

from ddtree.cli.checks import Check
from ddtree.errors import ConfigError
from ddtree.sglang_plugin.contract import installed_root, problems


def sglang() -> Check:
    """What the plugin finds out when a server starts, without starting one."""
    name = "sglang"
    try:
        root = installed_root()
    except ConfigError:
        return Check(name, "note", "not installed (needed for DDTREE on SGLang alone)")
    version = importlib.metadata.version("sglang")
    found = problems(root)
    if not found:
        return Check(name, "ok", f"{version}, DDTREE registers")
    more = f" (and {len(found) - 1} more)" if found[1:] else ""
    value = f"{version}, DDTREE does not register: {found[0]}{more}"
    return Check(name, "note", value, "pip install sglang==0.5.15, the version it was written for")
