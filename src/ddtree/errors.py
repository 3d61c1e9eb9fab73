"""Every error this package raises on purpose.

    DDTreeError
    ├── ConfigError      a setting or file that can't be used as given
    ├── ModelError       a checkpoint, architecture or download that can't be used
    ├── RequestError     one request that can't be served as asked (names the field)
    ├── OverloadedError  more work than the server takes at once (later it may fit)
    ├── EngineError      the engine can't go on
    └── EndpointError    a server seen from outside misbehaved

A message says what came, what was expected and what to do about it.
"""


class DDTreeError(Exception):
    """Root of the tree: the CLI prints its message and exits with status 1."""


class ConfigError(DDTreeError):
    """A setting, specification or file that can't be used as given."""


class ModelError(DDTreeError):
    """A checkpoint, an architecture or a download that can't be used."""


class RequestError(DDTreeError):
    """A request that can't be served as asked; `field` names the culprit in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class OverloadedError(DDTreeError):
    """The queue is full: the same request may be served a moment later."""


class EngineError(DDTreeError):
    """The engine is in a state from which it can't serve."""


class EndpointError(DDTreeError):
    """A server seen from outside refused, broke off or answered nonsense."""
