"""A tiny encoder's checkpoint in each of the formats that are read."""

import os
import pickle
import shutil
import zipfile

import tensorflow as tf
from toy_hugging_face import save_tensorflow

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.formats import google, hugging_face, keras_hub, keras_preset
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.formats.weight_names import HUGGING_FACE, MODEL_GARDEN, encoder_sources
from keras_bert.models.text_classifier import BertTextClassifier
from keras_bert.models.text_embedder import BertTextEmbedder

TINY = {"vocabulary_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
TINY["max_sequence_length"] = 8
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijk"]
_TOKENIZER = {"vocabulary": PIECES, "lowercase": True}


def checkpoint_of(model, source="the model", labels=None):
    """The weights of a backbone, or of a model that holds one, as a checkpoint to write in another format."""
    backbone = getattr(model, "backbone", model)
    tensors = {
        variable.path: StoredTensor(f"{source}: {variable.path}", tuple(variable.shape), variable.numpy)
        for variable in model.weights
    }
    own = {name: getattr(model, f"masked_lm_{name}", None) for name in ("activation", "layer_norm_epsilon")}
    masked_lm = {name: value for name, value in own.items() if value is not None}
    # All of them for an embedder, the first for a classifier.
    names = ("pooling", "normalize", "embedding_activation", "prompts", "default_prompt", "include_prompt")
    task = {name: getattr(model, name) for name in names if hasattr(model, name)}
    if task:
        task |= {
            "class_name": type(model).__name__,
            "sequence_length": getattr(model.preprocessor, "sequence_length", None),
        }
    return Checkpoint("model", source, backbone.bert_config, tensors, labels, masked_lm, {"task": task})


def make(root, *names):
    """Fills `root` with an encoder in these formats, of `MAKERS`; only to be read and copied."""
    backbone = BertBackbone(**TINY)
    for name in names:
        MAKERS[name](root, root / name, backbone)
    return root


def kinds(path):
    """What can be read of a checkpoint that `make` wrote."""
    return {"task": ["task"], "sentence_transformers": ["embedder", "tokenizer"]}.get(
        path.name, ["weights", "tokenizer"]
    )


def questions(root):
    """What must be read of each, as `hostile_reader.read` takes it."""
    return [(kind, path) for path in sorted(root.iterdir()) for kind in kinds(path)]


def _write(module):
    return lambda root, path, backbone: module.write(str(path), checkpoint_of(backbone), _TOKENIZER)


def _foreign(backbone, column):
    sources = encoder_sources(column, TINY["num_layers"])
    return {name: value for _, name, value in checkpoint_of(backbone).foreign_tensors(sources)}


def _write_vocabulary(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(PIECES) + "\n")


# === PyTorch's ===


def pickled(value):
    """A value in pickle's words, to stand among others."""
    return pickle.dumps(value, 2)[2:-1]


def torch_tensor(count, shape, strides, offset=0):
    """What makes a tensor of a storage of `count` numbers."""
    storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu%stQ"
    numbers = [pickled(number) for number in (count, offset, shape, strides, False)]
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + storage % numbers[0] + b"".join(numbers[1:]) + b"}tR"


def torch_zip(path, content, storage):
    """Writes a `pytorch_model.bin` of a pickle and the numbers of its one storage."""
    with zipfile.ZipFile(path, "w") as file:
        for name, data in {"data.pkl": content, "version": b"3\n", "data/0": storage}.items():
            file.writestr(f"archive/{name}", data)


def torch_pickle(backbone):
    """The pickle of an encoder whose tensors lie in one storage, and the storage."""
    values = _foreign(backbone, HUGGING_FACE)
    content, offset, count = b"\x80\x02}(", 0, sum(value.size for value in values.values())
    for name, value in values.items():
        strides = tuple(stride // 4 for stride in value.astype("float32", "C").strides)
        content += pickled(name) + torch_tensor(count, value.shape, strides, offset)
        offset += value.size
    return content + b"u.", b"".join(value.astype("float32").tobytes() for value in values.values())


def _write_torch(root, path, backbone):
    _write(hugging_face)(root, path, backbone)
    os.remove(path / "model.safetensors")
    torch_zip(path / "pytorch_model.bin", *torch_pickle(backbone))


def _write_tensorflow(root, path, backbone):
    _write(hugging_face)(root, path, backbone)
    os.remove(path / "model.safetensors")
    save_tensorflow({f"bert.{name}": value for name, value in _foreign(backbone, HUGGING_FACE).items()}, path)


# === TensorFlow's objects, and archives ===


def _modules(backbone):
    """The objects of Model Garden's encoder, by their places in the graph."""
    root = tf.Module()
    for name, value in _foreign(backbone, MODEL_GARDEN).items():
        *way, variable = name.split("/")
        module = root
        for part in way:
            if part not in vars(module):
                setattr(module, part, tf.Module())
            module = getattr(module, part)
        setattr(module, variable, tf.Variable(value))
    return root


def _write_model_garden(root, path, backbone):
    tf.train.Checkpoint(encoder=_modules(backbone)).save(str(path / "bert_model.ckpt"))
    _write_vocabulary(path / "vocab.txt")


def _write_tf_hub(root, path, backbone):
    module = _modules(backbone)
    module.do_lower_case = tf.Variable(True)
    tf.saved_model.save(module, str(path))
    _write_vocabulary(path / "assets" / "vocab.txt")


def _write_keras_file(root, path, backbone):
    path.mkdir()
    _write(keras_preset)(root, path / "preset", backbone)
    backbone.save(path / "model.keras")
    shutil.move(path / "preset" / "assets", path / "assets")
    shutil.move(path / "preset" / "tokenizer.json", path / "tokenizer.json")
    shutil.rmtree(path / "preset")


def _write_task(root, path, backbone):
    BertTextClassifier(backbone, num_classes=2, labels=["bad", "good"]).save_to_preset(str(path))


def _write_embedder(root, path, backbone):
    embedder = BertTextEmbedder(backbone, embedding_dim=4, embedding_activation="tanh")
    hugging_face.write(str(path), checkpoint_of(embedder), _TOKENIZER)


MAKERS = {
    "task": _write_task,
    "sentence_transformers": _write_embedder,
    "keras_preset": _write(keras_preset),
    "keras_hub": _write(keras_hub),
    "keras_file": _write_keras_file,
    "hugging_face": _write(hugging_face),
    "torch": _write_torch,
    "tensorflow": _write_tensorflow,
    "google": _write(google),
    "model_garden": _write_model_garden,
    "tf_hub": _write_tf_hub,
    "archive": lambda root, path, backbone: shutil.make_archive(str(path), "gztar", root / "google"),
    "zip": lambda root, path, backbone: shutil.make_archive(str(path), "zip", root / "hugging_face"),
}
