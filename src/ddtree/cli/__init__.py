"""The command line: arguments to frozen configuration, results to standard output.

The only package that prints, configures logging, reads the environment or exits. Commands import
what they run when they run, so that `--help` does not wait for torch.
"""

import sys

import typer

from ddtree.cli.bench import app as bench_app
from ddtree.cli.doctor import doctor as doctor_command
from ddtree.cli.evals import app as evals_app
from ddtree.cli.generate import generate as generate_command
from ddtree.cli.models import app as models_app
from ddtree.cli.serve import serve as serve_command
from ddtree.cli.sglang import app as sglang_app
from ddtree.cli.verify import verify as verify_command
from ddtree.errors import DDTreeError

app = typer.Typer(
    name="ddtree",
    help="DDTree speculative decoding: try it, serve it, benchmark it, prove it lossless.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("generate")(generate_command)
app.command("serve")(serve_command)
app.command("verify")(verify_command)
app.command("doctor")(doctor_command)
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")
app.add_typer(evals_app, name="eval")
app.add_typer(sglang_app, name="sglang")


def main() -> None:
    """Run a command; an error of ours is one line on standard error and exit status 1."""
    try:
        app()
    except DDTreeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
