"""What a task's request says."""

import hashlib

from ddtree.endpoint.calls import Chat, CompletionRequest, Message, Prompt
from ddtree.evals.spec import EvalSpec
from ddtree.evals.tasks import StdinTests, Task
from ddtree.records.arms import Arm
from ddtree.records.sampling import Sampling

# Where a completion has left the function: what these begin is no part of its body.
COMPLETION_STOPS = ("\nclass ", "\ndef ", "\n#", "\nif __name__", "\nprint(", "\nassert ", "\n@")

_FUNCTION = (
    "Complete the following Python function. Answer with the whole function, its name and "
    "signature unchanged, and the imports it needs, in exactly one ```python block as the last "
    "thing of your answer.\n\n```python\n{prompt}\n```"
)
_CALLED = (
    "{prompt}\n\nAnswer with Python code that defines `{name}`, with the imports it needs, in "
    "exactly one ```python block as the last thing of your answer."
)
_PROGRAM = (
    "{prompt}\n\nWrite a complete Python program that reads standard input and prints the answer "
    "to standard output. Give it in exactly one ```python block as the last thing of your answer."
)


def chat_text(task: Task) -> str:
    """The user's turn. Nothing is put into the assistant's mouth: templates that think, and most
    servers, would break on it."""
    if isinstance(task.tests, StdinTests):
        return _PROGRAM.format(prompt=task.prompt.rstrip())
    if task.prompt_is_code:
        return _FUNCTION.format(prompt=task.prompt.rstrip())
    return _CALLED.format(prompt=task.prompt.rstrip(), name=task.entry_point)


def prompt_of(task: Task, spec: EvalSpec) -> str | Chat:
    """The prompt as text or as a conversation."""
    if spec.prompting == "completion":
        return task.prompt
    return Chat((Message("user", chat_text(task)),), spec.variables)


def sampling_of(spec: EvalSpec, task: str, sample: int) -> Sampling:
    """How one answer is drawn; its seed follows from the task and the sample alone."""
    if spec.sampling.is_plain:
        return spec.sampling
    digest = hashlib.sha256(f"{spec.seed}:{task}:{sample}".encode()).digest()
    return spec.sampling.with_seed(int.from_bytes(digest[:4], "big"))


def request_of(
    spec: EvalSpec, task: Task, prompt: Prompt, arm: Arm, sample: int
) -> CompletionRequest:
    """One answer's request; the text is kept beside the token ids."""
    stops = COMPLETION_STOPS if spec.prompting == "completion" else ()
    return CompletionRequest(
        prompt,
        spec.max_tokens,
        arm,
        sampling=sampling_of(spec, task.id, sample),
        stop=stops,
        keep_text=True,
    )
