"""Stands in for torchvision, which SGLang imports for images alone: PyPI's build does not fit the
CPU build of torch."""

__version__ = "0.0.0"
