"""From raw text to a served and queried model in minutes; `run.py` is the command."""


def console_main() -> None:
    """Runs the console script `bert-quickstart`."""
    from tasks.quickstart import run  # Imported late: other rooms use the corpus alone.

    run.console_main()
