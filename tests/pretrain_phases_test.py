"""bert-pretrain in two phases, from checkpoints with heads, without next sentences, on two workers, and stopped."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from toy_run import settings, write_data
from toy_workers import join

from keras_bert.errors import InputError
from keras_bert.tokenizer import BertTokenizer
from tasks.preemption import PREEMPTED_STATUS
from tasks.pretraining import stages
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.model import BertPretrainer
from tasks.pretraining.run import pretrain

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = 12
SIZES = {"num_layers": None, "num_heads": None, "hidden_dim": None}


def phase(data, output_dir, **changes):
    steps = {"num_train_steps": STEPS, "num_warmup_steps": 2, "save_checkpoints_steps": STEPS}
    return settings(data, output_dir, **{**steps, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_data(directory)
    return directory


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("phases") / "first"
    return output_dir, pretrain(**phase(data, output_dir))


def continued(first, **changes):
    return {"preset": None, **SIZES, "init_checkpoint": str(first[0] / "preset"), **changes}


def test_the_second_phase_continues_the_heads_on_longer_sequences(first, data, tmp_path):
    lengths = {"max_seq_length": 32, "max_predictions_per_seq": 5}
    files = {}
    for name in ("train", "held_out"):
        files[name] = str(tmp_path / f"{name}.tfrecord")
        create_pretraining_data(
            input_file=f"{data}/{name}.txt",
            output_file=files[name],
            vocab_file=f"{data}/vocab.txt",
            masked_lm_prob=0.15,
            short_seq_prob=0.1,
            dupe_factor=1,
            random_seed=3,
            do_whole_word_mask=False,
            **lengths,
        )
    changes = {**lengths, "input_file": files["train"], "eval_input_file": files["held_out"]}
    # One step at rate 0: what it starts from.
    still = continued(first, num_train_steps=1, num_warmup_steps=1, **changes)
    metrics = pretrain(**settings(data, tmp_path / "still", **still))
    before = BertPretrainer.from_preset(str(first[0] / "preset")).get_weights()
    after = BertPretrainer.from_preset(str(tmp_path / "still" / "preset")).get_weights()
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    # Random heads would answer with the loss of a guess.
    assert metrics["masked_lm_loss"] < np.log(17) - 0.2
    metrics = pretrain(**phase(data, tmp_path / "second", **continued(first, **changes)))
    assert metrics["train_steps"] == STEPS and np.isfinite(metrics["loss"])


def test_speed_and_share_of_peak_are_among_the_events(first):
    [events] = first[0].glob("events/*")
    tags = {value.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for value in event.summary.value}
    assert {"train/real_tokens_per_second", "train/share_of_peak", "eval/perplexity"} <= tags


def test_a_peak_that_is_given_is_not_measured(first, data, tmp_path):
    metrics = pretrain(**phase(data, tmp_path, num_train_steps=2, peak_tflops=0.5))
    assert (metrics["peak_tflops"], metrics["peak_source"]) == (0.5, "flag")
    # Tokens of the whole run, with its compilation.
    assert metrics["share_of_peak"] < first[1]["share_of_peak"] * first[1]["peak_tflops"] / 0.5


def test_the_preset_holds_the_heads(first, data):
    model = BertPretrainer.from_preset(str(first[0] / "preset"))
    paths = {variable.path for variable in model.weights}
    assert {"masked_lm/transform_dense/kernel", "masked_lm/output_bias", "next_sentence/kernel"} <= paths
    assert np.abs(model.get_layer("masked_lm").get_weights()[-1]).max() > 0  # The output bias starts from zeros.
    assert BertTokenizer.from_preset(str(first[0] / "preset")).lowercase


def test_a_vocabulary_that_is_not_the_checkpoints_is_refused(first, data, tmp_path):
    with pytest.raises(InputError, match="its vocabulary is uncased. Received: do_lower_case=False"):
        pretrain(**phase(data, tmp_path / "out", **continued(first, do_lower_case=False)))
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    changes = continued(first, vocab_file=str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match="vocab.txt:16: 'w11', but the vocabulary of --init_checkpoint=.* has 'w10'"):
        pretrain(**phase(data, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()
    changes = stages.Settings(**phase(data, tmp_path / "out", **continued(first)))
    with pytest.raises(InputError, match="vocab.txt:17: '', but the vocabulary of .* has 'w11' there"):
        stages.check_vocabulary(changes, pieces[:-2] + pieces[-2:-1])


def test_masked_lm_alone(data, tmp_path):
    metrics = pretrain(**phase(data, tmp_path, use_next_sentence=False, optimizer="lamb", layer_decay=0.9))
    assert metrics["masked_lm_loss"] == metrics["loss"]
    assert not {"next_sentence_loss", "majority_next_sentence_accuracy"} & set(metrics)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    with pytest.raises(InputError, match="holds a training with use_next_sentence=False"):
        pretrain(**phase(data, tmp_path, optimizer="lamb", layer_decay=0.9))


def start(given: dict, **environment: str) -> subprocess.Popen:
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()]
    command = [sys.executable, "-m", "tasks.pretraining.run", *flags]
    environment = {**os.environ, **environment}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)


@pytest.mark.slow
def test_two_workers_equal_one_device(data, tmp_path):
    """From records to metrics, without dropout, whose masks differ between one replica and two."""
    sizes = {"vocab_size": 17, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
    config = {**sizes, "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {**SIZES, "preset": None, "bert_config_file": str(tmp_path / "config.json")}
    expected = pretrain(**phase(data, tmp_path / "one", **given))
    workers = []
    for index, tf_config in enumerate(join(2)):
        disk = tmp_path / f"disk{index}"
        shared = phase(data, disk, **given, distribution_strategy="multi_worker_mirrored")
        workers.append(start({name: value for name, value in shared.items() if value is not None}, TF_CONFIG=tf_config))
    for worker in workers:
        output, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
        assert "masked_lm_loss" in output and "peak_source" in output
    metrics = json.loads((tmp_path / "disk0" / "metrics.json").read_text())
    for name in ("masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy", "next_sentence_accuracy"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5)
    assert not (tmp_path / "disk1").exists()
    assert {"preset", "checkpoints", "flags.json", "training.json"} <= set(os.listdir(tmp_path / "disk0"))


@pytest.mark.slow
def test_sigterm_ends_the_command_with_its_status(data, tmp_path):
    long = {"num_train_steps": 100000, "save_checkpoints_steps": 100000}
    given = phase(data, tmp_path / "out", deterministic_ops=True, mixed_precision="float16", **long)
    with start(given) as command:
        while not list(tmp_path.glob("out/events/*")):
            assert command.poll() is None, command.stderr.read()
            time.sleep(0.1)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=120) == PREEMPTED_STATUS
        assert "the same command continues" in command.stderr.read()
    assert list(tmp_path.glob("out/checkpoints/ckpt-*.index"))
