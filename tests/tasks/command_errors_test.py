"""What a user sees when the input is wrong: one line that names it, a status that is not 0, no traceback."""

import os
import sys

import processes
import pytest

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "b"]


def run(module, *flags):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    command = [sys.executable, "-m", module, *flags]
    done = processes.run(command, capture_output=True, text=True, timeout=600, env=environment)
    return done.returncode, done.stderr


@pytest.fixture
def files(tmp_path):
    (tmp_path / "text.txt").write_text("a good film\na bad film\n\na film\n")
    (tmp_path / "latin.txt").write_bytes(b"a good film\nna\xefve\n\na film\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "no_mask.txt").write_text("\n".join(piece for piece in VOCABULARY if piece != "[MASK]") + "\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na good film\tgood\na bad film\tbad\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\tgood\na film\tugly\n")
    return tmp_path


CREATE = ("tasks.pretraining.create_data", "--vocab_file={}/vocab.txt", "--output_file={}/out/data.tfrecord")
CLASSIFY = (
    "tasks.classify.run",
    "--train_file={}/train.tsv",
    "--text_column=sentence",
    "--label_column=label",
    "--do_train",
    "--do_eval",
    "--preset={}",
    "--output_dir={}/out",
)


@pytest.mark.parametrize(
    "command, names",
    [
        (("tasks.pretraining.run", "--learning_rat=1"), ["learning_rat"]),
        (("tasks.quickstart.run", "--rows_per_label=many"), ["rows_per_label", "many"]),
        (("tasks.pretraining.train_vocab", "--vocab_file={}/v", "--input_file={}/no.txt"), ["no.txt"]),
        (("tasks.pretraining.train_vocab", "--vocab_file={}/v", "--input_file={}/latin.txt"), ["latin.txt:2", "UTF-8"]),
        (("tasks.pretraining.train_vocab", "--vocab_file={}/v", "--input_file={}/empty.txt"), ["empty.txt"]),
        ((*CREATE, "--input_file={}/no.txt"), ["no.txt"]),
        ((*CREATE, "--input_file={}/latin.txt"), ["latin.txt:2", "UTF-8"]),
        ((*CREATE, "--input_file={}/empty.txt"), ["empty.txt"]),
        ((*CREATE, "--input_file={}/text.txt", "--vocab_file={}/no_mask.txt"), ["no_mask.txt", "[MASK]"]),
        ((*CLASSIFY, "--dev_file={}/dev.tsv"), ["dev.tsv:3", "ugly", "bad", "good"]),
        ((*CLASSIFY, "--dev_file={}/no.tsv"), ["no.tsv"]),
        (("tasks.quickstart.run", "--input_file={}/empty.txt", "--output_dir={}/out"), ["empty.txt"]),
        (("export.run", "--model_dir={}", "--export_dir={}/out"), ["task.json", "bert-classify"]),
        (("export.local_server", "--model_name=m", "--model_base_path={}/no"), ["no"]),
    ],
)
def test_one_line_names_what_is_wrong(files, command, names):
    module, *flags = (part.format(*[files] * part.count("{}")) for part in command)
    before = sorted(path.name for path in files.iterdir())
    status, error = run(module, *flags)
    assert status not in (0, None)
    assert "Traceback" not in error
    last = error.strip().splitlines()[-1]
    for name in names:
        assert name in last
    assert [line for line in error.splitlines() if "rror:" in line] == [last]
    written = {path.name for path in files.iterdir()} - set(before)
    assert not any(".partial" in name for name in written)
    assert not (files / "out" / "data.tfrecord").exists()
