"""The engine's OpenAI-compatible HTTP face."""
