"""Files: errors name path and line; a result appears whole or not at all."""

import gzip
import os
import platform
import re
import subprocess
import sys

import pytest

from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, is_alive, read_json, read_lines, write_json, write_lines


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufefffirst\r\nse\u2028cond\x0b\n\nlast".encode())
    assert list(read_lines(str(path))) == [(1, "first"), (2, "se\u2028cond\x0b"), (3, ""), (4, "last")]


def test_bad_utf8_names_file_line_and_byte(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"good\nna\xefve\n")
    with pytest.raises(InputError, match=r"latin\.txt:2: not valid UTF-8 at byte 2 .*0xef"):
        list(read_lines(str(path)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\x14\x00\x06\n\xff", "found an Excel workbook or a zip archive. Name a workbook .xlsx"),
        (b"PAR1\x15\x04\n\x15\xff", "found a Parquet file. Name it .parquet"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "found a file of an old version of Office, such as .xls. Save it as"),
        (gzip.compress(b"text", mtime=0), "found a gzip archive. Unpack it: gunzip."),
    ],
)
def test_a_file_that_is_no_text_is_named_by_its_kind(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InputError, match=f"a.csv: expected UTF-8 text, {message}"):
        list(read_lines(str(tmp_path / "a.csv")))
    (tmp_path / "a.txt").write_text("PAR1 is a word here")
    assert len(list(read_lines(str(tmp_path / "a.txt")))) == 1


def test_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.txt: cannot be read \(No such file"):
        list(read_lines(str(tmp_path / "nowhere.txt")))


def test_expand_files_keeps_pattern_order_and_drops_repeats(tmp_path):
    for name in ("b.txt", "a.txt", "c.tsv"):
        (tmp_path / name).write_text("x")
    patterns = f"{tmp_path}/c.tsv, {tmp_path}/*.txt,{tmp_path}/a.txt"
    assert [os.path.basename(path) for path in expand_files(patterns)] == ["c.tsv", "a.txt", "b.txt"]


def test_a_path_with_a_comma_is_one_path(tmp_path):
    directory = tmp_path / "a,b"
    directory.mkdir()
    path = str(directory / "c, d.txt")
    with open(path, "w"):
        pass
    assert expand_files(path) == expand_files([path]) == [path]
    with pytest.raises(InputError, match="found a directory"):
        expand_files(str(directory))


@pytest.mark.parametrize("patterns, message", [("", "No input file"), ("{}/x*", "no such file"), ("{}", "directory")])
def test_expand_files_refuses(tmp_path, patterns, message):
    with pytest.raises(InputError, match=message):
        expand_files(patterns.format(tmp_path))


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "out.json"
    write_json(str(path), {"a": 1})
    with pytest.raises(RuntimeError), atomic_path(str(path)) as temporary:
        with open(temporary, "w") as file:
            file.write("half")
        raise RuntimeError("stopped")
    assert read_json(str(path)) == {"a": 1}
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_directory_is_replaced_whole(tmp_path):
    path = tmp_path / "model"
    for content in ("old", "new"):
        with atomic_path(str(path)) as temporary:
            os.makedirs(temporary)
            with open(os.path.join(temporary, content), "w") as file:
                file.write(content)
    assert os.listdir(path) == ["new"]
    assert os.listdir(tmp_path) == ["model"]


def test_no_process_gets_a_signal_on_windows(monkeypatch):
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        windows.setattr(os, "kill", None)
        alive = is_alive(1)
    assert alive


def write_directory(path, content):
    with atomic_path(str(path)) as temporary:
        os.makedirs(temporary)
        with open(os.path.join(temporary, content), "w") as file:
            file.write(content)


def test_a_directory_survives_an_interruption_between_the_renames(tmp_path, monkeypatch):
    path = tmp_path / "model"
    write_directory(path, "old")

    def interrupted(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)  # The second one; the first puts the old directory aside.
        write_directory(path, "new")
    assert os.listdir(path) == ["old"]
    assert os.listdir(tmp_path) == ["model"]


def test_two_machines_may_write_one_file_at_the_same_time(tmp_path, monkeypatch):
    path = str(tmp_path / "out")
    with atomic_path(path) as first, open(first, "w") as file, monkeypatch.context() as elsewhere:
        elsewhere.setattr(files, "_MACHINE", "another-machine")
        write_lines(path, ["second"])
        file.write("first")
    assert (tmp_path / "out").read_text() == "first"
    assert os.listdir(tmp_path) == ["out"]


@pytest.fixture
def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=60)
    return process.pid


def partial(name, process, machine=None):
    return f".{name}.partial-{machine or re.sub('[^a-zA-Z0-9_-]', '-', platform.node())}-{process}"


def test_what_a_killed_process_left_is_removed(tmp_path, dead_process):
    living = partial("out", os.getppid())
    others = [partial("out.txt", "1x"), partial("other", 1), partial("out", dead_process, "another-machine")]
    for name in (living, *others):
        (tmp_path / name).write_text("of someone else")
    (tmp_path / partial("out", dead_process)).mkdir()
    (tmp_path / partial("out", dead_process) / "file").write_text("half")
    (tmp_path / partial("out", f"{dead_process}-old")).write_text("retired")
    (tmp_path / partial("out", os.getpid())).mkdir()  # of a process that had the same number
    (tmp_path / "out").write_text("before")
    write_json(str(tmp_path / "out"), 1)
    assert sorted(os.listdir(tmp_path)) == sorted(["out", living, *others])


def test_a_directory_that_a_killed_process_had_put_aside_comes_back(tmp_path, dead_process):
    aside = tmp_path / partial("model", f"{dead_process}-old")
    aside.mkdir()
    (aside / "old").write_text("")
    with pytest.raises(RuntimeError), atomic_path(str(tmp_path / "model")):
        raise RuntimeError("stopped")
    assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(tmp_path / "model") == ["old"]


def test_bad_json_names_its_line(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{\n"a": 1,\n}')
    with pytest.raises(InputError, match=r"bad\.json:3: not valid JSON"):
        read_json(str(path))


def test_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be created"), atomic_path(str(tmp_path / "file" / "out")):
        raise AssertionError("never reached")
