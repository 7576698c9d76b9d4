"""`make oracle`: what becomes of a suite's cases, the table, and the exit status, on toy suites."""

import re
import subprocess
import sys
import types

import oracle
import pytest
from oracle import Case
from repository import ROOT

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def suites(tmp_path):
    """A folder with one suite."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "COMMIT").write_text(f"{HASH}\n")
    return tmp_path


def judged(suites, *cases, explained=None, **settings):
    """The verdict on cases that an adapter returns."""
    settings = {"NAME": "toy", "FOLDER": "toy", "run": lambda _: list(cases), "EXPLAINED": explained or {}} | settings
    return oracle.judge(types.SimpleNamespace(**settings), str(suites))


@pytest.mark.parametrize(
    ("cases", "explained", "expected", "status"),
    [
        ([Case("a", "passed")], {}, [("a", "passed")], 0),
        ([Case("a", "passed"), Case("b", "failed", "why")], {}, [("a", "passed"), ("b", "failed")], 1),
        ([Case("a", "failed")], {"a": "On purpose."}, [("a", "explained")], 0),
        ([Case("a", "passed")], {"a": "On purpose."}, [("a", "failed")], 1),
        ([Case("a", "reworded")], {"a": "On purpose."}, [("a", "failed")], 1),
        ([Case("a", "reworded")], {}, [("a", "reworded")], 0),
        ([Case("a", "passed")], {"b": "On purpose."}, [("a", "passed"), ("b", "failed")], 1),
        ([Case("a", "passed"), Case("b", "not run", "")], {}, [("a", "passed"), ("b", "not run")], 0),
        ([Case("a", "not run", "")], {}, [("a", "not run")], 1),
        ([Case("a", "fine")], {}, [("a", "failed")], 1),
        ([Case("a", "passed"), Case("a", "passed")], {}, [("a", "failed"), ("a", "passed"), ("a", "passed")], 1),
        ([], {}, [("the adapter", "failed")], 1),
    ],
    ids=[
        "pass",
        "fail",
        "explained",
        "needless",
        "needless-words",
        "words",
        "no-such",
        "part",
        "nothing",
        "outcome",
        "twice",
        "empty",
    ],
)
def test_cases_are_settled(suites, cases, explained, expected, status):
    verdict = judged(suites, *cases, explained=explained)
    assert [(case.name, case.outcome) for case in verdict.cases] == expected
    assert oracle.status([verdict]) == status


def test_the_table(suites):
    cases = Case("a", "passed"), Case("b", "failed", "two\n  lines"), Case("c", "failed"), Case("d", "not run", "old")
    cases += (Case("e", "reworded", "'new'"),)
    verdicts = [judged(suites, *cases, explained={"c": "On purpose."}), judged(suites, FOLDER="none", NAME="other")]
    assert oracle.table(verdicts, with_words=True).splitlines() == [
        "suite  commit                                    passed  reworded  of",
        f"toy    {HASH}  1       1         5",
        "other  -                                         0       0         1",
        "",
        "failed (1):",
        "  toy, b: two lines",
        "",
        "explained (1):",
        "  toy, c: On purpose.",
        "",
        "not run (2):",
        "  toy, d: old",
        f"  other, the suite: There is no folder {suites}/none.",
        "",
        "reworded (1):",
        "  toy, e: 'new'",
    ]


def test_an_adapter_that_raises_has_failed(suites):
    (case,) = judged(suites, run=lambda _: [][1]).cases
    assert (case.name, case.outcome) == ("the adapter", "failed") and "list index out of range" in case.reason


def test_the_commit(suites):
    (suites / "toy" / "COMMIT").unlink()
    assert oracle.commit_of(str(suites / "toy")) == "-"
    verdict = judged(suites, FOLDER=None, PACKAGE="pytest", run=lambda folder: [Case(str(folder), "passed")])
    assert verdict.commit == f"pytest {pytest.__version__}" and verdict.cases[0].name == "None"


def test_pytest_runs_a_suite(suites):
    test = (
        "import os, pytest\n\n\nclass TestToy:\n    def test_good(self):\n        assert os.environ['TOY'] == '1'\n\n"
    )
    test += (
        "    def test_bad(self):\n        assert 1 == 2\n\n    def test_left(self):\n        pytest.skip('no toy')\n"
    )
    (suites / "toy" / "toy_test.py").write_text(test)
    cases = oracle.pytest_cases("toy_test.py", folder=str(suites / "toy"), environment={"TOY": "1"})
    assert [case[:2] for case in cases] == [
        ("TestToy.test_good", "passed"),
        ("TestToy.test_bad", "failed"),
        ("TestToy.test_left", "not run"),
    ]
    assert "assert 1 == 2" in cases[1].reason and "no toy" in cases[2].reason
    assert sorted(path.name for path in (suites / "toy").iterdir()) == ["COMMIT", "toy_test.py"]
    with pytest.raises(RuntimeError, match="no_test.py"):
        oracle.pytest_cases("no_test.py", folder=str(suites / "toy"))


def test_every_adapter_says_what_it_must():
    for path in set((ROOT / "tests" / "oracle").glob("*.py")) - {ROOT / "tests" / "oracle" / "run.py"}:
        text = path.read_text(encoding="utf-8")
        if "\nNAME = " in text:
            assert "\ndef run(folder" in text and ("\nFOLDER = " in text or "\nPACKAGE = " in text), path


@pytest.mark.slow
@pytest.mark.oracle
def test_model_gardens_tests_of_masking(tmp_path):
    command = [sys.executable, str(ROOT / "tests" / "oracle" / "run.py"), f"--suites={tmp_path}"]
    done = subprocess.run([*command, "--only=model-garden-pretraining-data"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^model-garden-pretraining-data +tf-models-official \S+ +3 +0 +5$", done.stdout, re.MULTILINE)
