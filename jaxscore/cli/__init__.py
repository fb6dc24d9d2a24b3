"""One module a subcommand: `add(subparsers)` and `run(args) -> exit code`."""
