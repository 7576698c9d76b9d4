"""docs/migrating.md, block after block: what `old` gives is what `new` gives, and commands answer as their models do.

Torch's classes of transformers stand for the `TFBert...` classes of version 4, whose `tf_model.h5` our side reads.
"""

import contextlib
import functools
import importlib
import json
import re
import shlex
import string
import sys
import types

import numpy as np
import pytest
from repository import COMMANDS, ROOT, listed_commands
from toy_hugging_face import numpy_state, random_model, save_tensorflow, torch

from tasks import flags

pytestmark = pytest.mark.oracle

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LETTERS = [*string.ascii_lowercase, *string.digits, ".", "?"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
MODELS = {
    "my_bert": "BertModel",
    "my_pretraining": "BertForPreTraining",
    "my_masked_lm": "BertForMaskedLM",
    "my_next_sentence": "BertForNextSentencePrediction",
    "my_classifier": "BertForSequenceClassification",
    "my_chooser": "BertForMultipleChoice",
    "my_tagger": "BertForTokenClassification",
    "my_reader": "BertForQuestionAnswering",
    "my_distilbert": "DistilBertForSequenceClassification",
    "my_electra": "ElectraForSequenceClassification",
}
MRPC = (
    "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta man runs\ta man walks\n1\t3\t4\tit rains\tthe sun shines\n"
)

# The flags of google-research/bert's programs, at commit eedf5716.
_CHECKPOINT = "bert_config_file init_checkpoint max_seq_length"
_TPU = "use_tpu master num_tpu_cores"
_TRAINING = (
    f"{_CHECKPOINT} output_dir do_train train_batch_size learning_rate save_checkpoints_steps iterations_per_loop"
)
_TRAINING += f" {_TPU} tpu_name tpu_zone gcp_project"
_FINE_TUNING = f"{_TRAINING} vocab_file do_lower_case do_predict predict_batch_size num_train_epochs warmup_proportion"
GOOGLE_FLAGS = {
    "bert-create-pretraining-data": "input_file output_file vocab_file do_lower_case do_whole_word_mask max_seq_length "
    "max_predictions_per_seq random_seed dupe_factor masked_lm_prob short_seq_prob",
    "bert-pretrain": f"{_TRAINING} input_file max_predictions_per_seq do_eval eval_batch_size num_train_steps "
    "num_warmup_steps max_eval_steps",
    "bert-classify": f"{_FINE_TUNING} data_dir task_name do_eval eval_batch_size",
    "bert-squad": f"{_FINE_TUNING} train_file predict_file doc_stride max_query_length n_best_size max_answer_length "
    "verbose_logging version_2_with_negative null_score_diff_threshold",
    "bert-features": f"{_CHECKPOINT} {_TPU} input_file output_file layers vocab_file do_lower_case batch_size "
    "use_one_hot_embeddings",
}


# === What users hold ===


def _make(directory, cls, **changes):
    if not cls.startswith("DistilBert"):
        changes["type_vocab_size"] = 2
    model = random_model(cls, vocab_size=len(PIECES), max_position_embeddings=40, **changes)
    model.save_pretrained(directory)
    _add_vocabulary(directory)
    return model


def _add_vocabulary(directory):
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def _make_tensorflow(root):
    """The files of `TFBert...` classes, and below `torch` those of the same weights that this transformers reads."""
    for name, cls in MODELS.items():
        model = _make(root / "torch" / name, cls)
        model.config.save_pretrained(root / name)
        _add_vocabulary(root / name)
        prefix = "bert." if cls == "BertModel" else ""
        state = {prefix + weight: value for weight, value in numpy_state(model).items()}
        save_tensorflow(state, root / name, re.sub("(?<=[a-z])(?=[A-Z])", "_", f"tf_{cls}").lower())


def _make_keras_hub(root):
    import keras
    import keras_nlp

    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "max_sequence_length": 40}
    backbone = keras_nlp.models.BertBackbone(len(PIECES), **sizes)
    tokenizer = keras_nlp.models.BertTokenizer(PIECES, lowercase=True, special_tokens_in_strings=True)
    hub, generator = keras_nlp.models, np.random.default_rng(1)
    tasks = {"hub_classifier": hub.BertTextClassifier, "hub_masked_lm": hub.BertMaskedLM}
    for name, task in {**tasks, "hub_embedder": hub.BertTextEmbedder}.items():
        options = {"num_classes": 2} if name == "hub_classifier" else {}
        model = task(backbone, preprocessor=task.preprocessor_cls(tokenizer, sequence_length=20), **options)
        model.set_weights([value + generator.normal(0, 0.2, value.shape) for value in model.get_weights()])
        model.save_to_preset(str(root / name))


def _make_google(root):
    from keras_bert.formats import google
    from keras_bert.presets import weights

    for name, cls in {"bert": "BertModel", "mrpc": "BertForSequenceClassification"}.items():
        _make(root / "torch" / name, cls, hidden_act="gelu_new")
        with weights.open_checkpoint(str(root / "torch" / name)) as checkpoint:
            google.write(str(root / name), checkpoint, {"vocabulary": PIECES, "lowercase": True})
    (root / "MRPC").mkdir()
    (root / "MRPC" / "test.tsv").write_text(MRPC)
    (root / "sentences.txt").write_text("a great film\nwho ran? ||| a man\n")


def _make_model_garden(root):
    networks = pytest.importorskip("official.nlp.modeling.networks")
    import tensorflow as tf

    sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "inner_dim": 32}
    encoder = networks.BertEncoder(len(PIECES), **sizes, max_sequence_length=40, dict_outputs=True)
    for variable in encoder.variables:
        variable.assign_add(tf.random.stateless_normal(variable.shape, (1, 2), stddev=0.2))
    tf.train.Checkpoint(encoder=encoder).save(str(root / "garden" / "ckpt"))
    _add_vocabulary(root / "garden")


def _make_sentence_transformers(root):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    _make(root / "torch" / "encoder", "BertModel")
    encoder = models.Transformer(str(root / "torch" / "encoder"), max_seq_length=32)
    modules = [encoder, models.Pooling(16), models.Normalize()]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(root / "my_embedder"))
    _make(root / "my_reranker", "BertForSequenceClassification", num_labels=1)


# === transformers 4 ===


def _transformers_4():
    """Its module, as far as the page uses it; tensors are torch's."""
    real = importlib.import_module("transformers")

    class AutoTokenizer(real.BertTokenizerFast):
        def __call__(self, *texts, return_tensors, **options):
            return super().__call__(*texts, return_tensors={"tf": "pt"}[return_tensors], **options)

    module = types.ModuleType("transformers")
    module.AutoTokenizer = AutoTokenizer
    for cls in MODELS.values():
        load = functools.partial(_load, getattr(real, cls))
        setattr(module, f"TF{cls}", types.SimpleNamespace(from_pretrained=load))
    return module


def _load(cls, directory):
    return cls.from_pretrained(f"torch/{directory}").eval()


# === The page ===


@pytest.fixture(scope="module", name="answers")
def _answers(tmp_path_factory):
    """The directory, after all blocks, and what each block of Python leaves in `old` and `new`."""
    import keras
    import tensorflow as tf
    from tensorflow.python.data.ops import debug_mode

    root = tmp_path_factory.mktemp("old")
    for make in (_make_tensorflow, _make_keras_hub, _make_google, _make_model_garden, _make_sentence_transformers):
        make(root)
    answers, names, of_version_4 = [], {}, _transformers_4()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.chdir(root)
        patch.setattr(keras.Model, "run_eagerly", True)  # Tracing each of the models takes seconds.
        tf.config.run_functions_eagerly(True)
        patch.setattr(debug_mode, "DEBUG_MODE", True)  # The same for functions of tf.data.
        stack.callback(tf.config.run_functions_eagerly, False)
        stack.enter_context(torch.no_grad())
        for number, (language, block) in enumerate(BLOCKS):
            if not language:
                _run_commands(block)
                continue
            with pytest.MonkeyPatch.context() as imports:
                if re.search(r"\bTF[A-Z]", block):
                    imports.setitem(sys.modules, "transformers", of_version_4)
                exec(compile(block, f"docs/migrating.md, block {number}", "exec"), names)  # noqa: S102
            answers.append((block, names.pop("old"), names.pop("new")))
    return root, answers


def _run_commands(block):
    for line in block.replace("\\\n", " ").splitlines():
        command, *words = shlex.split(line)
        main, settings = importlib.import_module(COMMANDS[command]).console_main.args
        assert not main(flags.parse(settings, words)), line


def test_old_equals_new(answers):
    assert len(answers[1]) == 14
    for block, old, new in answers[1]:
        pairs = zip(old, new, strict=True) if isinstance(old, list) else [(old, new)]
        for theirs, ours in pairs:
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=1e-5, err_msg=block)


def test_commands_take_the_flags_and_give_the_numbers_of_google_s_programs(answers):
    """Softmax and hidden states of torch's models with the weights of the checkpoints."""
    root, _ = answers
    tokenizer = importlib.import_module("transformers").BertTokenizerFast.from_pretrained(root / "torch" / "mrpc")
    with torch.no_grad():
        rows = [line.split("\t")[3:] for line in MRPC.splitlines()[1:]]
        inputs = tokenizer(*map(list, zip(*rows, strict=True)), padding=True, return_tensors="pt")
        expected = _torch_model(root, "BertForSequenceClassification", "mrpc")(**inputs).logits.softmax(-1)
        states = _torch_model(root, "BertModel", "bert")(
            **tokenizer("who ran?", "a man", return_tensors="pt"), output_hidden_states=True
        ).hidden_states
    probabilities = np.loadtxt(root / "predictions" / "predictions.tsv", skiprows=1, usecols=(2, 3))
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    line = json.loads((root / "features.jsonl").read_text().splitlines()[1])
    for place, state in enumerate(states[:0:-1]):
        vectors = [token["layers"][place]["values"] for token in line["features"]]
        np.testing.assert_allclose(vectors, state[0], atol=1e-5)
    assert (root / "my_preset" / "task.weights.h5").exists()


def _torch_model(root, cls, name):
    return getattr(importlib.import_module("transformers"), cls).from_pretrained(root / "torch" / name).eval()


def test_flags_of_google_s_programs_that_are_missing_are_in_the_table():
    ours = {command: flags for (command, _), flags in listed_commands().items()}
    missing = {flag for command, flags in GOOGLE_FLAGS.items() for flag in flags.split() if flag not in ours[command]}
    table = PAGE.partition("Only these flags differ:")[2].partition("\n- ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted(missing)


def test_every_class_of_transformers_has_its_block():
    assert {cls for cls in MODELS.values() if f"TF{cls}.from_pretrained" not in PAGE} == set()
    assert "`TFBertLMHeadModel` | none" in PAGE
