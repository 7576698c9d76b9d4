"""Reads the graph of objects in a TensorFlow 2 checkpoint or SavedModel: which attribute leads to which variable.

A variable's key is the shortest path to it at the time of saving (`encoder/layer_with_weights-4/...`,
`variables/5/...`, `masked_lm/embedding_table/...`), so it depends on what else was saved. Its places in the graph do
not. Nothing in the graph is executed.
"""

import collections
import dataclasses
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.formats.tensorflow_files import OBJECT_GRAPH, TensorFlowCheckpoint

_MOST_BYTES = 2**21  # A graph has some 20,000 a layer. In memory its nodes take up to 90 times as much.
_LONGEST_WAY = 200


@dataclasses.dataclass(eq=False, slots=True)  # Compared by identity, since the graph has cycles.
class Node:
    """An object in the graph.

    Attributes:
        children: Node by the name of the attribute.
        key: str, the checkpoint's key of a variable's value; None for other objects.
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
