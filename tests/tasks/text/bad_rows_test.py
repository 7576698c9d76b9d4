"""Bad rows are refused with their place, or left out, shown and counted."""

import pytest

from keras_bert.errors import InputError
from tasks.text.bad_rows import BadRows


def test_one_bad_row_is_refused_by_its_place():
    bad_rows = BadRows()
    bad_rows.finish()
    bad_rows.add("train.tsv:7", "the label is empty. Fill it.")
    with pytest.raises(InputError) as error:
        bad_rows.finish()
    assert str(error.value) == "train.tsv:7: the label is empty. Fill it."


def test_several_are_counted():
    bad_rows = BadRows()
    for line in (3, 5, 9):
        bad_rows.add(f"a.csv:{line}", "no label.")
    with pytest.raises(
        InputError, match=r"^a.csv:3: no label. \(3 bad rows in all; --bad_rows=skip leaves them out.\)$"
    ):
        bad_rows.finish()


def test_skipped_ones_are_shown_counted_and_written(tmp_path, capsys):
    bad_rows = BadRows("skip")
    for line in range(25):
        bad_rows.add(f"a.csv:{line}", 'a "quote",\tand a tab')
    bad_rows.finish()
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 21 and shown[0].startswith('skipped: a.csv:0: a "quote"') and "5 more, 25 in all" in shown[-1]
    bad_rows.add("b.csv:1", "empty")
    bad_rows.finish()
    assert capsys.readouterr().err == "skipped: b.csv:1: empty\n" and bad_rows.count == 26
    bad_rows.write(str(tmp_path))
    assert capsys.readouterr().err == f"Skipped rows: {tmp_path}/skipped_rows.tsv\n"
    lines = (tmp_path / "skipped_rows.tsv").read_text().splitlines()
    assert lines[0] == "where\treason" and len(lines) == 27 and lines[1] == 'a.csv:0\ta "quote", and a tab'
    BadRows("skip").write(str(tmp_path))
    assert not list(tmp_path.iterdir())
