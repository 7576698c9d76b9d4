"""Goes from raw text to a served and queried model in minutes. `run.py` is the command."""
