"""bert-pretrain from records to a preset: results, resuming, evaluation alone, and what it refuses."""

import json
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from model_cards import check_card
from toy_run import NO_ARCHITECTURE, NUM_STEPS, run, settings, write_records

from keras_bert.config import BertConfig
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.tokenization.tokenizer import BertTokenizer
from tasks.pretraining.train.architecture import check_vocabulary, model_builder, read_architecture
from tasks.pretraining.train.settings import PretrainingSettings


def test_it_learns_and_says_so(trained):
    output_dir, metrics = trained
    assert metrics["masked_lm_accuracy"] > 0.55 > 0.4 > metrics["unigram_accuracy"] > 0
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["masked_lm_loss"]))
    assert metrics["loss"] == pytest.approx(metrics["masked_lm_loss"] + metrics["next_sentence_loss"])
    assert 0 < metrics["next_sentence_accuracy"] <= 1
    assert metrics["train_steps"] == NUM_STEPS and metrics["train_records"] > 100
    assert 0 < metrics["examples_per_second"] < metrics["real_tokens_per_second"] < 16 * metrics["examples_per_second"]
    assert json.loads((output_dir / "metrics.json").read_text()) == metrics
    history = json.loads((output_dir / "history.json").read_text())
    assert [row["step"] for row in history["evaluations"]] == [NUM_STEPS // 2, NUM_STEPS]
    assert {"preset", "checkpoints"} <= set(os.listdir(output_dir))
    page = (output_dir / "report.html").read_text(encoding="utf-8")
    assert '<section id="curves"' in page and "Learning rate" in page and "masked_lm_accuracy" in page
    assert not list(output_dir.rglob("*.png"))
    [events] = output_dir.glob("events/*")
    tags = {value.tag for event in tf.compat.v1.train.summary_iterator(str(events)) for value in event.summary.value}
    assert {"train/real_tokens_per_second", "eval/perplexity"} <= tags


def test_the_card_says_what_the_run_knows(trained):
    card = check_card(trained[0], layers="1 layers of 64 units, 2 attention heads", start="from random weights")
    assert f"| train | `{trained[1]['train_command'].partition('--input_file=')[2].split()[0]}`" in card.text
    assert f"{trained[1]['unigram_accuracy']:.4g} |" in card.text and f"| {NUM_STEPS} |" in card.text


def test_what_always_one_next_sentence_answer_would_score(trained, data):
    train, held_out = (
        json.loads((data / f"{name}.tfrecord.report.json").read_text()) for name in ("train", "held_out")
    )
    share = held_out["random_next_share"]
    expected = share if train["random_next_share"] > 0.5 else 1 - share
    assert trained[1]["majority_next_sentence_accuracy"] == pytest.approx(expected, abs=1e-4)


def test_the_preset_holds_encoder_heads_and_tokenizer(trained, data):
    preset = str(trained[0] / "preset")
    model = BertPretrainer.from_preset(preset)
    paths = {variable.path for variable in model.weights}
    assert {"masked_lm/transform_dense/kernel", "masked_lm/output_bias", "next_sentence/kernel"} <= paths
    assert np.abs(model.get_layer("masked_lm").get_weights()[-1]).max() > 0  # The output bias starts from zeros.
    backbone = model.backbone
    assert (backbone.num_layers, backbone.hidden_dim, backbone.intermediate_dim) == (1, 64, 256)
    assert backbone.vocabulary_size == 17
    # A trained table has moved from its truncated normal of 0.02.
    assert backbone.token_embedding.embeddings.numpy().std() > 0.03
    tokenizer = BertTokenizer.from_preset(preset)
    assert tokenizer.get_vocabulary() == BertTokenizer(str(data / "vocab.txt")).get_vocabulary()
    assert tokenizer.lowercase


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(trained, data):
    output_dir, metrics = trained
    again = run(data, output_dir)
    assert json.loads((output_dir / "metrics.json").read_text()) == again
    for name in ("train_command", "train_start"):
        assert again.pop(name) == metrics[name]
    numbers = {name: metrics[name] for name in again}
    assert again == pytest.approx(numbers, rel=1e-6)  # the training's speed among them


def test_evaluation_alone_restores_the_checkpoint(trained, data, tmp_path, capsys):
    shutil.copytree(trained[0], tmp_path / "out")
    changes = {"do_train": False, "input_file": f"{data}/train.tfrecord*"}  # The report has such a name, too.
    alone = run(data, tmp_path / "out", **changes)
    for name in ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy", "majority_next_sentence_accuracy"):
        assert alone[name] == pytest.approx(trained[1][name], rel=1e-6)
    assert alone["train_seconds"] == trained[1]["train_seconds"] and alone["train_steps"] == NUM_STEPS
    check_card(tmp_path / "out", layers="1 layers of 64 units", start="from random weights")
    written = json.loads((tmp_path / "out" / "flags.json").read_text())
    given = settings(data, tmp_path / "out", **changes)
    assert {name: written[name] for name in given} == given
    assert written["optimizer"] == "bert-2018" and set(written) == set(PretrainingSettings.__dataclass_fields__)
    told = f"Evaluating the last checkpoint in {tmp_path}/out instead of --init_checkpoint."
    assert told not in capsys.readouterr().out
    start = {**NO_ARCHITECTURE, "init_checkpoint": str(trained[0] / "preset")}
    again = run(data, tmp_path / "out", **changes | start)
    assert told in capsys.readouterr().out and again["masked_lm_loss"] == alone["masked_lm_loss"]


def test_a_checkpoint_is_evaluated_as_it_is(trained, data, tmp_path):
    changes = {**NO_ARCHITECTURE, "init_checkpoint": str(trained[0] / "preset"), "do_train": False}
    alone = run(data, tmp_path / "out", **changes)
    for name in ("masked_lm_accuracy", "masked_lm_loss", "next_sentence_accuracy"):
        assert alone[name] == pytest.approx(trained[1][name], rel=1e-6)
    assert "train_seconds" not in alone and not (tmp_path / "out" / "preset").exists()
    another = run(data, tmp_path / "out", use_next_sentence=False, max_eval_steps=1, **changes)
    assert "masked_lm_accuracy" in another and "next_sentence_accuracy" not in another


def test_other_settings_do_not_continue_a_run(trained, data):
    flags = (trained[0] / "flags.json").read_bytes()
    with pytest.raises(InputError, match="holds a training with learning_rate=0.003. It cannot continue with 0.001"):
        run(data, trained[0], learning_rate=0.001)
    with pytest.raises(InputError, match="holds a training with num_layers=1. It cannot continue with 2"):
        run(data, trained[0], num_layers=2)
    assert (trained[0] / "flags.json").read_bytes() == flags


def test_a_run_may_move_but_its_data_may_not_change(trained, data, tmp_path, caplog):
    shutil.copytree(trained[0], tmp_path / "out")
    shutil.copytree(data, tmp_path / "data")
    moved = run(tmp_path / "data", tmp_path / "out", max_eval_steps=1)
    assert moved["train_seconds"] == trained[1]["train_seconds"]
    assert moved["masked_lm_loss"] != trained[1]["masked_lm_loss"]  # The first batch's alone.
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "data" / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    told = "data/train.tfrecord: was created with another vocabulary than --vocab_file="
    assert told not in caplog.text
    with pytest.raises(InputError, match="holds a training with vocabulary_checksum="):
        run(tmp_path / "data", tmp_path / "out", do_eval=False)
    assert told in caplog.text
    shutil.copy(data / "vocab.txt", tmp_path / "data")
    shutil.copy(data / "held_out.tfrecord", tmp_path / "data" / "train.tfrecord")
    with pytest.raises(InputError, match="holds a training with train_records="):
        run(tmp_path / "data", tmp_path / "out", do_eval=False)


@pytest.mark.slow
def test_a_second_phase_continues_encoder_and_heads_on_longer_sequences(trained, data, tmp_path):
    preset = str(tmp_path / "a")
    shutil.copytree(trained[0] / "preset", preset)
    lengths = {"max_seq_length": 32, "max_predictions_per_seq": 5}
    changes = {**NO_ARCHITECTURE, **lengths, **write_records(data, tmp_path, dupe_factor=1, **lengths)}
    changes |= {"num_train_steps": 1, "num_warmup_steps": 1, "init_checkpoint": preset}  # The first step's rate is 0.
    metrics = run(data, tmp_path / "out", **changes)
    assert metrics["train_steps"] == 1
    assert metrics["masked_lm_loss"] < np.log(17) - 0.2  # Random heads would only guess.
    before = BertPretrainer.from_preset(preset).get_weights()
    after = BertPretrainer.from_preset(str(tmp_path / "out" / "preset")).get_weights()
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    # What it starts from may move, but not change.
    os.rename(preset, tmp_path / "b")
    changes |= {"init_checkpoint": str(tmp_path / "b"), "do_eval": False}
    assert run(data, tmp_path / "out", **changes) == {**metrics, "train_start": str(tmp_path / "b")}
    backbone = BertBackbone.from_preset(str(tmp_path / "b"))
    *weights, last = backbone.get_weights()
    backbone.set_weights([*weights, last + 0.1])
    backbone.save_to_preset(str(tmp_path / "b"))
    with pytest.raises(InputError, match="holds a training with weights_checksum="):
        run(data, tmp_path / "out", **changes)


def test_a_vocabulary_that_is_not_the_checkpoints_is_refused(trained, data, tmp_path):
    changes = {**NO_ARCHITECTURE, "init_checkpoint": str(trained[0] / "preset")}
    with pytest.raises(InputError, match="its vocabulary is uncased. Received: do_lower_case=False"):
        run(data, tmp_path / "out", do_lower_case=False, **changes)
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    with pytest.raises(InputError, match="vocab.txt:16: 'w11', but the vocabulary of --init_checkpoint=.* has 'w10'"):
        run(data, tmp_path / "out", vocab_file=str(tmp_path / "vocab.txt"), **changes)
    with pytest.raises(InputError, match="vocab.txt:17: '', but the vocabulary of .* has 'w11' there"):
        check_vocabulary(PretrainingSettings(**settings(data, tmp_path / "out", **changes)), pieces[:-1])
    assert not (tmp_path / "out").exists()


def test_pieces_of_white_space_are_the_same_in_a_checkpoint(data, tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "\u2028", "\u2029"]  # As in Google's Chinese one.
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    BertConfig(8, 1, 1, 4, 8).to_json_file(str(tmp_path / "bert_config.json"))
    changes = {**NO_ARCHITECTURE, "init_checkpoint": str(tmp_path)}
    read = BertTokenizer(str(tmp_path / "vocab.txt")).get_vocabulary()
    check_vocabulary(PretrainingSettings(**settings(data, tmp_path / "out", **changes)), read)


def test_a_time_that_is_over_before_the_first_step_leaves_no_preset(data, tmp_path):
    with pytest.raises(InputError, match="=1e-06: over before step 1, .*/time_budget.json. Give more"):
        run(data, tmp_path / "out", time_budget_minutes=1e-6, do_eval=False)
    assert not (tmp_path / "out" / "preset").exists()


@pytest.mark.slow
def test_a_run_may_end_by_the_clock(data, tmp_path):
    changes = {"num_warmup_steps": 5, "do_eval": False}
    start = time.monotonic()
    metrics = run(data, tmp_path / "out", time_budget_minutes=0.3, **changes)
    # A save of seconds at the end, on a busy machine, may take longer than the share that is reserved for it.
    assert 0.85 * 18 < time.monotonic() - start < 2 * 18
    assert 40 < metrics["train_steps"] <= metrics["num_train_steps"]
    assert run(data, tmp_path / "out", time_budget_minutes=0.3, **changes) == metrics  # It is finished.


@pytest.mark.parametrize(
    ("steps", "minutes", "expected"), [(20_000, None, 10_000), (2_000, None, 200), (20_000, 60.0, 100)]
)
def test_the_warmup_fits_into_the_training(data, tmp_path, steps, minutes, expected):
    changes = {"num_warmup_steps": None, "num_train_steps": steps, "time_budget_minutes": minutes}
    assert PretrainingSettings(**settings(data, tmp_path, **changes)).num_warmup_steps == expected


def test_architecture_comes_from_preset_or_file(trained, data, tmp_path):
    def read(**changes):
        return read_architecture(PretrainingSettings(**settings(data, tmp_path, **changes)), 17)

    sizes = {"num_layers": None, "num_heads": None, "hidden_dim": None}
    tiny = read(**sizes)
    assert (tiny.num_layers, tiny.hidden_dim, tiny.intermediate_dim, tiny.vocabulary_size) == (2, 128, 512, 17)
    assert read(**{**sizes, "intermediate_dim": 64}).intermediate_dim == 64
    path = tmp_path / "bert_config.json"
    names = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    path.write_text(json.dumps(dict(zip(names, (99, 3, 3, 48, 96), strict=True))))
    config = read(**sizes, preset=None, bert_config_file=str(path))
    assert (config.num_layers, config.hidden_dim, config.vocabulary_size) == (3, 48, 17)
    too_long = "--max_seq_length=513: .* has 512 positions. Lower it, here and for bert-create-pretraining-data"
    with pytest.raises(InputError, match=f"{too_long} or give a --bert_config_file"):
        read(max_seq_length=513)
    with pytest.raises(InputError, match=rf"{too_long}\.$"):
        read(**NO_ARCHITECTURE, init_checkpoint=str(trained[0] / "preset"), max_seq_length=513)


@pytest.mark.parametrize("preset", ["tiny", "hf://owner/bert"])
def test_a_preset_with_weights_is_said_to_start_at_random(data, tmp_path, caplog, preset):
    with caplog.at_level("WARNING"):
        model_builder(PretrainingSettings(**settings(data, tmp_path, preset=preset)), BertConfig(17, 1, 2, 8, 16), None)
    message = "To train those of a preset: --init_checkpoint=hf://owner/bert in place of --preset."
    assert (message in caplog.text) == (preset != "tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": False, "do_eval": False}, "Nothing to do. Give --do_train, --do_eval or both."),
        ({"eval_input_file": None}, "--do_eval needs --eval_input_file"),
        ({"num_warmup_steps": 121}, "--num_warmup_steps must be at most --num_train_steps. Received: 121 and 120"),
        (
            {"dynamic_masking": True, "tpu": "grpc://host:8470", "distribution_strategy": "tpu"},
            "--dynamic_masking draws masks in this process, which needs --tpu=local. Received: --tpu=grpc://host:8470",
        ),
        (
            {"masked_lm_prob": 0.2, "do_whole_word_mask": True},
            "--masked_lm_prob and --do_whole_word_mask: the records hold their masks. Add --dynamic_masking",
        ),
        ({"random_seed": 2**32}, "--random_seed=4294967296: must be at most 4294967295"),
        ({"adam_lr_ratio": 0.5}, "--adam_lr_ratio is for --optimizer=muon. Received: --optimizer=bert-2018"),
        ({"adam_lr_ratio": 0.0}, "--adam_lr_ratio=0.0: must be greater than 0.0"),
        (
            {**NO_ARCHITECTURE, "init_checkpoint": "tiny", "initial_attention": "neighbors"},
            "neighbors: --init_checkpoint has weights of its own",
        ),
        ({"preset": None}, "architecture must be given once, .* Received: none of them"),
        ({"bert_config_file": "x.json"}, "Received: --preset and --bert_config_file"),
        ({"preset": None, "init_checkpoint": "tiny", "vocab_file": None}, "--num_layers cannot change the sizes"),
        ({"input_file": "missing"}, "missing: no such file"),
        ({"vocab_file": "missing"}, "missing: cannot be read"),
        ({"max_seq_length": 32}, "its records have 16 tokens and 3 masked positions. Give --max_seq_length"),
        ({"do_train": False}, "no checkpoint to evaluate. Train first"),
    ],
)
def test_contradictions_are_refused(data, tmp_path, changes, message):
    if "vocab_file" in changes and changes["vocab_file"] is None:
        changes = {**changes, "vocab_file": f"{data}/vocab.txt"}
    with pytest.raises(InputError, match=message):
        run(data, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_does_not_fit_is_refused(trained, data, tmp_path):
    pieces = (data / "vocab.txt").read_text().split()
    (tmp_path / "short.txt").write_text("\n".join(pieces[:-1]))
    changes = {"vocab_file": str(tmp_path / "short.txt")}
    with pytest.raises(InputError, match=r"train.tfrecord: record \d+: .* must lie in \[0, 16\). Received: 16"):
        run(data, tmp_path / "out", **changes)
    changes |= {**NO_ARCHITECTURE, "init_checkpoint": str(trained[0] / "preset")}
    with pytest.raises(InputError, match="short.txt: 16 WordPieces, but --init_checkpoint=.* has 17"):
        run(data, tmp_path / "out", **changes)
