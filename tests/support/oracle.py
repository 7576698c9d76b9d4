"""Others' tests as judges of this project: what an adapter of tests/oracle says, and the table that is printed of it.

An adapter is a module of tests/oracle that has

    NAME        of the suite, in the table
    FOLDER      the suite's folder under SUITES; or PACKAGE, an installed distribution that brings the tests along
    run(folder) returns the suite's cases; `folder` is an absolute path, or None for a PACKAGE
    EXPLAINED   optional: case name -> one sentence that says why we differ on purpose

It reads the suite where it lies and writes nothing there. Whatever it imports beyond the standard library and this
module, it imports inside functions.
"""

import collections
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import traceback
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

OUTCOMES = ("passed", "failed", "explained", "not run", "reworded")
PASSING = ("passed", "reworded")


class Case(NamedTuple):
    """One test of a suite.

    Attributes:
        name: tells it from the suite's other cases.
        outcome: one of `OUTCOMES`. An adapter says "failed" also of what it explains. "reworded" passes: the same
            status and form in other words.
        reason: why it did not pass, or what words the suite expected.
    """

    name: str
    outcome: str
    reason: str = ""


class Verdict(NamedTuple):
    """What came of a suite."""

    name: str
    commit: str
    cases: list[Case]


def check(name: str, function: Callable, *arguments) -> Case:
    """Calls a function that raises an exception if the case fails, and returns the case."""
    try:
        function(*arguments)
    except Exception as error:
        return Case(name, "failed", f"{type(error).__name__}: {error}")
    return Case(name, "passed")


def pytest_cases(
    *arguments: str, folder: str, environment: Mapping[str, str] | None = None, seconds: float = 3600
) -> list[Case]:
    """Runs pytest in a process of its own, with none of this project's or the suite's settings of pytest.

    Args:
        arguments: for pytest, such as paths of test files.
        folder: the working directory; conftest files above it are not read.
        environment: variables beside this process's.
        seconds: after which the process is ended.

    Returns:
        A case for each test, named `Class.test`.

    Raises:
        RuntimeError: pytest did not come as far as running tests.
    """
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    with tempfile.TemporaryDirectory() as scratch:
        settings, report = (os.path.join(scratch, name) for name in ("pytest.ini", "report.xml"))
        with open(settings, "w", encoding="utf-8") as file:
            file.write("[pytest]\n")
        options = ["-q", "-p", "no:cacheprovider", f"-c{settings}", f"--rootdir={folder}", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        done = subprocess.run(
            command, cwd=folder, env=variables, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode not in (0, 1):  # 1: tests failed.
            said = done.stdout.decode(errors="replace")[-2000:]
            raise RuntimeError(f"pytest ended with {done.returncode}: {said}")
        return junit_cases(report)


def junit_cases(report: str) -> list[Case]:
    """Returns a case for each test of a report in JUnit's format, named `Class.test`."""
    return [_case(test) for test in xml.etree.ElementTree.parse(report).iter("testcase")]


def _case(test: xml.etree.ElementTree.Element) -> Case:
    name = f"{test.get('classname').rpartition('.')[2]}.{test.get('name')}"
    outcomes = {"failure": "failed", "error": "failed", "skipped": "not run"}
    for result in (child for child in test if child.tag in outcomes):
        return Case(name, outcomes[result.tag], result.get("message") or (result.text or "").strip())
    return Case(name, "passed")


def judge(adapter, suites: str) -> Verdict:
    """Runs a suite.

    Args:
        adapter: see the top of this file.
        suites: the folder that holds the suites' folders.
    """
    package = getattr(adapter, "PACKAGE", None)
    folder = None if package else os.path.join(os.path.abspath(suites), adapter.FOLDER)
    if folder and not os.path.isdir(folder):
        return Verdict(adapter.NAME, "-", [Case("the suite", "not run", f"There is no folder {folder}.")])
    try:
        cases = list(_settled(adapter.run(folder), getattr(adapter, "EXPLAINED", {})))
    except Exception:
        cases = [Case("the adapter", "failed", traceback.format_exc())]
    commit = f"{package} {importlib.metadata.version(package)}" if package else commit_of(folder)
    return Verdict(adapter.NAME, commit, cases)


def commit_of(folder: str) -> str:
    """Returns the commit that a file COMMIT in the folder names, or that git has checked out there, or "-"."""
    path = os.path.join(folder, "COMMIT")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    if not os.path.exists(os.path.join(folder, ".git")):
        return "-"
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "-"


def _settled(cases: Sequence[Case], explained: Mapping[str, str]) -> Iterator[Case]:
    """Yields the cases: failures that are explained as such, and explanations that nothing needs as failures."""
    names = [case.name for case in cases]
    if not cases:
        yield Case("the adapter", "failed", "It found no case.")
    for name, count in collections.Counter(names).items():
        if count > 1:
            yield Case(name, "failed", f"{count} cases have this name.")
    for case in cases:
        if case.outcome not in OUTCOMES:
            yield Case(case.name, "failed", f"The adapter gives the outcome {case.outcome!r}.")
        elif case.name in explained and case.outcome in PASSING:
            yield Case(case.name, "failed", f"It passes, but is explained: {explained[case.name]}")
        elif case.name in explained and case.outcome == "failed":
            yield Case(case.name, "explained", explained[case.name])
        else:
            yield case
    for name in explained.keys() - set(names):
        yield Case(name, "failed", f"There is no such case, but it is explained: {explained[name]}")


def table(verdicts: Sequence[Verdict], with_words: bool = False) -> str:
    """Returns a line for each suite, then what did not pass, by outcome, with the reasons.

    Args:
        verdicts: on the suites.
        with_words: also lists what passed in other words.
    """
    rows = [("suite", "commit", "passed", "reworded", "of")]
    for name, commit, cases in verdicts:
        counts = collections.Counter(case.outcome for case in cases)
        rows.append((name, commit, *map(str, (counts["passed"], counts["reworded"], len(cases)))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for outcome in ("failed", "explained", "not run", *(["reworded"] if with_words else [])):
        suite_cases = [
            (verdict.name, case) for verdict in verdicts for case in verdict.cases if case.outcome == outcome
        ]
        lines += ["", f"{outcome} ({len(suite_cases)}):"] if suite_cases else []
        lines += [f"  {suite}, {case.name}: {_shortened(case.reason)}" for suite, case in suite_cases]
    return "\n".join(lines)


def _shortened(reason: str) -> str:
    words = " ".join(reason.split())
    return words if len(words) <= 400 else f"{words[:150]} [...] {words[-240:]}"


def status(verdicts: Sequence[Verdict]) -> int:
    """Returns the exit status: 1 if something failed that is not explained, or if nothing ran at all."""
    outcomes = {case.outcome for verdict in verdicts for case in verdict.cases}
    return int("failed" in outcomes or outcomes <= {"not run"})
