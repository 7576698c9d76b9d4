"""The architecture of a BERT, under KerasHub's names. Only this module translates the names of foreign JSON files."""

import dataclasses
import math
import os

from keras_bert.errors import InputError, shown
from keras_bert.files import read_object, write_json

ACTIVATIONS = ("gelu_tanh", "gelu", "relu", "tanh", "linear")
ATTENTIONS = ("bidirectional", "left_to_right")
LAYOUTS = ("rectangular", "unpadded", "packed")
POOLINGS = ("mean", "cls", "max")

_NAMES = (  # Ours; google-research/bert's and Hugging Face's for BERT; Hugging Face's for DistilBERT.
    ("vocabulary_size", "vocab_size", "vocab_size"),
    ("num_layers", "num_hidden_layers", "n_layers"),
    ("num_heads", "num_attention_heads", "n_heads"),
    ("hidden_dim", "hidden_size", "dim"),
    ("intermediate_dim", "intermediate_size", "hidden_dim"),
    ("activation", "hidden_act", "activation"),
    ("dropout", "hidden_dropout_prob", "dropout"),
    ("attention_dropout", "attention_probs_dropout_prob", "attention_dropout"),
    ("max_sequence_length", "max_position_embeddings", "max_position_embeddings"),
    ("initializer_range", "initializer_range", "initializer_range"),
    ("num_segments", "type_vocab_size", None),
    ("layer_norm_epsilon", "layer_norm_eps", None),
)
FOREIGN_TO_OURS = {theirs: ours for ours, theirs, _ in _NAMES}
_DISTILBERT_TO_OURS = {theirs: ours for ours, _, theirs in _NAMES if theirs}
_NUM_REQUIRED = 5  # Names that a configuration must have: the first of the table.
_REQUIRED_FOREIGN = tuple(FOREIGN_TO_OURS)[:_NUM_REQUIRED]

# "gelu" is the tanh form in google-research/bert (modeling.py:264) and the erf form at Hugging Face.
SAME_ACTIVATIONS = {"relu": "relu", "tanh": "tanh", "linear": "linear"}
_ACTIVATION_AT_GOOGLE = {"gelu": "gelu_tanh", **SAME_ACTIVATIONS}
_ACTIVATION_AT_HUGGING_FACE = {
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu"},
    **SAME_ACTIVATIONS,
}
_HUGGING_FACE_MARKS = ("model_type", "architectures", "transformers_version", "_name_or_path")
# With other values, Hugging Face's code does not compute BERT's encoder.
_AT_BERT = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
_AT_ELECTRA = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
_NO_BERT = "This is no BERT encoder."
# Hugging Face's model types that compute BERT's encoder, with the activation of the pooler, the dense layer between
# [CLS] and a classifier's logits. In DistilBERT and ELECTRA it belongs to the heads, not to the encoder.
_POOLERS = {"bert": "tanh", "distilbert": "relu", "electra": "gelu"}

# Limits on sizes: memory is allocated from the configuration before the weights are compared with it.
_MOST = {"num_layers": 1000, "max_sequence_length": 2**20}  # DeepNet (Wang et al. 2022) has 1000 layers.
_MOST_OTHERS = 2**31 - 1  # Ids are int32.


def is_foreign(values) -> bool:
    """Returns whether parsed JSON is a configuration under google-research/bert's or Hugging Face's names."""
    return isinstance(values, dict) and any(name in values for name in (*_HUGGING_FACE_MARKS, *_REQUIRED_FOREIGN))


def find_activation(file: str, key: str, value, activations: dict[str, str]) -> str:
    """Returns our name for a foreign activation, the `value` of `key` in a file; raises InputError if it is unknown."""
    if not isinstance(value, str) or value not in activations:
        raise InputError(f"{file}: unknown {key} {shown(value)}. Expected one of {', '.join(activations)}.")
    return activations[value]


def _check_kind(file: str, values: dict) -> str:
    """Returns the `model_type` of a foreign configuration; raises InputError if it does not describe a BERT encoder."""
    model_type = values.get("model_type") or "bert"
    expected = {**_AT_BERT, **(_AT_ELECTRA if model_type == "electra" else {})}
    if not isinstance(model_type, str) or model_type not in _POOLERS:
        kinds = ", ".join(_POOLERS)
        raise InputError(f"{file}: expected one of {kinds} as model_type, found {shown(model_type)}. {_NO_BERT}")
    for name, right in expected.items():
        if values.get(name) not in (None, right):
            raise InputError(f"{file}: expected {name} {right!r}, found {shown(values[name])}. {_NO_BERT}")
    sizes = [values.get(name, default) for name, default in (("embedding_size", 128), ("hidden_size", 256))]
    if model_type == "electra" and sizes[0] != sizes[1]:  # The defaults are transformers'.
        raise InputError(
            f"{file}: expected an ELECTRA whose embedding_size is its hidden_size, found {shown(sizes[0])} and "
            f"{shown(sizes[1])}, as generators and the small discriminator have. {_NO_BERT}"
        )
    return model_type


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and constants of a BERT encoder (Devlin et al. 2018, section 3).

    Attributes:
        vocabulary_size: int, number of WordPieces.
        num_layers: int, L, number of encoder layers.
        num_heads: int, A, attention heads; divides `hidden_dim`.
        hidden_dim: int, H, size of a token's representation.
        intermediate_dim: int, inner size of the feed-forward block (4H in the paper).
        activation: str, `"gelu_tanh"` (google-research/bert), `"gelu"` (the erf form, Hugging Face), `"relu"`,
            `"tanh"` or `"linear"`. Weights need the activation that they were trained with.
        pooler_activation: str, one of the values of `activation`: `"tanh"` in the paper, `"relu"` in the heads of
            DistilBERT, `"gelu"` in those of ELECTRA.
        dropout: float in [0, 1), on embeddings and before each residual sum.
        attention_dropout: float in [0, 1) or None, on attention probabilities; None: the same as `dropout`.
        max_sequence_length: int, rows of the position table.
        num_segments: int, rows of the segment table.
        layer_norm_epsilon: float.
        initializer_range: float, standard deviation of the truncated normal that initializes kernels and tables.
        attention: str, `"bidirectional"`, or `"left_to_right"` for the paper's ablation (section 5.1, table 5), in
            which no token attends to later ones.

    Raises:
        InputError: a value is out of its range.
    """

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    activation: str = "gelu_tanh"
    dropout: float = 0.1
    attention_dropout: float | None = None
    max_sequence_length: int = 512
    num_segments: int = 2
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    attention: str = "bidirectional"
    pooler_activation: str = "tanh"

    def __post_init__(self):
        for name in (field.name for field in dataclasses.fields(self) if field.type is int):
            value, most = getattr(self, name), _MOST.get(name, _MOST_OTHERS)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"`{name}` must be a positive integer. Received: {name}={shown(value)}")
            if value > most:
                raise InputError(f"`{name}` must be at most {most:,}. Received: {name}={value:,}")
        num_heads, hidden_dim = self.num_heads, self.hidden_dim
        if hidden_dim % num_heads:
            raise InputError(f"`num_heads` must divide `hidden_dim`. Received: {num_heads=}, {hidden_dim=}")
        known_words = {"activation": ACTIVATIONS, "pooler_activation": ACTIVATIONS, "attention": ATTENTIONS}
        for name, known in known_words.items():
            if getattr(self, name) not in known:
                raise InputError(f"`{name}` must be one of {', '.join(known)}. Received: {shown(getattr(self, name))}")
        attention_dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
        for name, value in (("dropout", self.dropout), ("attention_dropout", attention_dropout)):
            if not _is_number(value) or not 0 <= value < 1:
                raise InputError(f"`{name}` must lie in [0, 1). Received: {name}={shown(value)}")
        for name in ("layer_norm_epsilon", "initializer_range"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf:
                raise InputError(f"`{name}` must be positive. Received: {name}={shown(value)}")

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the encoder with its pooler (Devlin et al. 2018, section 3)."""
        hidden, inner = self.hidden_dim, self.intermediate_dim
        norm, square = 2 * hidden, hidden * hidden + hidden
        tables = (self.vocabulary_size + self.max_sequence_length + self.num_segments) * hidden
        layer = 4 * square + 2 * hidden * inner + inner + hidden + 2 * norm
        return tables + norm + self.num_layers * layer + square

    def check_memory(self) -> None:
        """Raises InputError if the weights, in float32, would take more memory than this machine has."""
        if not hasattr(os, "sysconf"):  # On Windows.
            return
        needed, there = 4 * self.num_parameters, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > there:
            raise InputError(
                f"a model of these sizes takes {needed:,} bytes, and this machine has {there:,}. Choose smaller ones."
            )

    @classmethod
    def from_json_file(cls, path: str, at_hugging_face: bool | None = None) -> "BertConfig":
        """Reads google-research/bert's `bert_config.json` or Hugging Face's `config.json`.

        `"gelu"` means the tanh form in the former and the erf form in the latter. DistilBERT has BERT's encoder, and so
        has an ELECTRA whose embeddings are as wide as its layers.

        Args:
            path: path of the file.
            at_hugging_face: bool, whether the file is Hugging Face's. None: decide by the keys that only Hugging Face
                writes, such as `model_type`.

        Raises:
            InputError: the file cannot be read, a required key is missing, a value is out of range, the activation is
                unknown, or the model is not a BERT encoder.
        """
        values = read_object(path)
        model_type = _check_kind(path, values)
        names = _DISTILBERT_TO_OURS if model_type == "distilbert" else FOREIGN_TO_OURS
        missing = [name for name in list(names)[:_NUM_REQUIRED] if name not in values]
        if missing:
            raise InputError(f"{path}: not a BERT configuration, it lacks {', '.join(missing)}.")
        if at_hugging_face is None:
            at_hugging_face = any(mark in values for mark in _HUGGING_FACE_MARKS)
        ours = {ours: values[theirs] for theirs, ours in names.items() if theirs in values}
        activations = _ACTIVATION_AT_HUGGING_FACE if at_hugging_face else _ACTIVATION_AT_GOOGLE
        key = next(theirs for theirs, ours in names.items() if ours == "activation")
        ours["activation"] = find_activation(path, key, values.get(key, "gelu"), activations)
        try:
            return cls(**ours, pooler_activation=_POOLERS[model_type])
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    def to_json_file(self, path: str) -> None:
        """Writes `to_google()`, which `from_json_file` reads; raises InputError as `to_google` does."""
        write_json(path, self.to_google())

    def to_google(self) -> dict:
        """Returns the content of google-research/bert's `bert_config.json`.

        Google's code has no erf GELU. It is written as `"gelu_python"`, a Hugging Face name for it: Google's code
        refuses that name (modeling.py:314) instead of computing the tanh form, and Hugging Face's and ours accept it.

        Raises:
            InputError: `attention` is `"left_to_right"`, which neither format can express.
        """
        if self.activation == "gelu":
            return {"model_type": "bert", **self._to_foreign(_ACTIVATION_AT_HUGGING_FACE), "hidden_act": "gelu_python"}
        return self._to_foreign(_ACTIVATION_AT_GOOGLE)

    def to_hugging_face(self) -> dict:
        """Returns the encoder's part of Hugging Face's `config.json`.

        The `model_type` is `"electra"` if the pooler's activation is that of ELECTRA's heads, otherwise `"bert"`.

        Raises:
            InputError: as `to_google`.
        """
        is_electra = self.pooler_activation == _POOLERS["electra"]
        own = {"model_type": "electra", "embedding_size": self.hidden_dim} if is_electra else {"model_type": "bert"}
        return {**own, **self._to_foreign(_ACTIVATION_AT_HUGGING_FACE)}

    def _to_foreign(self, activations: dict[str, str]) -> dict:
        if self.attention != "bidirectional":
            raise InputError(
                f"google-research/bert's and Hugging Face's BERT attend both ways. Received: attention="
                f"{self.attention!r}. Keep such a model in our own format."
            )
        values = {theirs: getattr(self, ours) for theirs, ours in FOREIGN_TO_OURS.items()}
        values["hidden_act"] = next(name for name, ours in activations.items() if ours == self.activation)
        if self.attention_dropout is None:
            values["attention_probs_dropout_prob"] = self.dropout
        return values

    def to_dict(self) -> dict:
        """Returns the fields by name, as `BertBackbone`'s constructor takes them."""
        return dataclasses.asdict(self)

    def replace(self, **overrides) -> "BertConfig":
        """Returns a copy with some fields changed; raises InputError if a value is out of range."""
        return dataclasses.replace(self, **overrides)
