"""`jaxscore self-certainty`: the command of the system, whose items name the model."""

from jaxscore.cli.app import Command
from jaxscore.cli.execute import GENERATOR
from jaxscore.cli.system_command import command_of
from jaxscore.systems import declaration


def command() -> Command:
    """Declare the command."""
    command = command_of(declaration("self-certainty"))
    help = f"{command.by_name['--model'].help} (default: the first `{GENERATOR}`)"
    names = ("--model", "--model-name")
    return command.changed("model", names=names, default=None, help=help)
