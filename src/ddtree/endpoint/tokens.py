"""Text to token ids and back without a server: a local tokenizer.json."""

from pathlib import Path

from tokenizers import Tokenizer

from ddtree.errors import ConfigError


class LocalTokenizer:
    """A `tokenizer.json`, or the folder of one. Nothing is fetched. ConfigError if unreadable."""

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ConfigError(f"tokenizer: {file} is no file; give a tokenizer.json or its folder")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise ConfigError(f"tokenizer: {file} can't be used ({error})") from None

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text of `token_ids`, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
