"""bert-pretrain with packing, dynamic masks and left-to-right attention, from records to a preset."""

import json

import pytest
from toy_run import settings, write_data

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.weights import read_bert_config
from tasks.pretraining.run import pretrain

NUM_STEPS = 60
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}
FIGURES = ("masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_data(directory, short_seq_prob=0.9, **LENGTHS)
    return directory


def run(data, output_dir, **changes):
    steps = {"num_train_steps": NUM_STEPS, "num_warmup_steps": 6, "save_checkpoints_steps": NUM_STEPS, **LENGTHS}
    return pretrain(**settings(data, output_dir, **{**steps, **changes}))


@pytest.fixture(scope="module")
def packed(data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("packed") / "out"
    return output_dir, run(data, output_dir, packing=True, dynamic_masking=True, do_whole_word_mask=True)


def test_a_packed_run_trains_and_says_how_full_its_rows_are(packed):
    output_dir, metrics = packed
    assert metrics["real_token_share"] < 0.6 < 0.8 < metrics["packed_real_token_share"] <= 1
    assert metrics["masked_lm_accuracy"] > metrics["unigram_accuracy"] + 0.1
    first, *_, last = json.loads((output_dir / "history.json").read_text())["training"]
    assert last["loss"] < first["loss"]


def test_its_weights_have_the_same_figures_unpacked(packed, data, tmp_path):
    output_dir, metrics = packed
    own = {"preset": None, "num_layers": None, "num_heads": None, "hidden_dim": None}
    changes = {"init_checkpoint": str(output_dir / "preset"), "learning_rate": 0.0, "num_train_steps": 1}
    again = run(data, tmp_path / "again", num_warmup_steps=0, **own, **changes)
    assert {name: again[name] for name in FIGURES} == pytest.approx({name: metrics[name] for name in FIGURES}, rel=1e-4)


def test_another_packing_or_masking_does_not_continue_it(packed, data):
    with pytest.raises(InputError, match="holds a training with packing=True. It cannot continue with False"):
        run(data, packed[0], dynamic_masking=True, do_whole_word_mask=True)
    with pytest.raises(InputError, match="holds a training with dynamic_masking=True"):
        run(data, packed[0], packing=True)


def test_left_to_right_without_next_sentence_is_kept_by_the_preset(data, tmp_path):
    changes = {"attention": "left_to_right", "use_next_sentence": False, "packing": True, "num_train_steps": 2}
    metrics = run(data, tmp_path / "out", num_warmup_steps=0, **changes)
    assert "next_sentence_loss" not in metrics and metrics["masked_lm_loss"] > 0
    preset = str(tmp_path / "out" / "preset")
    assert BertBackbone.from_preset(preset).attention == "left_to_right"
    assert read_bert_config(preset).attention == "left_to_right"


def test_a_share_of_masks_that_is_none_is_refused(data, tmp_path):
    with pytest.raises(InputError, match=r"--masked_lm_prob must lie in \(0, 1\]. Received: 1.5"):
        run(data, tmp_path / "out", masked_lm_prob=1.5)
