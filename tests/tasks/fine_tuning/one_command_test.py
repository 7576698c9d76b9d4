"""`--train_file` and `--output_dir` alone: what each fine-tuning command fills in, says, and refuses."""

import subprocess
import sys

import pytest
from repository import ROOT

from tasks import flags
from tasks.classify.task import Classify
from tasks.embed.task import Embed
from tasks.fine_tuning import inputs
from tasks.fine_tuning.inputs import complete
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


@pytest.mark.parametrize("source", ["--data_dir=x", "--tfds_name=glue/sst2"])
def test_a_folder_or_a_data_set_has_a_dev_file(source):
    settings = parse(Classify, "--train_file=train", source)
    assert settings.do_train and settings.do_eval and not settings.dev_share
    assert not parse(Classify, source).do_train  # As in google-research/bert.


# === The preset ===


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_a_training_takes_the_best_installed_preset(task, monkeypatch, capsys):
    monkeypatch.setattr(inputs, "best_installed", lambda: "toy")
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
