"""Files on a remote file system: what `keras_bert.files` does for URLs, on TensorFlow's ram://."""

import itertools
import os

import pytest
import tensorflow as tf

from keras_bert import files
from keras_bert.errors import InputError

_numbers = itertools.count()


@pytest.fixture
def ram():
    return f"ram://remote_files_{next(_numbers)}"


def write(path: str, text: str = "text\n") -> str:
    files.write_lines(path, text.splitlines())
    return path


def read(path: str) -> bytes:
    with files.open_file(path) as file:
        return file.read()


def test_a_file_is_written_read_replaced_and_removed(ram):
    path = f"{ram}/deep/in/a.txt"
    assert not files.exists(path) and not files.is_file(path) and not files.is_directory(ram)
    write(path, "one\ntwo\n")
    assert files.is_file(path) and files.is_directory(f"{ram}/deep") and not files.is_file(f"{ram}/deep")
    assert list(files.read_lines(path)) == [(1, "one"), (2, "two")] and files.file_size(path) == 8
    write(path, "three\n")
    assert read(path) == b"three\n" and files.list_directory(f"{ram}/deep/in") == ["a.txt"]
    files.remove_path(f"{ram}/deep")
    files.remove_path(path)
    assert not files.exists(path)


def test_a_file_reads_as_a_local_one(ram, tmp_path):
    text = "".join(f"{number}\n" for number in range(300_000))  # More than the buffer.
    results = []
    for path in (f"{ram}/numbers", str(tmp_path / "numbers")):
        write(path, text)
        with files.open_file(path) as file:
            outcomes = [file.read(5), file.seek(1_500_000), file.readline(), file.tell(), file.seek(-3, os.SEEK_END)]
            results.append(
                (*outcomes, file.read(), file.read(), [file.seek(0), *file] == [0, *text.encode().splitlines(True)])
            )
    assert results[0] == results[1] and results[0][-1]


def test_patterns_name_remote_files(ram):
    paths = [write(f"{ram}/{name}") for name in ("b-1.txt", "b-0.txt", "a[1].txt", ".b-0.txt")]
    assert files.expand_files(f"{ram}/b*.txt,{paths[2]}") == [paths[1], paths[0], paths[2]]
    assert files.expand_files(f"{ram}/*b-0.txt") == [paths[1]]  # As on a disk.
    assert files.expand_files(f"{ram}/.b*") == paths[3:]
    with pytest.raises(InputError, match="expected a file, found a directory"):
        files.expand_files(ram)
    with pytest.raises(InputError, match=f"{ram}/c: no such file, and no file matches"):
        files.expand_files(f"{ram}/c")


def fill(temporary: str, *names: str) -> None:
    for name in names:
        write(os.path.join(temporary, name), name)


def test_a_directory_is_replaced_whole(ram):
    path = f"{ram}/model"
    with files.atomic_path(path) as temporary:
        fill(temporary, "old", "sub/old", "kept")
    with files.atomic_path(path) as temporary:
        fill(temporary, "kept", "sub/new")
    assert files.list_directory(path) == ["kept", "sub"] and files.list_directory(f"{path}/sub") == ["new"]
    assert read(f"{path}/sub/new") == b"sub/new\n"


def test_a_failed_write_uploads_nothing(ram):
    path = write(f"{ram}/a.txt", "old")
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        fill(os.path.dirname(temporary), "a.txt")
        raise RuntimeError
    assert read(path) == b"old\n" and files.list_directory(ram) == ["a.txt"]


@files.keep_copies()
def test_a_half_written_directory_is_refused(ram, monkeypatch):
    path, copied = f"{ram}/model", []
    copy = tf.io.gfile.copy

    def fail_late(source, target, **options):
        if "two" in target:
            raise tf.errors.UnavailableError(None, None, "the network is gone")
        copied.append(target)
        copy(source, target, **options)

    monkeypatch.setattr(tf.io.gfile, "copy", fail_late)
    with pytest.raises(OSError, match="the network is gone"), files.atomic_path(path) as temporary:
        fill(temporary, "one", "two", "sub/three")
    assert files.list_directory(path) == ["INCOMPLETE", "one", "sub"]
    with pytest.raises(
        InputError, match=f"{path}: half written, since it holds INCOMPLETE. Wait for its writer, or run"
    ):
        files.local_copy(path)
    monkeypatch.undo()
    with files.atomic_path(path) as temporary:
        fill(temporary, "two")
    assert os.listdir(files.local_copy(path)) == ["two"]


def test_the_graph_of_a_saved_model_comes_last(ram, monkeypatch):
    written = []
    upload = files._upload_file
    monkeypatch.setattr(files, "_upload_file", lambda *paths: (written.append(paths[1]), upload(*paths)))
    with files.atomic_path(f"{ram}/1") as temporary:
        fill(temporary, "fingerprint.pb", "saved_model.pb", "variables/variables.index", "assets/vocab.txt")
    assert written[-1] == f"{ram}/1/saved_model.pb"


@files.keep_copies()
def test_a_local_copy_follows_the_original(ram, tmp_path):
    path = write(f"{ram}/model/config.json", "1")
    copy = files.local_copy(f"{ram}/model/")
    assert os.listdir(copy) == ["config.json"] and files.local_copy(f"{ram}/model") == copy
    write(path, "22")
    assert read(os.path.join(files.local_copy(f"{ram}/model"), "config.json")) == b"22\n"
    write(path, "33")
    assert read(files.local_copy(path)) == b"33\n"
    assert files.local_copy(str(tmp_path)) == str(tmp_path)


def test_copies_end_with_the_outermost_context(ram):
    path = write(f"{ram}/a.txt")
    with files.keep_copies():
        with files.keep_copies():
            copy = files.local_copy(path)
        assert read(copy) == b"text\n" and files.local_copy(path) == copy
    assert not os.path.exists(copy)


@files.keep_copies()
def test_a_prefix_is_copied_with_the_small_files_beside_it(ram):
    for name in ("bert.ckpt.index", "bert.ckpt.data-00000-of-00001", "vocab.txt", "other.ckpt.index", "train.tfrecord"):
        write(f"{ram}/{name}")
    prefix = files.local_copy(f"{ram}/bert.ckpt")
    expected = ["bert.ckpt.data-00000-of-00001", "bert.ckpt.index", "vocab.txt"]
    assert sorted(os.listdir(os.path.dirname(prefix))) == expected


@pytest.mark.parametrize("call", [files.open_file, files.file_size, files.local_copy, files.list_directory])
@files.keep_copies()
def test_what_is_missing_is_an_error_as_for_a_local_path(ram, call):
    with pytest.raises(FileNotFoundError) as caught:
        call(f"{ram}/missing")
    assert (caught.value.strerror, caught.value.filename) == ("no such file or bucket", f"{ram}/missing")


def test_an_unknown_scheme_is_named():
    with pytest.raises(OSError, match="TensorFlow knows no file system of this name here: 'foo://bucket/a'"):
        files.exists("foo://bucket/a")
    assert not files.exists("hf://google/bert")  # A preset's handle, which is no path.


def test_a_path_of_pathlib_is_a_local_one(tmp_path):
    files.write_json(tmp_path / "a.json", [1])
    assert files.read_json(tmp_path / "a.json") == [1] and files.is_file(tmp_path / "a.json")
