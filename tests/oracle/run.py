"""`make oracle`: runs the tests of other projects on this one, and prints one table.

    python tests/oracle/run.py --suites=DIR [--only=NAME ...] [--words]

DIR holds a folder for each suite; docs/testing.md says which. Each module beside this one is a suite's adapter; what
it must have is said in tests/support/oracle.py.
"""

import argparse
import importlib
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PATHS = [str(HERE.parents[1]), str(HERE.parent / "support"), str(HERE)]


def adapters(names: list[str]) -> list:
    """Returns the modules that have a NAME, those of `names` if there are any, in the order of their files."""
    modules = [importlib.import_module(path.stem) for path in sorted(HERE.glob("*.py")) if path.stem != "run"]
    suites = [module for module in modules if hasattr(module, "NAME")]
    unknown = set(names) - {module.NAME for module in suites}
    if unknown:
        sys.exit(f"No such suite: {sorted(unknown)}. Expected some of {[module.NAME for module in suites]}.")
    return [module for module in suites if not names or module.NAME in names]


def main() -> None:
    """Runs the suites one after the other; ends with status 1 if a case failed that is not explained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", required=True, help="folder that holds the suites' folders")
    parser.add_argument("--only", action="append", default=[], help="run this suite; can be given several times")
    parser.add_argument("--words", action="store_true", help="also list what passes in other words than expected")
    arguments = parser.parse_args()
    sys.path[:0] = PATHS
    # Also for the processes that adapters start.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    oracle = importlib.import_module("oracle")
    verdicts = []
    for adapter in adapters(arguments.only):
        print(f"{adapter.NAME} ...", file=sys.stderr, flush=True)
        verdicts.append(oracle.judge(adapter, arguments.suites))
    print(oracle.table(verdicts, arguments.words))
    sys.exit(oracle.status(verdicts))


if __name__ == "__main__":
    main()
