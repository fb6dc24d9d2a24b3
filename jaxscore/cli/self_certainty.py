"""`jaxscore self-certainty`: the command of the system, whose items name the model."""

from jaxscore.cli.execute import GENERATOR
from jaxscore.cli.system_command import command_of
from jaxscore.systems import declaration

_COMMAND = command_of(declaration("self-certainty"))
COMMAND = _COMMAND.changed(
    "model",
    names=("--model", "--model-name"),
    default=None,
    help=f"{_COMMAND.by_name['--model'].help} (default: the first `{GENERATOR}`)",
)
