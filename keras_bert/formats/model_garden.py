"""Reads Model Garden's TensorFlow 2 checkpoints, of the encoders and pre-trainers of `official.nlp`.

The sizes come from `bert_config.json`, else from an experiment's `params.yaml`, else from the shapes, which show the
number of heads, since attention kernels are (H, N, D). In Model Garden `"gelu"` is the tanh form
(official/modeling/activations/gelu.py), and LayerNorm's epsilon is 1e-12.
"""

import contextlib
import os
from collections.abc import Iterator

from keras_bert.config import FOREIGN_TO_OURS, SAME_ACTIVATIONS, BertConfig, find_activation
from keras_bert.errors import InputError, shown
from keras_bert.files import read_lines
from keras_bert.formats import google, tensorflow_files
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, collect, wrong_shape
from keras_bert.formats.model_garden_graph import BLOCKS, all_sources, find_variables
from keras_bert.formats.tensorflow_files import TensorFlowCheckpoint, find_prefix, find_vocabulary, mentions

PARAMS_FILE = "params.yaml"
_MOST_PARAMS = 2**18  # Bytes; an experiment's settings take 5,000. The parser takes a second for 50,000.
_ACTIVATIONS = {"gelu": "gelu_tanh", **SAME_ACTIVATIONS, "identity": "linear"}
# The fields of Model Garden's BertEncoderConfig (official/nlp/configs/encoders.py): three of its names are its own.
_OWN_NAMES = {"num_layers": "num_layers", "dropout_rate": "dropout", "attention_dropout_rate": "attention_dropout"}
_PARAMS = FOREIGN_TO_OURS | _OWN_NAMES


def matches(path: str) -> bool:
    prefix = find_prefix(path)
    return prefix is not None and mentions(prefix, tensorflow_files.OBJECT_GRAPH)


def read_config(path: str) -> BertConfig:
    return _written_config(path) or config_of_shapes(find_variables(TensorFlowCheckpoint(find_prefix(path))))


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    prefix = find_prefix(path)
    variables = find_variables(TensorFlowCheckpoint(prefix))
    config = _written_config(path) or config_of_shapes(variables)
    yield Checkpoint("model_garden", path, config, to_our_names(variables, config, prefix))


def read_tokenizer(path: str) -> dict | None:
    vocabulary = find_vocabulary(path) if matches(path) else None
    return None if vocabulary is None else {"vocabulary": vocabulary, "lowercase": None}


def to_our_names(variables: dict[str, StoredTensor], config: BertConfig, file: str) -> dict[str, StoredTensor]:
    """Returns the result of `find_variables` for a file under our names.

    Raises:
        InputError: the configuration has another number of layers, or another size or number of attention heads.
    """
    queries = _queries(variables)
    if config.num_layers != len(queries):
        raise InputError(f"{file}: expected {config.num_layers} layers by the configuration, found {len(queries)}.")
    expected = (config.hidden_dim, config.num_heads, config.hidden_dim // config.num_heads)
    for query in queries:
        if query.shape != expected:
            raise wrong_shape(f"{file}: {query.source}", expected, "the configuration", query.shape)
    return collect(all_sources(config.num_layers), variables, file)[0]


def _queries(variables: dict[str, StoredTensor]) -> list[StoredTensor]:
    """Returns the query kernel of each layer, (H, N, D)."""
    return [tensor for name, tensor in variables.items() if name.endswith("_query_dense/kernel")]


def config_of_shapes(variables: dict[str, StoredTensor], activation: str = "gelu_tanh") -> BertConfig:
    """Returns the configuration that follows from the shapes of the variables."""
    queries = _queries(variables)
    _, num_heads, head_dim = queries[0].shape
    return BertConfig(
        vocabulary_size=variables["_embedding_layer/embeddings"].shape[0],
        num_layers=len(queries),
        num_heads=num_heads,
        hidden_dim=num_heads * head_dim,
        intermediate_dim=variables[f"{BLOCKS}/0/_intermediate_dense/kernel"].shape[1],
        activation=activation,
        max_sequence_length=variables["_position_embedding_layer/embeddings"].shape[0],
        num_segments=variables["_type_embedding_layer/embeddings"].shape[0],
    )


def _written_config(path: str) -> BertConfig | None:
    directory = tensorflow_files.directory_of(path)
    if os.path.isfile(os.path.join(directory, google.CONFIG_FILE)):
        return google.read_config(path)
    file = os.path.join(directory, PARAMS_FILE)
    return _read_params(file) if os.path.isfile(file) else None


def _read_params(file: str) -> BertConfig:
    """Reads the encoder's part of an experiment's settings, which `official.core` writes beside its checkpoints."""
    import yaml

    # The merge key `<<` copies a mapping, so that a few lines could make a million copies.
    loader = type("_Loader", (yaml.SafeLoader,), {"flatten_mapping": lambda self, node: None})
    text = "\n".join(line for _, line in read_lines(file, _MOST_PARAMS))
    try:
        encoder = yaml.load(text, loader)["task"]["model"]["encoder"]
        kind, sizes = encoder["type"], encoder[encoder["type"]]
        values = {ours: sizes[theirs] for theirs, ours in _PARAMS.items() if sizes.get(theirs) is not None}
    except (yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: expected task.model.encoder, the settings of a Model Garden experiment.") from error
    if kind not in ("bert", "bert_v2") or sizes.get("norm_first"):
        raise InputError(
            f"{file}: expected a BERT encoder, found {shown(kind)}, norm_first={shown(sizes.get('norm_first'))}."
        )
    activation = find_activation(file, "hidden_activation", sizes.get("hidden_activation", "gelu"), _ACTIVATIONS)
    try:
        return BertConfig(**values, activation=activation)
    except (ValueError, TypeError) as error:  # Python refuses to print numbers of thousands of digits.
        raise InputError(f"{file}: {error}") from error
