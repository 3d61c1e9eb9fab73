"""What one request's decoding did, round by round, and the identities its counts obey."""

from dataclasses import dataclass, field

from ddtree.errors import EngineError

STAGES = ("draft", "build", "layout", "verify", "accept", "commit", "host")


@dataclass
class GenerationStats:
    """Counts of one request, written by the engine as rounds finish.

    `accepted_histogram[a]` counts the rounds that accepted `a` draft tokens, before any cut by a
    stop or a limit. `cut_tokens` are the accepted or bonus tokens that such a cut dropped.
    `stage_seconds` are wall seconds by stage over the rounds the request took part in (a batched
    round counts whole for each of its requests). `tree_nodes` counts the draft nodes verified,
    `undrafted_rounds` the rounds of a speculating request beyond its drafter's limit.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    rounds: int = 0
    undrafted_rounds: int = 0
    cut_tokens: int = 0
    tree_nodes: int = 0
    accepted_histogram: list[int] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens over all rounds, before any cut."""
        return sum(a * n for a, n in enumerate(self.accepted_histogram))

    @property
    def acceptance_length(self) -> float | None:
        """1 + sum(num_accepted) / rounds; None before the first round."""
        return 1 + self.num_accepted / self.rounds if self.rounds else None

    def add_round(self, num_accepted: int, num_nodes: int, seconds: dict[str, float]) -> None:
        """Count one round."""
        missing = num_accepted + 1 - len(self.accepted_histogram)
        self.accepted_histogram.extend([0] * missing)
        self.accepted_histogram[num_accepted] += 1
        self.rounds += 1
        self.tree_nodes += num_nodes
        for stage, value in seconds.items():
            self.stage_seconds[stage] = self.stage_seconds.get(stage, 0.0) + value

    def check(self) -> None:
        """Raise EngineError unless the counts reconcile.

        completion_tokens = 1 + sum(num_accepted + 1) - cut_tokens: the 1 is the token sampled
        from the prompt's last row, each round adds its accepted drafts and one bonus.
        """
        expected = 1 + self.num_accepted + self.rounds - self.cut_tokens
        if self.completion_tokens != expected:
            raise EngineError(
                f"token count does not reconcile: {self.completion_tokens} tokens, but 1 + "
                f"{self.num_accepted} accepted + {self.rounds} bonus - {self.cut_tokens} cut = "
                f"{expected}"
            )
        if sum(self.accepted_histogram) != self.rounds:
            raise EngineError(f"histogram {self.accepted_histogram} does not sum to {self.rounds}")
