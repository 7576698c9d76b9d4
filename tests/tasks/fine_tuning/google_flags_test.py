"""google-research/bert's own command lines, with only the program's name changed."""

import dataclasses
import json
import os
import pathlib
import re
import shlex

import google_checkpoints
import numpy as np
import pytest
import toy_squad
from toy_checkpoints import checkpoint_of

from keras_bert import BertBackbone
from keras_bert.errors import InputError
from tasks import flags
from tasks.classify.task import Classify
from tasks.embed.task import Embed
from tasks.fine_tuning import model_files, start
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.examples import count_steps
from tasks.fine_tuning.settings import StartSettings
from tasks.fine_tuning.start import find_start
from tasks.ner.task import Ner
from tasks.score_words.task import ScoreWords
from tasks.squad.task import Squad
from tasks.swag.task import Swag

TASKS = (Classify, Embed, Ner, ScoreWords, Squad, Swag)

# README.md of google-research/bert, "Sentence (and sentence-pair) classification tasks"; only numbers are smaller.
TRAIN = """
  --task_name=MRPC
  --do_train=true
  --do_eval=true
  --data_dir=$GLUE_DIR/MRPC
  --vocab_file=$BERT_BASE_DIR/vocab.txt
  --bert_config_file=$BERT_BASE_DIR/bert_config.json
  --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt
  --max_seq_length=20
  --train_batch_size=4
  --learning_rate=2e-5
  --num_train_epochs=1.0
  --output_dir=$OUTPUT
"""
PREDICT = """
  --task_name=MRPC
  --do_predict=true
  --data_dir=$GLUE_DIR/MRPC
  --vocab_file=$BERT_BASE_DIR/vocab.txt
  --bert_config_file=$BERT_BASE_DIR/bert_config.json
  --init_checkpoint=$TRAINED_CLASSIFIER
  --max_seq_length=20
  --output_dir=$OUTPUT
"""


def words_of(line: str, **places) -> list[str]:
    for name, place in places.items():
        line = line.replace(f"${name}", str(place))
    return shlex.split(line)


def run(line: str, task=Classify, **places) -> dict:
    return run_task(task(flags.parse(task.Settings, words_of(line, **places))))


@pytest.fixture(scope="module", name="places")
def _places(tmp_path_factory):
    """A checkpoint as google-research/bert has it, and MRPC's files."""
    bert, glue = tmp_path_factory.mktemp("uncased"), tmp_path_factory.mktemp("glue")
    model = google_checkpoints.random_model()
    model.backbone.save_to_preset(str(bert / "ours"))
    from keras_bert.formats import google

    google.write(str(bert / "theirs"), checkpoint_of(model), google_checkpoints.TOKENIZER)
    (glue / "MRPC").mkdir()
    for split in ("train", "dev", "test"):
        header = ["index" if split == "test" else "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
        rows = [[str(number % 2), "1", "2", "a b c", "d e"[: number % 3 + 1]] for number in range(8)]
        (glue / "MRPC" / f"{split}.tsv").write_text("\n".join("\t".join(row) for row in [header, *rows]) + "\n")
    return {"BERT_BASE_DIR": bert / "theirs", "GLUE_DIR": glue}


def test_run_classifier_s_lines_train_evaluate_and_predict(places, tmp_path):
    trained = run(TRAIN, **places, OUTPUT=tmp_path / "mrpc_output")
    assert trained["train_steps"] == 2 and {"accuracy", "f1"} <= trained["intervals"].keys()
    predicted = run(PREDICT, **places, TRAINED_CLASSIFIER=tmp_path / "mrpc_output", OUTPUT=tmp_path / "answers")
    assert predicted["test_rows"] == 8
    assert len((tmp_path / "answers" / "MRPC.tsv").read_text().splitlines()) == 9
    task = json.loads((tmp_path / "mrpc_output" / "model" / "task.json").read_text())
    assert task["labels"] == ["0", "1"] and task["num_texts"] == 2


def settings(places, *more: str) -> Classify.Settings:
    checkpoint = f"{places['BERT_BASE_DIR']}/bert_model.ckpt"
    return flags.parse(Classify.Settings, ["--output_dir=x", f"--init_checkpoint={checkpoint}", *more])


def test_three_files_from_three_places_are_one_encoder(places, tmp_path):
    (tmp_path / "uncased").mkdir()
    config, vocabulary = tmp_path / "uncased" / "sizes.json", tmp_path / "words.txt"
    config.write_bytes((places["BERT_BASE_DIR"] / "bert_config.json").read_bytes())
    vocabulary.write_text("\n".join([*google_checkpoints.PIECES[:-2], "y", "x"]) + "\n")
    with find_start(settings(places, f"--bert_config_file={config}", f"--vocab_file={vocabulary}")) as start:
        assert start.load_weights and start.tokenizer().get_vocabulary()[-2:] == ["y", "x"]
        assembled = BertBackbone.from_preset(start.preset).get_weights()
    assert not os.path.exists(start.preset)
    expected = BertBackbone.from_preset(str(places["BERT_BASE_DIR"])).get_weights()
    assert all((ours == theirs).all() for ours, theirs in zip(assembled, expected, strict=True))


def test_errors_name_the_user_s_files_not_their_links(places, tmp_path):
    config, vocabulary = tmp_path / "sizes.json", tmp_path / "words.txt"
    config.write_bytes((places["BERT_BASE_DIR"] / "bert_config.json").read_bytes())
    vocabulary.write_text("[PAD]\n")
    chosen = settings(places, f"--bert_config_file={config}", f"--vocab_file={vocabulary}")
    with pytest.raises(InputError) as refused, find_start(chosen) as start:
        links = [f"{start.preset}/{name}" for name in ("bert_model.ckpt", "bert_config.json", "vocab.txt")]
        raise InputError(" ".join([*links, start.preset]))
    assert str(refused.value).split() == [chosen.init_checkpoint, str(config), str(vocabulary), chosen.init_checkpoint]


def test_a_configuration_alone_starts_from_random_weights(places):
    values = [f"--bert_config_file={places['BERT_BASE_DIR']}/bert_config.json"]
    values += [f"--vocab_file={places['BERT_BASE_DIR']}/vocab.txt", "--do_lower_case=false", "--output_dir=x"]
    with find_start(flags.parse(Classify.Settings, values)) as start:
        assert not start.load_weights and start.tokenizer_options["lowercase"] is False


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--preset=base"], "adamw"),
        (["--init_checkpoint=runs/earlier"], "adamw"),
        (["--init_checkpoint=bert_model.ckpt", "--bert_config_file=bert_config.json"], "bert-2018"),
        (["--init_checkpoint=bert_model.ckpt", "--bert_config_file=c.json", "--optimizer=adamw"], "adamw"),
        (["--preset=base", "--optimizer=bert-2018", "--learning_rate=1e-5,2e-5"], "bert-2018"),
    ],
)
def test_only_google_s_own_files_train_without_bias_correction(task, more, expected):
    chosen = flags.parse(task.Settings, ["--output_dir=x", *more])
    assert chosen.optimizer == chosen.identity()["optimizer"] == dataclasses.asdict(chosen)["optimizer"] == expected
    assert dataclasses.replace(chosen, random_seed=1).optimizer == expected


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
@pytest.mark.parametrize(
    ("more", "steps"),
    [
        (["--preset=base"], [200, 200, 300]),
        (["--init_checkpoint=bert_model.ckpt", "--bert_config_file=bert_config.json"], [0, 199, 300]),
        (["--preset=base", "--num_train_epochs=3"], [0, 199, 300]),
        (["--preset=base", "--num_train_epochs=0.5"], [0, 33, 50]),
    ],
)
def test_a_small_table_gets_two_hundred_steps(task, more, steps):
    chosen = flags.parse(task.Settings, ["--output_dir=x", "--train_batch_size=32", *more])
    assert [count_steps(rows, 32, chosen.num_train_epochs) for rows in (8, 2132, 3200)] == steps


def test_use_tpu_names_the_strategy(places):
    chosen = settings(places, "--use_tpu=True", "--tpu_name=grpc://10.0.0.2")
    assert (chosen.distribution_strategy, chosen.tpu) == ("tpu", "grpc://10.0.0.2")
    chosen = settings(places, "--use_tpu=False", "--tpu_name=grpc://10.0.0.2")
    assert (chosen.distribution_strategy, chosen.tpu) == ("one_device", None)
    with pytest.raises(InputError, match="--use_tpu needs the TPU's name or address: give --tpu_name"):
        settings(places, "--use_tpu")


def test_a_config_file_in_the_root_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "expand_file", lambda flag, path: path)
    chosen = StartSettings(bert_config_file="/bert_config.json")
    assert os.listdir(start._assemble(chosen, None, str(tmp_path))) == ["bert_config.json"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--preset=base"], "--preset and --init_checkpoint (or --bert_config_file) both say where to start"),
        (["--vocab_file=none.txt"], "none.txt: no such file"),
        (["--bert_config_file=none.json"], "none.json: no such file"),
    ],
)
def test_what_does_not_fit_is_refused(places, more, message):
    with pytest.raises(InputError, match=re.escape(message)), find_start(settings(places, *more)):
        pass


def test_a_checkpoint_that_is_not_there_is_named(places):
    config = f"--bert_config_file={places['BERT_BASE_DIR']}/bert_config.json"
    wrong = flags.parse(Classify.Settings, ["--output_dir=x", "--init_checkpoint=/nowhere/bert_model.ckpt", config])
    message = "--init_checkpoint=/nowhere/bert_model.ckpt: no TensorFlow checkpoint"
    with pytest.raises(InputError, match=message), find_start(wrong):
        pass


# === run_squad.py ===

# README.md of google-research/bert, "SQuAD 1.1"; only the places differ.
SQUAD = """
  --vocab_file=$BERT_BASE_DIR/vocab.txt
  --bert_config_file=$BERT_BASE_DIR/bert_config.json
  --init_checkpoint=$BERT_BASE_DIR/bert_model.ckpt
  --do_train=True
  --train_file=$SQUAD_DIR/train-v1.1.json
  --do_predict=True
  --predict_file=$SQUAD_DIR/dev-v1.1.json
  --train_batch_size=12
  --learning_rate=3e-5
  --num_train_epochs=2.0
  --max_seq_length=384
  --doc_stride=128
  --output_dir=$OUTPUT/
"""
TPU = "--use_tpu=True --tpu_name=pod --version_2_with_negative=True"
# "SQuAD 2.0": "assume the script outputs 'best_f1_thresh' THRESH".
THRESHOLD = "--do_train=False --version_2_with_negative=True --null_score_diff_threshold=$THRESH"


@pytest.fixture(scope="module", name="squad")
def _squad(tmp_path_factory):
    """The places, and what the line of SQuAD 1.1 returned."""
    folder = tmp_path_factory.mktemp("squad")
    google_checkpoints.publish(folder / "uncased", pieces=toy_squad.VOCABULARY, positions=384)
    for seed, part in enumerate(("train", "dev")):
        toy_squad.write(folder / f"{part}-v1.1.json", toy_squad.questions(False, seed))
    places = {"BERT_BASE_DIR": folder / "uncased", "SQUAD_DIR": folder, "OUTPUT": folder / "squad_base"}
    return places, run(SQUAD, Squad, **places)


def read(directory: pathlib.Path, name: str):
    return json.loads((directory / name).read_text())


@pytest.mark.slow
def test_run_squad_s_line_trains_the_checkpoint_and_predicts(squad):
    places, results = squad
    output_dir = places["OUTPUT"]
    assert (results["train_questions"], results["test_questions"]) == (32, 32)
    assert results["train_steps"] == int(results["train_windows"] * 2 / 12)
    predictions = read(output_dir, "predictions.json")
    assert len(predictions) == 32 and predictions.keys() == read(output_dir, "nbest_predictions.json").keys()
    assert "" not in predictions.values() and not (output_dir / "null_odds.json").exists()
    model, tokenizer, task = model_files.load_model(str(output_dir / "model"), Squad.name, Squad.command)
    assert (task["sequence_length"], task["doc_stride"], task["version_2_with_negative"]) == (384, 128, False)
    assert tokenizer.get_vocabulary() == toy_squad.VOCABULARY and tokenizer.lowercase
    trained = next(layer for layer in model.layers if isinstance(layer, BertBackbone))
    start = BertBackbone.from_preset(str(places["BERT_BASE_DIR"]))
    moved = [np.abs(new - old).max() for new, old in zip(trained.get_weights(), start.get_weights(), strict=True)]
    assert 0 < max(moved) < 1e-3  # At most about 3e-5 a step.


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "is_answered"), [(-1000.0, False), (1000.0, True)])
def test_run_squad_s_line_with_a_threshold_predicts_anew(squad, threshold, is_answered):
    places, _ = squad
    run(SQUAD + THRESHOLD, Squad, **places, THRESH=threshold)
    assert len(read(places["OUTPUT"], "null_odds.json")) == 32
    assert {bool(text) for text in read(places["OUTPUT"], "predictions.json").values()} == {is_answered}


def test_run_squad_s_line_for_a_tpu_and_squad_2_is_understood(places):
    chosen = flags.parse(Squad.Settings, words_of(SQUAD + TPU, **places, SQUAD_DIR="squad", OUTPUT="squad_base"))
    assert (chosen.distribution_strategy, chosen.tpu, chosen.version_2_with_negative) == ("tpu", "pod", True)
    assert chosen.do_train and chosen.do_predict and (chosen.train_batch_size, chosen.learning_rate) == (12, 3e-5)
