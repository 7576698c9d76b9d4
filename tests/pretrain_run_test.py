"""bert-pretrain from records to a preset: results, resuming, evaluation alone, and what it refuses."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from toy_run import NUM_STEPS, settings, write_data

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.tokenizer import BertTokenizer
from tasks.pretraining import stages
from tasks.pretraining.run import pretrain

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_data(directory)
    return directory


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("run") / "out"
    return output_dir, pretrain(**settings(data, output_dir))


def test_it_learns_and_says_so(trained):
    output_dir, metrics = trained
    assert metrics["masked_lm_accuracy"] > 0.7 > 0.5 > metrics["unigram_accuracy"] > 0
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["masked_lm_loss"]))
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["next_sentence_loss"])
    assert 0 < metrics["next_sentence_accuracy"] <= 1
    assert metrics["train_steps"] == NUM_STEPS and metrics["train_records"] > 100
    assert 0 < metrics["examples_per_second"] < metrics["real_tokens_per_second"] < 16 * metrics["examples_per_second"]
    assert 0 < metrics["share_of_peak"] < 1 and metrics["peak_source"] == "measured" and metrics["peak_tflops"] > 0
    assert json.loads((output_dir / "metrics.json").read_text()) == metrics
    history = json.loads((output_dir / "history.json").read_text())
    assert [row["step"] for row in history["evaluations"]] == [NUM_STEPS // 2, NUM_STEPS]
    assert {"preset", "checkpoints", "events", "curve.png"} <= set(os.listdir(output_dir))


def test_what_always_one_next_sentence_answer_would_score(trained, data):
    train, held_out = (
        json.loads((data / f"{name}.tfrecord.report.json").read_text()) for name in ("train", "held_out")
    )
    share = held_out["random_next_share"]
    expected = share if train["random_next_share"] > 0.5 else 1 - share
    assert trained[1]["majority_next_sentence_accuracy"] == pytest.approx(expected, abs=1e-4)


def test_the_preset_holds_the_encoder_and_its_tokenizer(trained, data):
    preset = str(trained[0] / "preset")
    backbone = BertBackbone.from_preset(preset)
    assert (backbone.num_layers, backbone.hidden_dim, backbone.intermediate_dim) == (1, 64, 256)
    assert backbone.vocabulary_size == 17
    tokenizer = BertTokenizer.from_preset(preset)
    assert tokenizer.get_vocabulary() == BertTokenizer(str(data / "vocab.txt")).get_vocabulary()
    assert tokenizer.lowercase
    # A trained table has moved from its truncated normal of 0.02.
    assert backbone.token_embedding.embeddings.numpy().std() > 0.03


def test_a_finished_run_is_not_trained_again(trained, data):
    output_dir, metrics = trained
    again = pretrain(**settings(data, output_dir))
    assert again.pop("peak_source") == metrics["peak_source"]
    numbers = {name: value for name, value in metrics.items() if name != "peak_source"}
    assert again == pytest.approx(numbers, rel=1e-6)  # the training's speed among them
    assert json.loads((output_dir / "metrics.json").read_text()) == {**again, "peak_source": "measured"}


def test_evaluation_alone_restores_the_checkpoint(trained, data):
    output_dir, metrics = trained
    alone = pretrain(**settings(data, output_dir, do_train=False))
    for name in ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "majority_next_sentence_accuracy"):
        assert alone[name] == pytest.approx(metrics[name], rel=1e-6)
    assert alone["train_seconds"] == metrics["train_seconds"] and alone["train_steps"] == NUM_STEPS
    part = pretrain(**settings(data, output_dir, do_train=False, max_eval_steps=1))
    assert part["masked_lm_loss"] != alone["masked_lm_loss"]
    written = json.loads((output_dir / "flags.json").read_text())
    given = settings(data, output_dir, do_train=False, max_eval_steps=1)
    assert {name: written[name] for name in given} == given
    assert written["optimizer"] == "bert-2018" and set(written) == set(stages.Settings.__dataclass_fields__)


def test_other_settings_do_not_continue_a_run(trained, data):
    flags = (trained[0] / "flags.json").read_bytes()
    with pytest.raises(InputError, match="holds a training with learning_rate=0.003. It cannot continue with 0.001"):
        pretrain(**settings(data, trained[0], learning_rate=0.001))
    with pytest.raises(InputError, match="holds a training with num_layers=1. It cannot continue with 2"):
        pretrain(**settings(data, trained[0], num_layers=2))
    assert (trained[0] / "flags.json").read_bytes() == flags


def test_a_run_may_move_but_its_data_may_not_change(trained, data, tmp_path):
    shutil.copytree(trained[0], tmp_path / "out")
    shutil.copytree(data, tmp_path / "data")
    moved = {**settings(tmp_path / "data", tmp_path / "out"), "do_eval": False}
    assert pretrain(**moved)["train_steps"] == NUM_STEPS
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "data" / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    with pytest.raises(InputError, match="holds a training with vocabulary_checksum="):
        pretrain(**moved)
    shutil.copy(data / "vocab.txt", tmp_path / "data")
    shutil.copy(data / "held_out.tfrecord", tmp_path / "data" / "train.tfrecord")
    with pytest.raises(InputError, match="holds a training with train_records="):
        pretrain(**moved)


def test_a_longer_training_from_the_weights_of_a_preset(trained, data, tmp_path):
    preset = str(tmp_path / "a")
    shutil.copytree(trained[0] / "preset", preset)
    changes = {"preset": None, "num_layers": None, "num_heads": None, "hidden_dim": None, "init_checkpoint": preset}
    changes |= {"num_train_steps": 1, "num_warmup_steps": 1, "do_eval": False}  # the first step's rate is 0
    metrics = pretrain(**settings(data, tmp_path / "out", **changes))
    assert metrics["train_steps"] == 1 and "masked_lm_loss" not in metrics
    before = BertBackbone.from_preset(preset).get_weights()
    after = BertBackbone.from_preset(str(tmp_path / "out" / "preset")).get_weights()
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    # What it starts from may move, but not change.
    os.rename(preset, tmp_path / "b")
    changes["init_checkpoint"] = str(tmp_path / "b")
    assert pretrain(**settings(data, tmp_path / "out", **changes)) == metrics
    backbone = BertBackbone.from_preset(str(tmp_path / "b"))
    backbone.set_weights([*before[:-1], before[-1] + 0.1])
    backbone.save_to_preset(str(tmp_path / "b"))
    with pytest.raises(InputError, match="holds a training with weights_checksum="):
        pretrain(**settings(data, tmp_path / "out", **changes))


def test_architecture_comes_from_preset_or_file(data, tmp_path):
    def read(**changes):
        return stages.read_architecture(stages.Settings(**settings(data, tmp_path, **changes)), 17)

    sizes = {"num_layers": None, "num_heads": None, "hidden_dim": None}
    tiny = read(**sizes)
    assert (tiny.num_layers, tiny.hidden_dim, tiny.intermediate_dim, tiny.vocabulary_size) == (2, 128, 512, 17)
    assert read(**{**sizes, "intermediate_dim": 64}).intermediate_dim == 64
    path = tmp_path / "bert_config.json"
    names = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    path.write_text(json.dumps(dict(zip(names, (99, 3, 3, 48, 96), strict=True))))
    config = read(**sizes, preset=None, bert_config_file=str(path))
    assert (config.num_layers, config.hidden_dim, config.vocabulary_size) == (3, 48, 17)
    with pytest.raises(InputError, match="--max_seq_length=513: tiny has 512 positions"):
        read(max_seq_length=513)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": False, "do_eval": False}, "Nothing to do. Give --do_train, --do_eval or both."),
        ({"eval_input_file": None}, "--do_eval needs --eval_input_file"),
        ({"num_warmup_steps": 241}, "--num_warmup_steps must be at most --num_train_steps. Received: 241 and 240"),
        ({"preset": None}, "architecture must be given once, .* Received: none of them"),
        ({"bert_config_file": "x.json"}, "Received: --preset and --bert_config_file"),
        ({"preset": None, "init_checkpoint": "tiny", "vocab_file": None}, "--num_layers cannot change the sizes"),
        ({"input_file": "missing"}, "missing: no such file"),
        ({"vocab_file": "missing"}, "missing: cannot be read"),
        ({"max_seq_length": 32}, "record 1: .* must hold 32 numbers .* found 16"),
        ({"do_train": False}, "no checkpoint to evaluate. Train first"),
    ],
)
def test_contradictions_are_refused(data, tmp_path, changes, message):
    arguments = settings(data, tmp_path, **changes)
    arguments["vocab_file"] = arguments["vocab_file"] or f"{data}/vocab.txt"
    with pytest.raises(InputError, match=message):
        pretrain(**arguments)


def test_a_vocabulary_that_does_not_fit_is_refused(trained, data, tmp_path):
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "short.txt").write_text("\n".join(pieces[:-1]))
    arguments = settings(data, tmp_path / "out", vocab_file=str(tmp_path / "short.txt"))
    with pytest.raises(InputError, match=r"train.tfrecord: record \d+: .* must lie in \[0, 16\). Received: 16"):
        pretrain(**arguments)
    changes = {"preset": None, "num_layers": None, "num_heads": None, "hidden_dim": None}
    with pytest.raises(InputError, match="short.txt: 16 WordPieces, but --init_checkpoint=.* has 17"):
        pretrain(**{**arguments, **changes, "init_checkpoint": str(trained[0] / "preset")})


def python(*arguments):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment
    )


def command(*arguments):
    return python("-m", "tasks.pretraining.run", *arguments)


def test_flags_and_settings_have_the_same_names_and_defaults():
    # In a process of its own: a flag belongs to whichever command was imported last.
    program = """if True:
        import json, sys
        from absl import flags
        from tasks.pretraining import run
        known = flags.FLAGS.get_key_flags_for_module(run.__name__)
        print(json.dumps([{flag.name: flag.default for flag in known}, "tensorflow" in sys.modules]))
    """
    defined, loads_tensorflow = json.loads(python("-c", program).stdout)
    assert not loads_tensorflow
    fields = {field.name: field.default for field in dataclasses.fields(stages.Settings)}
    assert set(fields) == set(defined)
    for name in set(fields) - {"input_file", "output_dir", "vocab_file"}:
        assert fields[name] == defined[name], name


def test_help_lists_the_flags():
    result = command("--help")
    assert result.returncode == 0
    for name in stages.Settings.__dataclass_fields__:
        assert name in result.stdout


def test_the_command_reports_errors_in_one_line_and_writes_nothing(data, tmp_path):
    given = settings(data, tmp_path / "out", vocab_file=str(tmp_path / "missing.txt"))
    arguments = [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()
    ]
    result = command(*arguments)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and "missing.txt: cannot be read" in result.stderr
    assert not (tmp_path / "out").exists()
