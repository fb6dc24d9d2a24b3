"""`jaxscore paths`: the command of the system, with the published spelling of --limit."""

from jaxscore.cli.system_command import command_of
from jaxscore.systems import declaration

COMMAND = command_of(declaration("paths")).changed("limit", names=("--limit", "--max-samples"))
