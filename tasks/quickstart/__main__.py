"""`python -m tasks.quickstart`."""

from tasks.quickstart.run import console_main

if __name__ == "__main__":
    console_main()
