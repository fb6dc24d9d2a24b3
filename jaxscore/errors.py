"""The one exception for what a user can put right: it becomes a message and exit code 2."""


class InputError(Exception):
    """Unusable input, model, flag or output place.

    The message says what was found, what was expected and what to do, with the file and line
    where there is one. The command line prints it without a traceback and exits with 2.
    """
