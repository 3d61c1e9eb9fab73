"""An LLM server seen from outside: launch, readiness, streaming client."""
