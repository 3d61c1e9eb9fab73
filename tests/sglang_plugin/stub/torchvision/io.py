"""Images play no part in these tests: any name can be imported, none does anything."""


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
