"""The engine's OpenAI-compatible HTTP face. There is no prefix cache: every prompt is computed."""

from ddtree.serve.app import ServerInfo, create_app
from ddtree.serve.speculating import DefaultSpeculation
from ddtree.serve.worker import EngineWorker

__all__ = ["DefaultSpeculation", "EngineWorker", "ServerInfo", "create_app"]
