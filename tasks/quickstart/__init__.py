"""Raw text to a served, queried model in minutes; `run.py` is the command."""


def console_main() -> None:
    """Runs the console script `bert-quickstart`."""
    from tasks.quickstart import run  # Not above: other rooms read the corpus alone.

    run.console_main()
