"""Runs a SavedModel in a process that has TensorFlow and tensorflow_text, and nothing of this project.

Run as a script: `python -I child.py DIRECTORY REQUESTS ANSWERS [FOLDER ...]`. `export/verification/runner.py`
describes the two files. `-I` cuts the process off from the working directory, PYTHONPATH and the user's own packages;
it imports libraries from the folders instead.
"""

import pathlib
import sys


def block_imports() -> None:
    """Makes every import of this project fail, even if it is installed beside TensorFlow.

    Those of packages that TensorFlow imports where they are installed fail, too, as in `tasks.flags`.
    """
    for name in ("keras_bert", "tasks", "export", "cv2", "jax", "matplotlib", "pandas", "sklearn"):
        sys.modules[name] = None


def main() -> None:
    """Reads requests and writes their answers."""
    _, directory, request_file, answer_file, *folders = sys.argv
    sys.path[:0] = folders
    block_imports()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
    from tensorflow.core.framework import graph_pb2

    loaded = tf.saved_model.load(directory)
    answers = graph_pb2.GraphDef()
    requests = graph_pb2.GraphDef.FromString(pathlib.Path(request_file).read_bytes())
    for request in requests.node:
        function = loaded.signatures[request.op]
        specs = function.structured_input_signature[1]
        arrays = {name: tf.make_ndarray(value.tensor) for name, value in request.attr.items()}
        inputs = {name: tf.constant(array, specs[name].dtype) for name, array in arrays.items()}
        answer = answers.node.add(op=request.op)
        for name, value in function(**inputs).items():
            answer.attr[name].tensor.CopyFrom(tf.make_tensor_proto(value.numpy()))
    pathlib.Path(answer_file).write_bytes(answers.SerializeToString())


if __name__ == "__main__":
    main()
