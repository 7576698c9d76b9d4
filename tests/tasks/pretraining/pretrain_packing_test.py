"""bert-pretrain with packing, dynamic masks and left-to-right attention, from records to a preset."""

import json

import pytest
import toy_run
from toy_run import NO_ARCHITECTURE, write_records

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.presets.weights import read_bert_config

NUM_STEPS = 8
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}
FIGURES = ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy")


@pytest.fixture(scope="module")
def short(data, tmp_path_factory):
    """Settings that name records of which most are short."""
    return write_records(data, tmp_path_factory.mktemp("short"), short_seq_prob=0.9, **LENGTHS) | {"data": data}


def run(short, output_dir, **changes):
    steps = {"num_train_steps": NUM_STEPS, "num_warmup_steps": 2, "save_checkpoints_steps": NUM_STEPS, **LENGTHS}
    return toy_run.run(output_dir=output_dir, **{**short, **steps, **changes})


@pytest.fixture(scope="module")
def packed(short, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("packed") / "out"
    return output_dir, run(short, output_dir, packing=True, dynamic_masking=True, do_whole_word_mask=True)


def test_a_packed_run_trains_and_says_how_full_its_rows_are(packed):
    output_dir, metrics = packed
    assert metrics["real_token_share"] < 0.6 < 0.8 < metrics["packed_real_token_share"] <= 1
    first, *_, last = json.loads((output_dir / "history.json").read_text())["training"]
    assert last["loss"] < first["loss"]


def test_its_weights_have_the_same_figures_unpacked(packed, short, tmp_path):
    output_dir, metrics = packed
    changes = {"init_checkpoint": str(output_dir / "preset"), "learning_rate": 0.0, "num_train_steps": 1}
    again = run(short, tmp_path / "again", num_warmup_steps=0, **NO_ARCHITECTURE, **changes)
    assert {name: again[name] for name in FIGURES} == pytest.approx({name: metrics[name] for name in FIGURES}, rel=1e-4)


@pytest.mark.slow
def test_another_packing_or_masking_does_not_continue_it(packed, short):
    with pytest.raises(InputError, match="holds a training with packing=True. It cannot continue with False"):
        run(short, packed[0], dynamic_masking=True, do_whole_word_mask=True)
    with pytest.raises(InputError, match="holds a training with dynamic_masking=True"):
        run(short, packed[0], packing=True)


@pytest.mark.slow
def test_left_to_right_without_next_sentence_is_kept_by_the_preset(short, tmp_path):
    changes = {"attention": "left_to_right", "use_next_sentence": False, "packing": True, "num_train_steps": 2}
    changes |= {"num_warmup_steps": 0, "optimizer": "lamb", "layer_decay": 0.9}
    metrics = run(short, tmp_path / "out", **changes)
    assert metrics["masked_lm_loss"] == metrics["loss"] > 0
    assert not {"next_sentence_loss", "majority_next_sentence_accuracy"} & set(metrics)
    preset = str(tmp_path / "out" / "preset")
    assert BertBackbone.from_preset(preset).attention == "left_to_right"
    assert read_bert_config(preset).attention == "left_to_right"
    with pytest.raises(InputError, match="holds a training with use_next_sentence=False"):
        run(short, tmp_path / "out", **{**changes, "use_next_sentence": True})


def test_a_share_of_masks_that_is_none_is_refused(short, tmp_path):
    with pytest.raises(InputError, match="--masked_lm_prob=1.5: must be at most 1.0"):
        run(short, tmp_path / "out", masked_lm_prob=1.5)
