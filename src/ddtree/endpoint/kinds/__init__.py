"""The kinds of server that the client can talk to, each with its dialect of HTTP."""

from ddtree.endpoint.kinds.base import KINDS, Dialect, Kind
from ddtree.endpoint.kinds.ddtree import DDTreeDialect
from ddtree.endpoint.kinds.openai import OpenAIDialect
from ddtree.endpoint.kinds.sglang import SGLangDialect
from ddtree.endpoint.kinds.vllm import VLLMDialect

__all__ = ["KINDS", "Dialect", "Kind", "dialect_of"]


def dialect_of(kind: Kind) -> Dialect:
    """The dialect of a kind; it keeps no state, so that one serves any number of requests."""
    dialects: dict[Kind, Dialect] = {
        "ddtree": DDTreeDialect(),
        "sglang": SGLangDialect(),
        "vllm": VLLMDialect(),
        "openai": OpenAIDialect(),
    }
    return dialects[kind]
