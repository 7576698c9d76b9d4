"""Answers from a SavedModel in a process that knows TensorFlow and tensorflow_text, and nothing of this project.

Run as a script: `python -I fresh_process.py DIRECTORY [FOLDER ...] < requests > answers`. `-I` cuts it off from the
working directory, PYTHONPATH and the user's own packages; the folders are where libraries are imported from.
Standard input is JSON, a list of `{"signature": name, "inputs": {name: base64 of the serialized TensorProto}}`;
standard output is the list of the answers, `{name: base64}` each, between two marker lines of its own.
"""

import base64
import json
import sys

MARKER = "----- answers -----"
_PROJECT = ("keras_bert", "tasks", "export")


def block_project() -> None:
    """Makes every import of this project fail, also of a copy installed beside TensorFlow."""
    for name in _PROJECT:
        sys.modules[name] = None


def main() -> None:
    """Reads requests, writes answers."""
    sys.path[:0] = sys.argv[2:]
    block_project()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    loaded = tf.saved_model.load(sys.argv[1])
    answers = []
    for request in json.load(sys.stdin):
        function = loaded.signatures[request["signature"]]
        specs = function.structured_input_signature[1]
        inputs = {
            name: tf.io.parse_tensor(base64.b64decode(value), specs[name].dtype)
            for name, value in request["inputs"].items()
        }
        outputs = function(**inputs)
        answers.append(
            {
                name: base64.b64encode(tf.io.serialize_tensor(value).numpy()).decode("ascii")
                for name, value in outputs.items()
            }
        )
    print(MARKER, json.dumps(answers), MARKER, sep="\n", flush=True)


if __name__ == "__main__":
    main()
