"""What every page has: the frame, a script that alone may run, and a way to the disk."""

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddtree import __version__
from ddtree.errors import ConfigError
from ddtree.records.files import write_atomic
from ddtree.report.numbers import Footnotes


def render(template: str, **values: Any) -> str:
    """A page from one of the package's templates. Every string is escaped."""
    environment = Environment(
        loader=PackageLoader("ddtree", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        footnotes=Footnotes, made_by=__version__, **_script(), **values
    )


def write_page(page: str, path: Path) -> None:
    """Write it whole or not at all; the folder is made if need be. ConfigError where it can't."""
    try:
        write_atomic(path, page)
    except OSError as error:
        raise ConfigError(
            f"{path}: the report can't be written ({error}); expected a writable folder"
        ) from error


def _script() -> dict[str, str]:
    """The page's script, and the hash by which its security policy lets that script alone run."""
    script = (files("ddtree.report") / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": script, "script_hash": f"sha256-{digest}"}
