"""Images are not transformed in these tests."""

from enum import Enum


class InterpolationMode(Enum):
    """The names that SGLang's modules mention on import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
