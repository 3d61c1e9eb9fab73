"""Hub checkpoints: found in the hub's own cache, or pulled there when asked."""

import re
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from ddtree.errors import ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form ORG/NAME."""
    return _HUB_ID.fullmatch(text) is not None


def find_pulled(hub_id: str) -> Path:
    """Folder of a snapshot already in the hub's cache; never reaches a network.

    The snapshot may be incomplete. ModelError if there is none.
    """
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{hub_id}: not in the hub's cache on this machine; run `ddtree models pull {hub_id}` "
            "or give the path of a local folder"
        ) from error


def pull(hub_id: str) -> Path:
    """Download config, tokenizer and safetensors of ORG/NAME; ModelError says why it failed."""
    try:
        folder = huggingface_hub.snapshot_download(hub_id, allow_patterns=list(_WANTED_FILES))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{hub_id}: could not be pulled: {error}\nCheck the id and the network, log in with "
            "`hf auth login` if it is gated, or give the path of a local folder"
        ) from error
    return Path(folder)
