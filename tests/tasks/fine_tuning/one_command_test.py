"""`--train_file` and `--output_dir` alone: what each fine-tuning command fills in, says, and refuses."""

import contextlib
import csv
import io
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import types

import pytest
import toy_classifier
from light_commands import Call, run_calls
from repository import ROOT

from export.run import ExportSettings
from export.server.server_settings import ServerSettings
from keras_bert.errors import InputError
from tasks import flags
from tasks.classify.task import Classify
from tasks.embed.task import Embed
from tasks.fine_tuning import command, inputs
from tasks.fine_tuning.inputs import complete
from tasks.fine_tuning.start import find_start
from tasks.fine_tuning.task import Evaluation, TaskData
from tasks.ner.task import Ner
from tasks.score_words.task import ScoreWords
from tasks.squad.task import Squad
from tasks.swag.task import Swag

TASKS = (Classify, Embed, Ner, ScoreWords, Squad, Swag)
STAGES = ("do_train", "do_eval", "do_predict")


def parse(task, *more: str):
    return flags.parse(task.Settings, ["--output_dir=out", *more])


# === Stages ===


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
@pytest.mark.parametrize(
    ("more", "stages", "dev_share"),
    [
        (["--train_file=x"], "do_train do_eval", 0.2),
        (["--train_file=x", "--do_train", "--do_eval"], "do_train do_eval", 0.2),
        (["--train_file=x", "--dev_share=0.3"], "do_train do_eval", 0.3),
        (["--train_file=x", "--do_train"], "do_train", 0.0),
        (["--train_file=x", "--DEV=y"], "do_train do_eval", 0.0),
        (["--train_file=x", "--do_train", "--do_eval", "--DEV=y"], "do_train do_eval", 0.0),
        (["--train_file=x", "--nodo_eval"], "do_train", 0.0),
        (["--train_file=x", "--nodo_train", "--DEV=y"], "do_eval", 0.0),
        (["--train_file=x", "--do_predict"], "do_predict", 0.0),
        (["--DEV=x", "--do_eval"], "do_eval", 0.0),
        ([], "", 0.0),
    ],
)
def test_a_training_file_alone_is_trained_and_evaluated_on(task, more, stages, dev_share):
    dev = "predict_file" if task is Squad else "dev_file"
    settings = parse(task, *(flag.replace("DEV", dev) for flag in more))
    assert [stage for stage in STAGES if getattr(settings, stage)] == stages.split()
    assert settings.dev_share == dev_share


def test_only_the_first_of_several_machines_writes_and_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "complete", lambda task: task)
    monkeypatch.setattr(command, "run_stages", lambda task: types.SimpleNamespace(is_chief=False))
    command.main(Classify(parse(Classify, f"--output_dir={tmp_path}", "--do_eval")))
    assert not os.listdir(tmp_path) and not capsys.readouterr().out


def test_rows_are_held_out_of_a_training_alone():
    with pytest.raises(InputError, match="--validation_share is about the training rows. Give --do_train, or leave"):
        parse(Classify, "--do_eval", "--validation_share=0.2")


def test_a_folder_has_a_dev_file():
    settings = parse(Classify, "--train_file=train", "--data_dir=x")
    assert settings.do_train and settings.do_eval and not settings.dev_share
    assert not parse(Classify, "--data_dir=x").do_train  # As in google-research/bert.


@pytest.mark.parametrize(
    ("more", "stages", "said"),
    [
        ([], "do_train", ""),
        (["--do_train"], "do_train", ""),
        (
            ["--dev_file=FILE"],
            "do_train do_eval",
            "Columns: --text_column=text --label_column=label (of text, label)\n",
        ),
        (["--do_train", "--do_predict", "--test_file=FILE"], "do_train do_predict", "Columns: --text_column=text ("),
    ],
)
def test_names_of_labels_need_no_training_file(tmp_path, capsys, more, stages, said):
    path = write_table(tmp_path / "x.csv", text=texts(), label=labels())
    more = [flag.replace("FILE", path) for flag in more]
    names = f"--labels={','.join(LABELS['string'])}"
    task = complete(Classify(parse(Classify, "--few_labels=names", names, "--preset=tiny", *more)))
    assert capsys.readouterr().out.startswith(said)
    assert [stage for stage in STAGES if getattr(task.settings, stage)] == stages.split()
    parts = inputs.read_inputs(task).parts
    assert [len(part.rows.texts) for part in parts] == [3, 30][: len(parts)]


# === The preset ===


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_a_training_takes_the_best_installed_preset(task, monkeypatch, capsys):
    monkeypatch.setattr(inputs, "best_installed", lambda: "toy")
    monkeypatch.setattr(task, "recognize_columns", TaskData.recognize_columns)
    assert complete(task(parse(task, "--train_file=x"))).settings.preset == "toy"
    assert capsys.readouterr().out == "Preset: --preset=toy (the best that is installed)\n"
    for start in (["--preset=base"], ["--init_checkpoint=x"], ["--bert_config_file=x"], ["--do_eval"]):
        settings = parse(task, "--train_file=x", *start)
        assert complete(task(settings)).settings == settings
    assert capsys.readouterr().out == ""


def test_without_an_installed_preset_one_line_says_what_to_install(tmp_path):
    """The machine of the tests may have one, so that the command is told that it has none."""
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"w{n} w{n}\t{n % 2}\n" for n in range(40)))
    code = (
        "import sys\nfrom tasks.fine_tuning import inputs\ninputs.best_installed = lambda: None\n"
        f"sys.argv = ['bert-classify', '--train_file={tmp_path}/train.tsv', '--output_dir={tmp_path}/out']\n"
        "from tasks.classify.run import console_main\n"
        "try:\n    console_main()\nfinally:\n    assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("bert-classify: error: --do_train needs --preset: a preset's directory or name, e.g.")
    assert done.stderr.endswith("one that is installed: pip install 'keras-bert-zoo[minilm]'.\n")
    assert "Held out for dev: 8 of 40 rows (--dev_share=0.2)\n" in done.stdout
    assert not (tmp_path / "out").exists()


# === Columns ===

WORDS = "my parcel has not arrived and the lamp is broken please refund it soon thank you".split()
GERMAN = "das Paket ist noch nicht da, größer wäre besser; die Lampe überzeugt mich gar nicht".split()
LABELS = {
    "string": ["shipping", "billing", "returns"],
    "integer": ["1", "2", "3"],
    "boolean": ["True", "False"],
    "whole": ["0.0", "1.0"],
}


def texts(words=WORDS, length: int = 9, between: str = " ", count: int = 30) -> list[str]:
    generator = random.Random(length)
    return [between.join(generator.choices(words, k=generator.randrange(length, length + 5))) for _ in range(count)]


def labels(kind: str = "string", count: int = 30) -> list[str]:
    return [LABELS[kind][row % len(LABELS[kind])] for row in range(count)]


def write_table(path, delimiter: str = ",", end: str = "\n", start: str = "", **columns) -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.write(start)
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
        writer.writerows([[name.replace("_", " ") for name in columns], *zip(*columns.values(), strict=True)])
    return str(path)


def numbers(count: int = 30) -> list[str]:
    return [str(row) for row in range(count)]


DATES = [f"2026-11-{1 + row % 9:02}" for row in range(30)]
CODES = [f"https://example.org/{row:060}" for row in range(30)]
SCORES = [f"{row / 10:.1f}" for row in range(30)]
CHINESE = texts(list("这个灯坏了请退款谢谢你好"), between="")
# Name of the file, how it is written, its columns; the flags that say what is meant, and the labels.
TABLES = [
    (
        "tickets.csv",
        {"id": numbers(), "message": texts(), "queue": labels(), "date": DATES},
        "--text_column=message --label_column=queue (of id, message, queue, date)",
        "string",
    ),
    (
        "umfrage.csv",  # As a German spreadsheet writes it.
        {"delimiter": ";", "end": "\r\n", "start": "\ufeff", "Kategorie": labels(), "Nachricht": texts(GERMAN)},
        "--text_column=Nachricht --label_column=Kategorie (of Kategorie, Nachricht)",
        "string",
    ),
    (
        "stars.csv",
        {"delimiter": "\t", "Title": texts(length=2), "Text": texts(), "Stars": labels("integer")},
        "--text_column=Text --label_column=Stars (of Title, Text, Stars)",
        "integer",
    ),
    (
        "评论.tsv",
        {"delimiter": "\t", "评论": CHINESE, "标签": labels("boolean")},
        "'--text_column=评论' '--label_column=标签' (of 评论, 标签)",
        "boolean",
    ),
    (
        "spam.csv",
        {"url": CODES, "subject": texts(length=2), "body": texts(length=12), "is_spam": labels("boolean")},
        "--text_column=body '--label_column=is spam' (of url, subject, body, is spam)",
        "boolean",
    ),
    (
        "pandas.csv",  # Integers with a gap somewhere.
        {"": numbers(), "text": texts(length=2), "comment": texts(), "label": labels("whole"), "score": SCORES},
        "--text_column=text --label_column=label (of , text, comment, label, score)",
        "whole",
    ),
    (
        "orders.csv",  # As pandas reads dates in Excel's cells.
        {"ordered": [f"{date} 00:00:00" for date in DATES], "note": texts(length=5), "reason": labels()},
        "--text_column=note --label_column=reason (of ordered, note, reason)",
        "string",
    ),
    (
        "ratings.csv",
        {"review": texts(), "Score": SCORES},
        "--text_column=review --label_column=Score --regression (of review, Score)",
        None,
    ),
]


def test_a_column_of_one_number_is_no_score(tmp_path):
    path = write_table(tmp_path / "x.csv", text=texts(), label=["1"] * 30)
    with pytest.raises(InputError, match="has only the label '1'. Expected at least two. To predict numbers, give"):
        inputs.read_inputs(complete(Classify(parse(Classify, f"--train_file={path}", "--preset=x"))))


@pytest.mark.parametrize(
    ("scores", "flags", "is_regression"),
    [
        (SCORES, (), True),
        (SCORES, ("--multi_label=false",), False),  # Whoever says that rows have classes gets classes.
        (SCORES, ("--labels=" + ",".join(sorted(set(SCORES))),), False),
        (["1", "2", "3"] * 10, (), False),
    ],
)
def test_a_named_column_of_fractional_numbers_is_a_regression(tmp_path, scores, flags, is_regression):
    path = write_table(tmp_path / "sts.csv", text=texts(), points=scores)
    task = complete(Classify(parse(Classify, f"--train_file={path}", "--preset=x", "--label_column=points", *flags)))
    assert task.settings.regression is is_regression


@pytest.mark.parametrize(("name", "content", "said", "kind"), TABLES, ids=[name for name, *_ in TABLES])
def test_columns_are_recognized(tmp_path, monkeypatch, capsys, name, content, said, kind):
    monkeypatch.setattr(inputs, "best_installed", lambda: None)
    path = write_table(tmp_path / name, **content)
    task = complete(Classify(parse(Classify, f"--train_file={path}")))
    assert capsys.readouterr().out == f"Columns: {said}\n"
    read = inputs.read_inputs(task)
    assert read.spec.labels == sorted(LABELS[kind]) if kind else read.spec.is_regression
    assert [len(part.rows.texts) for part in read.parts] == [24, 6]
    arguments = shlex.split(said.rpartition(" (of ")[0])
    assert parse(Classify, f"--train_file={path}", *arguments) == task.settings  # The line says all that was chosen.
    assert complete(task).settings == task.settings and "Columns" not in capsys.readouterr().out


def test_keys_of_json_lines_are_recognized(tmp_path, capsys):
    rows = zip(texts(), labels("integer"), strict=True)
    content = "".join(
        f'{{"id": "{n}", "q": "{text}", "intent": {label}, "ok": true, "none": null}}\n'
        for n, (text, label) in enumerate(rows)
    )
    (tmp_path / "x.jsonl").write_text(content)
    complete(Classify(parse(Classify, f"--train_file={tmp_path}/x.jsonl", "--preset=tiny")))
    assert capsys.readouterr().out == "Columns: --text_column=q --label_column=intent (of id, q, intent, ok)\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--text_column=note"], "--label_column=label"),
        (["--label_column=user"], "--text_column=text"),
        (["--text_pair_column=text", "--label_column=user"], "--text_column=note"),
        (["--label_column=user", "--do_train"], "--text_column=text"),
        (["--test_file=FILE", "--do_predict"], "--text_column=text"),
        (["--dev_file=FILE", "--do_eval"], "--text_column=text --label_column=label"),
        (["--regression"], "--text_column=text --label_column=label"),
        (["--text_column=text", "--label_column=label"], None),
        (["--task_name=sst2"], None),
    ],
)
def test_only_what_no_flag_names_is_recognized(tmp_path, capsys, more, said):
    path = write_table(tmp_path / "x.csv", text=texts(), note=texts(), user=labels("string"), label=labels("integer"))
    more = [flag.replace("FILE", path) for flag in more]
    complete(Classify(parse(Classify, f"--train_file={path}", "--preset=tiny", *more)))
    assert capsys.readouterr().out == (f"Columns: {said} (of text, note, user, label)\n" if said else "")


@pytest.mark.parametrize(
    ("spec", "values", "more", "said"),
    [
        ({}, ["1", "2", "3", "4"], [], "--text_column=text --label_column=label"),
        ({"is_regression": True, "labels": []}, ["1", "2"], [], "--text_column=text --label_column=label --regression"),
        (
            {"is_regression": True, "labels": []},
            ["1", "2"],
            ["--text_column=text", "--label_column=label"],
            "--regression",
        ),
        (
            {"multi_label": True},
            ["1;2", "3"],
            [],
            "--text_column=text --label_column=label --multi_label '--label_separator=;'",
        ),
        ({"multi_label": True}, ["1", "3"], [], "--text_column=text --label_column=label --multi_label"),
    ],
)
def test_a_trained_model_says_what_its_labels_are(tmp_path, capsys, spec, values, more, said):
    """Four rows of four numbers look like scores, and scores of 1 or 2 like labels."""
    (tmp_path / "out" / "model").mkdir(parents=True)
    task = {"task": "classification", "sequence_length": 32, "labels": ["1", "2", "3", "4"], "num_texts": 1, **spec}
    (tmp_path / "out" / "model" / "task.json").write_text(json.dumps(task))
    count = 4 if len(values) > 2 else 8
    path = write_table(tmp_path / "x.csv", text=texts(count=count), label=values * (count // len(values)))
    flags_given = [f"--output_dir={tmp_path}/out", f"--dev_file={path}", *more]
    evaluated = complete(Classify(parse(Classify, *flags_given, "--do_eval")))
    assert capsys.readouterr().out == f"Columns: {said} (of text, label)\n"
    (part,) = inputs.read_inputs(evaluated).parts
    assert len(part.rows.labels) == count
    predicted = complete(Classify(parse(Classify, *flags_given, f"--test_file={path}", "--do_predict")))
    assert len(inputs.read_inputs(predicted).parts[0].rows.texts) == count


REFUSED = [
    (
        {"question1": texts(), "question2": texts(length=7), "same": labels("boolean")},
        "expected a column of texts, found 2 that may be meant: 'question1' (55 characters), 'question2' (45 "
        "characters). Name it: --text_column. For pairs of texts name both, the second by --text_pair_column.",
    ),
    (
        {"sentence1": texts(length=40), "sentence2": texts(length=7), "same": labels("boolean")},
        "expected a column of texts, found 2 that may be meant: 'sentence1' (",
    ),
    (
        {"body": texts(), "queue": labels(), "priority": labels("integer")},
        "expected a column of labels, found 2 that may be meant: 'queue' (3 different), 'priority' (3 different). "
        "Name it: --label_column; without a header all columns: --column_names.",
    ),
    (
        {"body": texts(), "intent": labels(), "topic": labels("integer"), "user": labels("boolean")},
        "expected a column of labels, found 2 that may be meant: 'intent' (3 different), 'topic' (3 different). "
        "Name it: --label_column; without a header all columns: --column_names.",
    ),
    (
        {"name": texts(length=2), "note": texts()},
        "expected a column of labels, found none among: 'name' (30 different), 'note' (30 different). Name it:",
    ),
    (
        {"note|reason": texts()},
        "expected a column of labels, found none among: 'note|reason' (30 different). Name it: --label_column; without "
        "a header all columns: --column_names. A table's columns are separated by commas, semicolons or tabs.",
    ),
    ({"a": numbers(), "b": labels("integer")}, "expected a column of texts, found none among: 'a' (2 characters)."),
    (
        {"my lamp is broken": texts(), "billing": labels()},
        "1: expected the names of the columns, found 'billing', which is also a value of its column. If the file "
        "has no header, name its columns: --column_names=text,label. If it has one, name this column: "
        "--label_column=billing.",
    ),
]


@pytest.mark.parametrize(("columns", "message"), REFUSED)
def test_close_candidates_are_refused(tmp_path, columns, message):
    path = write_table(tmp_path / "x.csv", **columns)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        complete(Classify(parse(Classify, f"--train_file={path}")))
    assert str(error.value).startswith(path) and "\n" not in str(error.value)


def test_rows_to_predict_without_a_header_are_refused(tmp_path, run):
    """The first row was taken for the header, and got no answer."""
    rows = [[text, str(number % 2)] for number, text in enumerate(texts())]
    (tmp_path / "new.csv").write_text("".join(f"{text},{label}\n" for text, label in rows))
    flags = [f"--test_file={tmp_path}/new.csv", "--do_predict", f"--output_dir={run[0]}"]
    with pytest.raises(InputError, match="new.csv:1: expected the names of the columns, found '0', .* --text_column="):
        complete(Classify(parse(Classify, *flags)))
    task = complete(Classify(parse(Classify, *flags, "--column_names=text,x")))
    assert len(inputs.read_inputs(task).parts[0].rows.texts) == len(rows)


def test_latin_1_is_refused_with_the_cure(tmp_path):
    path = write_table(tmp_path / "x.csv", text=texts(GERMAN), label=labels())
    content = pathlib.Path(path).read_text()
    pathlib.Path(path).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"x.csv:\d+: not valid UTF-8 at byte .*, e.g. iconv -f LATIN1 -t UTF-8\.$"):
        complete(Classify(parse(Classify, f"--train_file={path}")))


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_refused_with_its_own_cure(tmp_path, charset):
    """As spreadsheets write "Unicode text"."""
    path = write_table(tmp_path / "x.csv", start="\ufeff", text=texts(GERMAN), label=labels())
    content = pathlib.Path(path).read_text()
    pathlib.Path(path).write_bytes(content.encode(charset))
    with pytest.raises(InputError, match=r"x.csv:1: not valid UTF-8 at byte 0 .*, e.g. iconv -f UTF-16 -t UTF-8\.$"):
        complete(Classify(parse(Classify, f"--train_file={path}")))


def test_lines_that_end_in_a_carriage_return_are_refused_with_the_cure(tmp_path):
    path = write_table(tmp_path / "x.csv", end="\r", text=texts(), label=labels())
    with pytest.raises(InputError, match=r"x.csv:1: not valid CSV .* a carriage return alone\. .* tr '\\r' '\\n'\.$"):
        complete(Classify(parse(Classify, f"--train_file={path}")))


def test_blanks_around_a_label_are_no_other_label(tmp_path):
    padded = [label + " " * (row % 3) for row, label in enumerate(labels(count=32))]
    path = write_table(tmp_path / "x.csv", text=texts(count=32), label=[f" {label}" for label in padded])
    task = complete(Classify(parse(Classify, f"--train_file={path}", "--preset=tiny")))
    assert inputs.read_inputs(task).spec.labels == sorted(LABELS["string"])


def test_an_output_directory_that_cannot_be_written_is_refused_before_the_training(tmp_path):
    path = write_table(tmp_path / "x.csv", text=texts(), label=labels())
    preset = toy_classifier.write_preset(tmp_path / "preset")
    (call,) = run_calls(
        [
            Call(
                "tasks.classify.run",
                [["bert-classify", f"--train_file={path}", f"--preset={preset}", f"--output_dir={path}"]],
            )
        ]
    )
    ((status, printed),) = call["lines"]
    assert status == 1 and printed.splitlines()[-1].endswith(
        f"{path}: cannot be created (File exists). Choose another output path."
    )
    assert call["imported"] == []


# === A whole run ===


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """Output directory and printed lines of `bert-classify --train_file=... --output_dir=...` on a toy preset."""
    directory = tmp_path_factory.mktemp("run")
    preset = toy_classifier.write_preset(directory / "preset")
    rows = toy_classifier.toy_rows(120, 0)
    rows[40] = ("cat,\x07 " * 20, "tool")  # A wrong label, of a long text with what no terminal should get.
    columns = {"id": numbers(120), "words": [text for text, _ in rows], "kind": [kind for _, kind in rows]}
    path = write_table(directory / "toys.csv", **columns)
    options = [f"--{name}={value}" for name, value in toy_classifier.TRAINING.items()]
    arguments = [f"--train_file={path}", f"--output_dir={directory}/my run", *options]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(inputs, "best_installed", lambda: preset)
        command.main(Classify(flags.parse(Classify.Settings, arguments)))
    return directory / "my run", path, preset, printed.getvalue().splitlines()


def test_the_command_says_what_it_chose(run):
    _, _, preset, lines = run
    assert lines[:3] == [
        "Columns: --text_column=words --label_column=kind (of id, words, kind)",
        f"Preset: --preset={preset} (the best that is installed)",
        "Held out for dev: 24 of 120 rows (--dev_share=0.2)",
    ]


def test_an_earlier_run_is_a_start(run):
    directory, *_ = run
    with find_start(parse(Classify, f"--init_checkpoint={directory}")) as origin:
        assert origin.preset == str(directory / "model") and origin.tokenizer().vocabulary_size() > 5


def test_the_choices_are_kept(run):
    directory, path, preset, _ = run
    kept = json.loads((directory / "flags.json").read_text())
    expected = {"text_column": "words", "label_column": "kind", "preset": preset, "do_eval": True, "dev_share": 0.2}
    assert {name: kept[name] for name in expected} == expected
    command_line = json.loads((directory / "metrics.json").read_text())["train_command"]
    assert {"--text_column=words", f"--preset={preset}", "--dev_share=0.2"} <= set(shlex.split(command_line))


def test_score_and_baseline_stand_side_by_side(run):
    directory, _, _, lines = run
    figures = json.loads((directory / "metrics.json").read_text())
    low, high = figures["intervals"]["accuracy"]
    lines = lines[next(number for number, line in enumerate(lines) if line.startswith("accuracy")) :]
    assert lines[:2] == [
        f"accuracy: {figures['accuracy']:.4f} (95% interval {low:.4f} to {high:.4f}), "
        f"majority_accuracy: {figures['majority_accuracy']:.4f}",
        f"loss: {figures['loss']:.4f}",
    ]


def test_mistakes_and_answers_are_rows_of_the_table(run):
    _, path, _, lines = run
    start = lines.index("Some answers:")
    mistakes = lines[lines.index("Worst mistakes:") + 1 : start] if "Worst mistakes:" in lines else []
    answers = lines[start + 1 : lines.index("Export and serve the model:")]
    assert len(mistakes) <= 3 and len(answers) == 5
    with open(path, newline="", encoding="utf-8") as file:
        table = list(csv.reader(file))
    for line in [*mistakes, *answers]:
        text, expected, predicted, row = re.fullmatch(
            r"  words: (.*) \| expected: (\w+) \| predicted: (\w+) \d+% \| row: .*:(\d+)", line
        ).groups()
        words, kind = table[int(row) - 1][1:]
        assert " ".join(words.replace("\x07", "\\x07").split()).startswith(text.removesuffix("…")) and kind == expected
        assert predicted in toy_classifier.KINDS and (line in answers or predicted != expected)


def test_a_text_is_one_line_that_a_terminal_can_show():
    evaluation = Evaluation({}, examples=[[("text", "a\n\x07b" + "c" * 100), ("predicted", "中")]])
    assert command.answer_lines(evaluation) == [
        "Some answers:",
        "  text: a \\x07b" + "c" * 93 + "… | predicted: 中",
    ]


def test_the_last_lines_export_and_serve_the_model(run):
    directory, _, _, lines = run
    assert lines[-1] == f"Results are in {directory}: report.html shows them."
    assert lines[-4] == "Export and serve the model:"
    export, serve = map(shlex.split, lines[-3:-1])
    assert (export[0], serve[0]) == ("bert-export", "bert-serve")
    exported = flags.parse(ExportSettings, export[1:])
    assert (exported.model_dir, exported.export_dir) == (f"{directory}/model", f"{directory}/served")
    served = flags.parse(ServerSettings, serve[1:])
    assert (served.model_name, served.model_base_path) == ("my run", exported.export_dir)


def test_the_same_command_again_evaluates_the_same_rows(run, capsys):
    """The rows are held out without regard to the seed, so that searches and repetitions compare equal ones."""
    directory, path, preset, lines = run
    options = [f"--{name}={value}" for name, value in toy_classifier.TRAINING.items()]
    arguments = [f"--train_file={path}", f"--output_dir={directory}", f"--preset={preset}", *options]
    command.main(Classify(flags.parse(Classify.Settings, arguments)))
    again = capsys.readouterr().out.splitlines()
    assert again == [lines[0], *lines[2:]]


def test_a_prediction_keeps_the_flags_and_the_report_of_the_training(run, capsys):
    directory, path, *_ = run
    kept = (directory / "flags.json").read_bytes()
    arguments = [f"--test_file={path}", "--do_predict", f"--output_dir={directory}"]
    command.main(Classify(flags.parse(Classify.Settings, arguments)))
    assert (directory / "flags.json").read_bytes() == kept
    said = capsys.readouterr().out.splitlines()[-2:]
    assert said == [f"wrote {directory}/predictions.tsv", f"Results are in {directory}."]


def test_what_the_terminal_cannot_show_is_escaped(tmp_path):
    path = write_table(tmp_path / "x.csv", **{"评论": CHINESE, "label": labels()})
    code = (
        "import sys\nfrom tasks.fine_tuning import inputs\ninputs.best_installed = lambda: None\n"
        f"sys.argv = ['bert-classify', '--train_file={path}', '--output_dir={tmp_path}/out']\n"
        "from tasks.classify.run import console_main\nconsole_main()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, timeout=600)
    assert done.returncode == 1 and b"needs --preset" in done.stderr
    assert done.stdout.startswith(b"Columns: '--text_column=\\u8bc4\\u8bba' --label_column=label (of")
