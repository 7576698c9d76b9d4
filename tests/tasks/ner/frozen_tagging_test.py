"""`bert-ner --encoder=frozen`, the paper's Table 7 in small: a BiLSTM learns from features that are computed once."""

import json
import os
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import run_tasks
import toy_features
from run_tasks import tag_by_features as tag

from keras_bert.errors import InputError
from tasks import flags
from tasks.engine.checkpoints import Checkpoints
from tasks.fine_tuning.inputs import read_inputs
from tasks.fine_tuning.model_files import load_model
from tasks.ner import scores, word_features
from tasks.ner.bilstm import CombineStates, build_tagger
from tasks.ner.frozen import FrozenNer
from tasks.ner.settings import NerSettings
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll

TRAINING = {
    "max_seq_length": 16,
    "lstm_units": 16,
    "lstm_layers": 1,
    "lstm_dropout": 0.0,
    "train_batch_size": 8,
    "learning_rate": 3e-2,
    "num_train_epochs": 3,
    "random_seed": 5,
    "eval_batch_size": 8,
}


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory):
    """A directory with a preset and files."""
    place = tmp_path_factory.mktemp("tagging")
    toy_features.save_preset(place / "preset")
    for name, count, seed in (("train", 200, 0), ("dev", 25, 1)):
        toy_features.write_tagged(place / f"{name}.conll", count, seed)
    (place / "test.conll").write_text("anna\nsaw\nrome\n\nben\n")
    (place / "animals.conll").write_text("zoo\tB-animal\n")
    return place


def settings(place, output_dir, **changes):
    return {
        "output_dir": str(output_dir),
        "preset": str(place / "preset"),
        "train_file": str(place / "train.conll"),
        "dev_file": str(place / "dev.conll"),
        "test_file": str(place / "test.conll"),
        "layers": ["embeddings", "1"],
        "combine": "weighted_sum",
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        **TRAINING,
        **changes,
    }


@pytest.fixture(scope="module", name="done")
def _done(place):
    output_dir = place / "run"
    return output_dir, tag(**settings(place, output_dir))


def test_the_flags_of_the_training_are_not_said_to_have_no_effect(place, done, capsys):
    def say(**changes):
        chosen = {"encoder": "frozen", "do_train": False, "do_predict": False, **changes}
        read_inputs(FrozenNer(NerSettings(**settings(place, done[0], **chosen)), features_directory=""))
        return capsys.readouterr().out

    assert "no effect" not in say(layers=["0", "-2"])
    told = f"--document_context=document has no effect: {done[0]}/model was trained with False."
    assert told in say(document_context="document")


def test_it_learns_and_leaves_everything(done):
    output_dir, results = done
    assert results["f1"] > 0.95 and results["intervals"]["f1"][0] > 0.9
    assert set(results["per_type"]) == {"person", "place"}
    assert results["labels"] == ["B-person", "B-place", "O"]
    assert results["train_sentences"] == results["train_windows"] == 200 and results["windows"] == 25
    assert list(results["layer_weights"]) == ["embeddings", "layer_1"]
    assert results["layer_weights"] == pytest.approx({"embeddings": 1.2344, "layer_1": 0.39275}, rel=1e-3)
    assert results["loss"] == pytest.approx(0.0381036, rel=1e-3)
    left = {
        "metrics.json",
        "report.html",
        "history.json",
        "events",
        "checkpoints",
        "model",
        "features",
        "dev_predictions.conll",
        "predictions.conll",
    }
    assert left <= set(os.listdir(output_dir))
    assert json.loads((output_dir / "metrics.json").read_text()) == results
    assert "entity F1" in (output_dir / "report.html").read_text()


def test_a_score_stays_as_it_was(place, tmp_path):
    """Two BiLSTMs that have not learned everything, on windows that overlap within the document.

    `bert-features --task_name=ner` gave these figures, before its tagger became a setting of `bert-ner`. They agree to
    seven digits with and without AVX-512, and with and without oneDNN.
    """
    changes = {"max_seq_length": 8, "lstm_layers": 2, "lstm_dropout": 0.1, "num_train_epochs": 2, "do_predict": False}
    results = tag(
        **settings(place, tmp_path, combine="concatenate", document_context="document", **changes),
    )
    assert results["f1"] == pytest.approx(0.743590, abs=1e-5)
    assert results["loss"] == pytest.approx(0.354682, rel=1e-4)


def test_predictions_stand_beside_their_words(done):
    output_dir, results = done
    columns = [line.split() for line in (output_dir / "predictions.conll").read_text().splitlines() if line]
    assert [line[0] for line in columns] == ["anna", "saw", "rome", "ben"]
    assert [line[-1] for line in columns] == ["B-person", "O", "B-place", "B-person"]
    written = read_conll(str(output_dir / "dev_predictions.conll"), bad_rows=BadRows())
    gold = read_conll(str(output_dir / "dev_predictions.conll"), tag_column=1, bad_rows=BadRows())
    figures = scores.score(gold.split(gold.tags), written.split(written.tags))
    assert figures["f1"] == pytest.approx(results["f1"])


@pytest.mark.oracle
def test_f1_is_that_of_seqeval_on_the_written_file(done):
    seqeval = pytest.importorskip("seqeval.metrics")
    output_dir, results = done
    written = read_conll(str(output_dir / "dev_predictions.conll"), bad_rows=BadRows())
    gold = read_conll(str(output_dir / "dev_predictions.conll"), tag_column=1, bad_rows=BadRows())
    f1 = seqeval.f1_score(gold.split(gold.tags), written.split(written.tags))
    assert f1 == pytest.approx(results["f1"], abs=1e-12)


@pytest.mark.usefixtures("eagerly")
def test_features_are_computed_once_and_a_finished_training_stays_as_it_was(place, done, monkeypatch):
    output_dir, results = done

    def fail(*_):
        raise RuntimeError("computed again")

    monkeypatch.setattr(word_features, "_compute", fail)
    before = (output_dir / "checkpoints" / "checkpoint").read_text()
    again = tag(**settings(place, output_dir, do_predict=False))
    same = {name for name in results if name != "eval_seconds"}
    assert {name: again[name] for name in same} == {name: results[name] for name in same}
    assert (output_dir / "checkpoints" / "checkpoint").read_text() == before
    with pytest.raises(RuntimeError, match="computed again"):
        tag(**settings(place, output_dir, do_train=False, do_eval=False, test_file=str(place / "dev.conll")))


def test_the_saved_model_goes_from_token_ids_to_tags(place, done):
    output_dir, _ = done
    model, tokenizer, task = load_model(str(output_dir / "model"), FrozenNer.name, FrozenNer.command)
    assert task["layers"] == [0, 1] and task["combine"] == "weighted_sum"
    ids = [tokenizer.token_to_id(piece) for piece in ("[CLS]", "anna", "un", "##seen", "rome", "[SEP]", "[PAD]")]
    inputs = {
        "token_ids": np.array([ids]),
        "segment_ids": np.zeros((1, 7), np.int32),
        "padding_mask": np.array([[1, 1, 1, 1, 1, 1, 0]]),
        "word_positions": np.array([[1, 2, 4, 0]]),
    }
    logits = keras.ops.convert_to_numpy(model(inputs, training=False))
    assert [task["labels"][number] for number in logits[0, :3].argmax(-1)] == ["B-person", "O", "B-place"]


@pytest.mark.usefixtures("eagerly")
def test_the_flag_is_needed_to_apply_the_model(place, done):
    flagless = {"output_dir": str(done[0]), "dev_file": str(place / "dev.conll"), "do_eval": True}
    with pytest.raises(InputError, match="found 'feature_based_tagging'. The train_command in that run's metrics.json"):
        run_tasks.tag(**flagless)
    assert "bert-ner --preset=" in done[1]["train_command"] and " --encoder=frozen " in done[1]["train_command"]
    again = tag(**flagless)
    assert again["f1"] == done[1]["f1"] and again["loss"] == pytest.approx(done[1]["loss"], rel=1e-4)


@pytest.mark.slow
def test_a_search_computes_the_features_once(place, tmp_path, monkeypatch):
    computed, compute = [], word_features._compute
    monkeypatch.setattr(word_features, "_compute", lambda *given: (computed.append(given[0]), compute(*given)))
    results = tag(
        **settings(place, tmp_path / "run", do_predict=False, learning_rate=[1e-6, 3e-2], num_train_epochs=0.3)
    )
    assert len(computed) == 2
    assert len(results["sweep"]["combinations"]) == 2
    assert not list((tmp_path / "run" / "sweep").glob("*/features"))
    assert (tmp_path / "run" / "model" / "task.json").exists()


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_a_stopped_training_ends_as_an_undisturbed_one(place, done, tmp_path, monkeypatch):
    results, save = done[1], Checkpoints.save

    def dies(*arguments, **options):
        save(*arguments, **options)
        raise KilledError

    stopped = settings(place, tmp_path / "run", do_eval=False, do_predict=False, save_checkpoints_steps=7)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Checkpoints, "save", dies)
        tag(**stopped)
    assert (tmp_path / "run" / "checkpoints").is_dir() and not (tmp_path / "run" / "model").exists()
    again = tag(**{**stopped, "do_eval": True})
    assert again["loss"] == results["loss"] and again["layer_weights"] == results["layer_weights"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"layers": ["1"]}, ["layers=[0, 1]", "[1]"]),
        ({"learning_rate": 1e-3}, ["learning_rate=0.03", "0.001"]),
        ({"train_file": "dev.conll"}, ["train_rows_checksum"]),
    ],
)
def test_another_training_does_not_continue_this_one(place, done, changes, words, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(InputError) as refused:
        tag(**settings(place, done[0], do_eval=False, do_predict=False, **changes))
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"train_file": None, "do_train": False, "do_eval": False, "do_predict": False}, ["Nothing to do"]),
        ({"train_file": None}, ["--train_file"]),
        ({"preset": None}, ["--preset"]),
        ({"layers": ["3"]}, ["--layers=3"]),
        ({"max_seq_length": 25}, ["--max_seq_length=25"]),
        ({"train_batch_size": 1000}, ["200 examples", "--train_batch_size"]),
        ({"do_eval": False, "early_stopping_patience": 2}, ["--early_stopping_patience", "--do_eval"]),
        ({"dev_file": "test.conll"}, ["test.conll", "tag"]),
        ({"dev_file": "animals.conll"}, ["animals.conll:1", "unknown entity type 'animal'"]),
        ({"do_train": False}, ["expected a model that bert-ner --encoder=frozen", "--do_train"]),
        ({"do_train": False, "preset": None}, ["task.json", "bert-ner --encoder=frozen"]),
    ],
)
def test_wrong_settings_are_refused(place, tmp_path, changes, words, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(InputError) as refused:
        tag(**{**settings(place, tmp_path / "run"), **changes})
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.parametrize("encoder, expected", [("trained", (None, "adamw", None)), ("frozen", (1e-3, "adamw", 10.0))])
def test_a_bilstm_has_other_defaults(encoder, expected):
    names = ("learning_rate", "optimizer", "num_train_epochs")
    typed = flags.parse(NerSettings, ["--output_dir=x", f"--encoder={encoder}"])
    assert tuple(getattr(typed, name) for name in names) == expected
    typed = flags.parse(NerSettings, ["--output_dir=x", f"--encoder={encoder}", "--learning_rate=1,2"])
    assert typed.learning_rate == [1.0, 2.0] and typed.is_search


# === The model ===


@pytest.mark.parametrize("combine, factors", [("sum", [1, 1, 1]), ("mean", [1 / 3] * 3), ("weighted_sum", [1 / 3] * 3)])
def test_states_are_combined_as_said(combine, factors):
    states = np.random.default_rng(0).normal(size=(2, 4, 3 * 5)).astype(np.float32)
    expected = np.einsum("bwkh,k->bwh", states.reshape(2, 4, 3, 5), factors)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(CombineStates(3, combine)(states)), expected, atol=1e-6)


def test_the_learned_weights_are_a_scaled_softmax():
    layer = CombineStates(2, "weighted_sum")
    layer(np.zeros((1, 1, 4), np.float32))
    layer.scores.assign([0.0, np.log(3.0)])
    layer.scale.assign(2.0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer.layer_weights()), [0.5, 1.5], rtol=1e-6)


SIZES = {name: getattr(NerSettings, name) for name in ("combine", "lstm_units", "lstm_layers", "lstm_dropout")}


@pytest.mark.usefixtures("eagerly")
def test_padding_does_not_change_an_answer():
    model = build_tagger(SimpleNamespace(**SIZES | {"lstm_units": 4}), 1, 6, 3)
    states = np.random.default_rng(0).normal(size=(1, 5, 6)).astype(np.float32)
    short = model({"features": states[:, :3], "padding_mask": np.ones((1, 3), np.int32)})
    long = model({"features": states, "padding_mask": np.array([[1, 1, 1, 0, 0]], np.int32)})
    np.testing.assert_allclose(long[:, :3], short, atol=1e-6)


@pytest.mark.slow
def test_the_papers_size():
    """Four concatenated layers of the base model into two BiLSTMs of 768 a direction."""
    parameters = 0
    for width in (4 * 768, 2 * 768):
        parameters += 2 * 4 * (width * 768 + 768 * 768 + 768)
    assert build_tagger(SimpleNamespace(**SIZES), 4, 768, 9).count_params() == parameters + 2 * 768 * 9 + 9


def test_tags_that_the_training_lacks_are_left_out_of_the_loss():
    logits = np.array([[0.0, np.log(3.0)], [5.0, 5.0]], np.float32)
    np.testing.assert_allclose(scores.word_losses(logits, np.array([1, -1])), [np.log(4 / 3), 0.0], atol=1e-6)
