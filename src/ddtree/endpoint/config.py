"""Which server a run talks to: one of ours, or another kind, launched here or reached by URL."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddtree.endpoint.kinds import KINDS, Kind
from ddtree.endpoint.tokens import LocalTokenizer
from ddtree.errors import ConfigError
from ddtree.records.arms import Arm

_Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+")]


@dataclass(frozen=True)
class EndpointConfig:
    """The default launches `ddtree serve`, which switches arms by request.

    For every other kind an arm is a launch. `url` is a server that runs already; `urls` are such
    servers by arm label, all open at once. Without either the server is launched: `command` starts
    it (empty: the kind's usual one) and `options` come after those that the arm asks for, with
    `environment` on top of the caller's. `version` chooses flag names, None the newest known.

    `api_key` was read from the variable `api_key_env`. `tokenizer` is a local tokenizer.json or its
    folder, `model` the name that requests ask for.
    """

    kind: Kind = "ddtree"
    url: str | None = None
    urls: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None
    model: str | None = None
    api_key: str | None = field(default=None, repr=False, compare=False)

    @property
    def launches(self) -> bool:
        """Whether the run starts its servers itself."""
        return self.url is None and not self.urls

    @property
    def arm_is_launch(self) -> bool:
        """Whether a server decodes with one arm alone."""
        return self.kind != "ddtree"

    def url_of(self, arm: Arm) -> str:
        """Where an arm's server runs; ConfigError where no URL is given for it."""
        found = self.url or dict(self.urls).get(arm.label)
        if found is None:
            raise ConfigError(
                f"endpoint.urls: none for {arm.label!r}; there are "
                + ", ".join(label for label, _ in self.urls)
            )
        return found

    def local_tokenizer(self) -> LocalTokenizer | None:
        """The tokenizer named here; ConfigError if it can't be read."""
        return None if self.tokenizer is None else LocalTokenizer(Path(self.tokenizer))

    def to_dict(self) -> dict[str, Any]:
        """What `parse_endpoint` takes, settings at their defaults left out; never the key."""
        fields = {
            "kind": self.kind,
            "url": self.url,
            "urls": dict(self.urls),
            "command": list(self.command),
            "options": list(self.options),
            "environment": dict(self.environment),
            "version": self.version,
            "api_key_env": self.api_key_env,
            "tokenizer": self.tokenizer,
            "model": self.model,
        }
        return {name: value for name, value in fields.items() if value}


class _EndpointFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind = "ddtree"
    url: _Url | None = None
    urls: dict[str, _Url] = Field(default_factory=dict)
    command: str | list[str] = Field(default_factory=list)
    options: str | list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)
    version: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None
    model: str | None = None


def parse_endpoint(
    data: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> EndpointConfig:
    """A configuration from a file's `endpoint:` key.

    `environment` is where the variable named by `api_key_env` is looked up; None looks up nothing
    and leaves the key out. `command` and `options` may be one string, split as a shell would.
    ConfigError names the key that can't be used.
    """
    try:
        file = _EndpointFile.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    config = EndpointConfig(
        kind=file.kind,
        url=file.url,
        urls=tuple(file.urls.items()),
        command=_words("command", file.command),
        options=_words("options", file.options),
        environment=tuple(file.environment.items()),
        version=file.version,
        api_key_env=file.api_key_env,
        tokenizer=file.tokenizer,
        model=file.model,
        api_key=_key(file.api_key_env, environment),
    )
    _check(config)
    return config


def _check(config: EndpointConfig) -> None:
    if config.url is not None and config.urls:
        raise ConfigError("endpoint: url and urls exclude each other; give one of them")
    if config.urls and not config.arm_is_launch:
        raise ConfigError("endpoint.urls: a server of kind ddtree serves every arm; give its url")
    if config.kind == "openai" and config.launches:
        raise ConfigError("endpoint: kind openai can't be launched; give url or urls")
    if not config.launches and (config.command or config.options or config.environment):
        raise ConfigError(
            "endpoint: command, options and environment start a server; with url or urls there is "
            "none to start"
        )


def _words(name: str, value: str | list[str]) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value) if isinstance(value, str) else value)
    except ValueError as error:
        raise ConfigError(f"endpoint.{name}: {value!r} can't be split ({error})") from None


def _key(name: str | None, environment: Mapping[str, str] | None) -> str | None:
    if name is None or environment is None:
        return None
    if not environment.get(name):
        raise ConfigError(f"endpoint.api_key_env: the variable {name} is not set, or empty")
    return environment[name]


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(["endpoint", *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key; known are {', '.join(_EndpointFile.model_fields)}"
    if first["loc"] == ("kind",):
        return f"{where}: got {first['input']!r}, expected one of {', '.join(KINDS)}"
    return f"{where}: {first['msg']}, got {first['input']!r}"
