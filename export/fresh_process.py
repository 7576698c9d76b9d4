"""Asks a SavedModel in a process that has TensorFlow and tensorflow_text, and nothing of this project.

Run as a script: `python -I fresh_process.py DIRECTORY REQUESTS ANSWERS [FOLDER ...]`. `export/other_process.py`
describes the two files. `-I` cuts the process off from the working directory, PYTHONPATH and the user's own packages.
It imports libraries from the folders.
"""

import sys

_PROJECT = ("keras_bert", "tasks", "export")


def block_project() -> None:
    """Makes every import of this project fail, even of a copy installed beside TensorFlow."""
    for name in _PROJECT:
        sys.modules[name] = None


def main() -> None:
    """Reads requests, writes answers."""
    _, directory, request_file, answer_file, *folders = sys.argv
    sys.path[:0] = folders
    block_project()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
    from tensorflow.core.framework import graph_pb2

    loaded = tf.saved_model.load(directory)
    answers = graph_pb2.GraphDef()
    with open(request_file, "rb") as file:
        requests = graph_pb2.GraphDef.FromString(file.read())
    for request in requests.node:
        function = loaded.signatures[request.op]
        specs = function.structured_input_signature[1]
        inputs = {
            name: tf.constant(tf.make_ndarray(value.tensor), specs[name].dtype) for name, value in request.attr.items()
        }
        answer = answers.node.add(op=request.op)
        for name, value in function(**inputs).items():
            answer.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value.numpy()))
    with open(answer_file, "wb") as file:
        file.write(answers.SerializeToString())


if __name__ == "__main__":
    main()
