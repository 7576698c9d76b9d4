"""Finds a BERT's layers in the object graph of a Model Garden checkpoint or SavedModel.

The graph of a TensorFlow 2 checkpoint tells which attribute leads to which variable. A variable's key is the shortest
path to it at the time of saving (`encoder/layer_with_weights-4/...`, `variables/5/...`,
`masked_lm/embedding_table/...`), so it depends on what else was saved. Its places in the graph do not. Nothing in the
graph is executed.

Three generations of `official.nlp` wrote the graph differently. A layer is known by its place:

    encoder       `BertEncoderV2` names its layers; the functional `BertEncoder` numbers them (`layer_with_weights-0`)
                  and, since 2021, names them too. It may be anywhere in the graph.
    masked_lm     It is below the pre-trainer, or a separate item.
    pooler        If a head has its own pooler (`next_sentence.pooler_dense`), that was trained, not the encoder's;
                  Google's export to TF-Hub copies it too (export_tfhub_lib.py, `copy_pooler_dense_to_encoder`).
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import StoredTensor, listed
from keras_bert.formats.tensorflow_files import OBJECT_GRAPH, TensorFlowCheckpoint
from keras_bert.formats.weight_names import HEADS, MODEL_GARDEN, WeightSource, encoder_sources, head_sources

_MOST_BYTES = 2**21  # A graph has some 20,000 per layer. In memory its nodes take up to 90 times as much.
_LONGEST_WAY = 200
BLOCKS, _POOLER = "_transformer_layers", "_pooler_layer"
_NUMBER = re.compile("[0-9]{1,3}")  # BertConfig allows 1,000 layers.
_EMBEDDINGS = ("_embedding_layer", "_position_embedding_layer", "_type_embedding_layer", "_embedding_norm_layer")


@dataclasses.dataclass(eq=False, slots=True)  # Compared by identity, since the graph has cycles.
class Node:
    """An object in the graph.

    Attributes:
        children: Node by the name of the attribute.
        key: str, the checkpoint's key for a variable's value; None for other objects.
        name: str, the variable's own name, such as `"next_sentence/logits/kernel"`.
    """

    children: dict[str, "Node"] = dataclasses.field(default_factory=dict)
    key: str | None = None
    name: str = ""


def read_object_graph(stored: TensorFlowCheckpoint) -> Node:
    """Reads the graph and returns its root.

    Raises:
        InputError: there is no graph, or it is damaged.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    if OBJECT_GRAPH not in stored.shapes:
        raise InputError(
            f"{stored.path}: expected an object-based checkpoint of TensorFlow 2, found variables by name."
        )
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(stored.read_string(OBJECT_GRAPH, _MOST_BYTES))
        # Children may refer to later nodes, so all nodes come first.
        nodes = [_variable(message) for message in graph.nodes]
        for node, message in zip(nodes, graph.nodes, strict=True):
            node.children = {child.local_name: nodes[child.node_id] for child in message.children}
        return nodes[0]
    except (DecodeError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{stored.path}: its graph of objects is damaged. Fetch the checkpoint again.") from error


def _variable(message) -> Node:
    for attribute in message.attributes:
        if attribute.name == "VARIABLE_VALUE":
            return Node(key=attribute.checkpoint_key, name=attribute.full_name)
    return Node()


def walk(root: Node) -> Iterator[tuple[str, Node]]:
    """Yields each node once, nearest first, with the end of the path to it: names joined by slashes."""
    seen, waiting = {root}, collections.deque([("", root)])
    while waiting:
        way, node = waiting.popleft()
        yield way, node
        for name, child in node.children.items():
            if child not in seen:
                seen.add(child)
                waiting.append((f"{way}/{name}"[-_LONGEST_WAY:].removeprefix("/"), child))


def follow(node: Node, way: str) -> Node | None:
    """Returns the node at the end of a path like `"_attention_layer/_query_dense/kernel"`, or None."""
    for name in way.split("/"):
        if name not in node.children:
            return None
        node = node.children[name]
    return node


# === The graph of a BERT ===


def find_variables(stored: TensorFlowCheckpoint) -> dict[str, StoredTensor]:
    """Finds a BERT's variables in the graph of a checkpoint.

    Returns:
        StoredTensors by their names in `keras_bert.formats.weight_names`; the `source` is the checkpoint's key.

    Raises:
        InputError: the graph has no encoder or several, or one that lacks variables or is not a BERT.
    """
    root = read_object_graph(stored)
    encoder = _find_encoder(root, stored.path)
    layers = _named_layers(encoder)
    num_layers = len(layers.children[BLOCKS].children)
    names = [name for source in all_sources(num_layers) for name in source.names]
    _check_no_others(stored, encoder, {_find_variable(layers, name) for name in names})
    layers.children.update(_find_heads(root))
    output = follow(layers, "masked_lm/embedding_table")
    if output not in (None, follow(layers, "_embedding_layer/embeddings")):
        raise InputError(f"{stored.path}: {output.key}: expected the token table in the masked-LM head, found another.")
    nodes = {name: _find_variable(layers, name) for name in names}
    keys = {name: node.key for name, node in nodes.items() if node is not None and node.key in stored.shapes}
    lacking = [name for name in names if name not in keys and name.startswith((*_EMBEDDINGS, BLOCKS))]
    if lacking:
        raise InputError(f"{stored.path}: its encoder lacks {', '.join(lacking[:4])}. Expected a whole BERT.")
    return {name: stored.tensor(key) for name, key in keys.items()}


def _find_variable(layers: Node, name: str) -> Node | None:
    # Before 2021 the output layer of a Transformer layer's attention was beside the attention layer.
    return follow(layers, name) or follow(layers, name.replace("_attention_layer/_output", "_attention_output"))


def all_sources(num_layers: int) -> list[WeightSource]:
    """Lists the sources of every variable of an encoder and of all heads."""
    return encoder_sources(MODEL_GARDEN, num_layers) + head_sources(MODEL_GARDEN, *HEADS)


def _find_encoder(root: Node, path: str) -> Node:
    # Stops at the second one, since thousands could share one long list of layers.
    encoders = list(itertools.islice(((way, node) for way, node in walk(root) if _blocks(node)), 2))
    if len(encoders) != 1:
        raise InputError(
            f"{path}: expected one encoder of official.nlp in its graph of objects, found "
            f"{listed([way for way, _ in encoders]) or 'none'}, and at the top {', '.join(root.children)[:200]}."
        )
    return encoders[0][1]


def _blocks(node: Node) -> list[Node]:
    """Lists the Transformer layers of an encoder in order; the list is empty for any other node."""
    layers = node.children.get(BLOCKS, Node()).children
    if "_attention_layer" in layers.get("0", Node()).children:
        in_order = [layers[name] for name in sorted(filter(_NUMBER.fullmatch, layers), key=int)]
    else:
        in_order = _numbered(node)
    return [layer for layer in in_order if "_attention_layer" in layer.children]


def _numbered(node: Node) -> list[Node]:
    """Lists the layers of a functional model that have weights, in order."""
    matches = [re.match(r"layer_with_weights-(\d{1,4})$", name) for name in node.children]
    in_order = sorted(filter(None, matches), key=lambda match: int(match[1]))
    return [node.children[match[0]] for match in in_order]


def _named_layers(encoder: Node) -> Node:
    """Returns an encoder's layers under today's names: four embeddings, the Transformer layers, the pooler."""
    blocks = dict.fromkeys(_blocks(encoder))
    others = [layer for layer in _numbered(encoder) if layer not in blocks]
    layers = dict(zip((*_EMBEDDINGS, _POOLER), others, strict=False))
    layers |= {name: encoder.children[name] for name in (*_EMBEDDINGS, _POOLER) if name in encoder.children}
    layers[BLOCKS] = Node({str(index): block for index, block in enumerate(blocks)})
    return Node(layers)


def _find_heads(root: Node) -> dict[str, Node]:
    """Finds the layers of the heads, by their names in `keras_bert.formats.weight_names`, and a head's own pooler."""
    layers: dict[str, Node] = {}
    seen: set[Node] = set()
    for _, node in walk(root):
        children = node.children
        if "layer_norm" in children.get("masked_lm", Node()).children:
            layers.setdefault("masked_lm", children["masked_lm"])
            if "classification" in children:  # The older pre-trainer, `BertPretrainer`.
                layers.setdefault("next_sentence", _logits(children["classification"]))
        if "span_labeling" in children:
            layers.setdefault("question_answering", _logits(children["span_labeling"]))
        if "classifier" in children:
            of_tokens = "kernel" in children["classifier"].children
            head = "token_classification" if of_tokens else "classification"
            _add_head(layers, head, children["classifier"])
        heads = children.get("classification_heads", Node())
        for head in () if heads in seen else heads.children.values():
            if "next_sentence" in _logits(head).children.get("kernel", Node()).name:
                _add_head(layers, "next_sentence", head)
        seen.add(heads)  # Thousands of nodes may share one long list.
        if "next_sentence.pooler_dense" in children:
            layers.setdefault(_POOLER, children["next_sentence.pooler_dense"])
    return layers


def _add_head(layers: dict[str, Node], head: str, node: Node) -> None:
    layers.setdefault(head, _logits(node))
    if "dense" in node.children:
        layers.setdefault(_POOLER, node.children["dense"])


def _logits(head: Node) -> Node:
    """Returns the last layer of a head: its `out_proj`, the one layer of a functional model, or the head itself."""
    return head.children.get("out_proj") or head.children.get("layer_with_weights-0") or head


def _check_no_others(stored: TensorFlowCheckpoint, encoder: Node, known: set[Node | None]) -> None:
    """Refuses an encoder with variables that a BERT lacks, since it computes something else."""
    # Skips an optimizer or a save counter.
    layers = {name: layer for name, layer in encoder.children.items() if name.startswith(("_", "layer"))}
    for _, node in walk(Node(layers)):
        if node.key in stored.shapes and node not in known:
            raise InputError(f"{stored.path}: found {node.key}. Expected the variables of a BERT, no other encoder.")
