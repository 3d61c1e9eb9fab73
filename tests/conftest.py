"""Settings shared by all tests."""

import os

import pytest
import torch
from hypothesis import settings

from ddtree.cli.paths import cache_dir
from ddtree.models.zoo import ModelPaths, resolve

if not torch.cuda.is_available():
    # Read when triton is imported: kernels run on a CPU, one program after the other.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def model_cache():
    """The user's cache folder, where the zoo's target is kept between runs."""
    return cache_dir()


@pytest.fixture(scope="session")
def smollm2(model_cache) -> ModelPaths:
    """The zoo's target and drafter, fetched on the first use."""
    return resolve("smollm2-135m", model_cache)
