"""The embedded engine: the round loop, slots and caches, scheduling."""

from ddtree.engine.engine import Engine, Progress, RoundObserver
from ddtree.engine.job import Job
from ddtree.engine.loading import DTYPES, LoadedEngine, load_engine
from ddtree.engine.loop import RoundResult
from ddtree.engine.params import DraftWindow, EngineConfig, Speculation
from ddtree.engine.replay import ReplayJob, make_replay
from ddtree.engine.request import Request, TokenLogprob
from ddtree.engine.sampling_params import SamplingParams
from ddtree.engine.scheduler import Work
from ddtree.engine.scoring import Score, ScoreJob

__all__ = [
    "DTYPES",
    "DraftWindow",
    "Engine",
    "EngineConfig",
    "Job",
    "LoadedEngine",
    "Progress",
    "ReplayJob",
    "Request",
    "RoundObserver",
    "RoundResult",
    "SamplingParams",
    "Score",
    "ScoreJob",
    "Speculation",
    "TokenLogprob",
    "Work",
    "load_engine",
    "make_replay",
]
