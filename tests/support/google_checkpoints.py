"""Small checkpoints in google-research/bert's form, as its own code would have saved them, for the format tests."""

import json

import numpy as np
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.models import BertPretrainer

SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "max_sequence_length": 20,
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]
TOKENIZER = {"vocabulary": PIECES, "lowercase": True}


def random_model(**changes):
    """A pre-trainer with nothing at zero."""
    model = BertPretrainer(BertBackbone(**SIZES | changes), compile=False)
    rng = np.random.default_rng(5)
    for variable in model.weights:
        middle = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(rng.normal(middle, 0.3, variable.shape))
    return model


def batch():
    mask = np.arange(7) < np.array([[7], [4]])
    return {
        "token_ids": np.arange(14).reshape(2, 7) % 30 * mask,
        "segment_ids": (np.arange(7) > 2) * mask,
        "padding_mask": mask,
        "mask_positions": np.array([[1, 6], [3, 0]]),
    }


def names_of_google(num_layers, vocabulary_size=30, positions=20):
    """Shapes by the names that modeling.py and run_pretraining.py give, written from their code."""
    hidden, inner = 16, 32
    dense = lambda name, rows, columns: {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}  # noqa: E731
    norm = lambda name: {f"{name}/gamma": (hidden,), f"{name}/beta": (hidden,)}  # noqa: E731
    shapes = {
        "bert/embeddings/word_embeddings": (vocabulary_size, hidden),
        "bert/embeddings/token_type_embeddings": (2, hidden),
        "bert/embeddings/position_embeddings": (positions, hidden),
        **norm("bert/embeddings/LayerNorm"),
        **dense("bert/pooler/dense", hidden, hidden),
        **dense("cls/predictions/transform/dense", hidden, hidden),
        **norm("cls/predictions/transform/LayerNorm"),
        "cls/predictions/output_bias": (vocabulary_size,),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }
    for index in range(num_layers):
        layer = f"bert/encoder/layer_{index}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes.update(dense(f"{layer}/attention/{part}", hidden, hidden))
        shapes.update(norm(f"{layer}/attention/output/LayerNorm"))
        shapes.update(dense(f"{layer}/intermediate/dense", hidden, inner))
        shapes.update(dense(f"{layer}/output/dense", inner, hidden))
        shapes.update(norm(f"{layer}/output/LayerNorm"))
    return shapes


def save_by_tensorflow_1(directory, values, name="bert_model.ckpt", **settings):
    """Writes variables as google-research/bert's trainers do: by a Saver, in a graph."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [tf.compat.v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(tf.compat.v1.global_variables_initializer())
        return tf.compat.v1.train.Saver(variables, **settings).save(session, str(directory / name))


def write_config(directory, **changes):
    values = {
        "vocab_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 20,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    }
    (directory / "bert_config.json").write_text(json.dumps(values | changes))


def publish(directory, pieces=PIECES, positions=20):
    """Fills a directory as Google publishes them, with what an optimizer leaves; returns the variables."""
    directory.mkdir()
    rng = np.random.default_rng(1)
    shapes = names_of_google(2, len(pieces), positions)
    values = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    slots = {
        f"{name}/{slot}": np.full_like(value, 9) for name, value in values.items() for slot in ("adam_m", "adam_v")
    }
    save_by_tensorflow_1(directory, {**values, **slots, "global_step": np.array(7, "int64")})
    write_config(directory, vocab_size=len(pieces), max_position_embeddings=positions)
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return values
