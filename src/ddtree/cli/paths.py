"""Where the command line keeps files between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/ddtree`, by default ~/.cache/ddtree; not created here.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification asks.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "ddtree"
