"""DDTree speculative decoding: algorithm (`core`), engine, server, benchmark and report."""

__version__ = "0.1.0"
