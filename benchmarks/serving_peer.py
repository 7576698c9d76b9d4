"""Serves one classifier in a process of its own for benchmarks/serving_speed.py: texts in, timed probabilities out.

    python -I benchmarks/serving_peer.py KIND DIRECTORY < requests > answers

With `-I`, nothing of this project is imported, except for bert-serve and the C++ program. Each line of standard input
is a JSON list of texts. Each answer is a line `{"seconds": ..., "probabilities": [...]}` with the time from the texts
to the probabilities. KIND:

    saved_model         DIRECTORY is an exported version; uses tensorflow and tensorflow_text alone
    bert_serve          the same by bert-serve's own code, without its protocols
    bert_serve_bfloat16 the same; DIRECTORY has its products in bfloat16
    bert_serve_tensorflow, bert_serve_onnx  as bert_serve, with --runtime=tensorflow and --runtime=onnxruntime
    bert_serve_int8     the same with --precision=int8
    cc                  the exported version in the C++ program on TensorFlow Serving's loader, `export/verification/cc`
    onnxruntime         model.onnx and tokenizer.json: Hugging Face tokenizers, padded to the longest of the batch
    onnxruntime_int8    the same with model.int8.onnx
    openvino_int8       the same with model.xml, by OpenVINO
    keras_hub           a preset of KerasHub's classifier with its default, padded to 512 tokens
    keras_hub_128       the same with sequence_length=128
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

MARKER = "answer "
_MAX_TOKENS = 128
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def saved_model(directory: str) -> Callable:
    """Loads the exported graph as any TensorFlow client does."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    signature = tf.saved_model.load(directory).signatures["serving_default"]
    return lambda texts: signature(text=tf.constant(texts))["probabilities"].numpy()


def bert_serve(directory: str, runtime: str = "auto", int8: bool = False) -> Callable:
    """Loads the exported graph as bert-serve does."""
    sys.path.insert(0, _ROOT)
    import numpy as np

    from export.server.servable import ServedModel
    from export.server.server_settings import ServerSettings

    settings = ServerSettings(runtime=runtime, precision="int8" if int8 else "float32")
    model = ServedModel(directory, "peer", 1, settings)

    def answer(texts):
        texts = np.array([text.encode() for text in texts], object)
        return model.run("serving_default", {"text": texts})["probabilities"]

    return answer


def cc(directory: str) -> Callable:
    """Loads the exported graph in the C++ program, which itself measures its time: texts -> seconds, probabilities."""
    sys.path.insert(0, _ROOT)
    import numpy as np

    from export.verification import cc_check, runner
    from export.verification.verify import Probe

    program = cc_check.build_program(cc_check.require_compiler())
    command = [program, directory, "-", "-", *cc_check.op_libraries()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = tempfile.TemporaryDirectory()  # Is removed at the end of the process.
    files = [os.path.join(folder.name, name) for name in ("requests", "answers")]

    def ask(texts, folder=folder):
        runner.write_requests(files[0], [Probe("serving_default", {"text": np.array(texts, object)}, {})])
        process.stdin.write("\n".join(files) + "\n")
        process.stdin.flush()
        seconds = float(process.stdout.readline())
        return seconds, runner.read_answers(files[1])[0]["probabilities"]

    return ask


def onnxruntime(directory: str, model: str = "model.onnx") -> Callable:
    """Loads Hugging Face tokenizers and ONNX Runtime, with the default number of threads.

    Probabilities of padding underflow, and processors compute slowly with such numbers, so they are set to 0.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    path = os.path.join(directory, model)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return _by_tokenizers(directory, lambda inputs: session.run(None, inputs)[0])


def openvino(directory: str) -> Callable:
    """Loads Hugging Face tokenizers and OpenVINO, compiled for the time of one request, as optimum-intel does."""
    import openvino

    model = openvino.Core().compile_model(os.path.join(directory, "model.xml"), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return _by_tokenizers(directory, lambda inputs: model(inputs)[0])


def _by_tokenizers(directory: str, run: Callable) -> Callable:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(_MAX_TOKENS)

    def answer(texts):
        encoded = tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([row.ids for row in encoded], np.int64),
            "attention_mask": np.array([row.attention_mask for row in encoded], np.int64),
            "token_type_ids": np.array([row.type_ids for row in encoded], np.int64),
        }
        logits = run(inputs)
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)

    return answer


def keras_hub(directory: str, **settings) -> Callable:
    """Loads KerasHub's classifier as one traced function of preprocessor and model, which is faster than `predict`."""
    import keras_nlp
    import numpy as np
    import tensorflow as tf

    classifier = keras_nlp.models.BertTextClassifier(
        backbone=keras_nlp.models.BertBackbone.from_preset(directory),
        num_classes=2,
        preprocessor=keras_nlp.models.BertTextClassifierPreprocessor.from_preset(directory, **settings),
    )
    head = np.load(os.path.join(directory, "head.npz"))
    classifier.get_layer("logits").set_weights([head["kernel"], head["bias"]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def answer(texts):
        return tf.nn.softmax(classifier(classifier.preprocessor(texts), training=False))

    return lambda texts: answer(tf.constant(texts)).numpy()


def timed(load: Callable) -> Callable:
    """Makes what a kind loads return seconds, too; with PROCESSOR_TIME in the environment those of all threads."""
    clock = time.process_time if os.environ.get("PROCESSOR_TIME") else time.perf_counter

    def load_timed(directory: str) -> Callable:
        answer = load(directory)

        def ask(texts):
            start = clock()
            probabilities = answer(texts)
            return clock() - start, probabilities

        return ask

    return load_timed


# Name -> function that loads a directory and returns one of texts -> seconds, probabilities.
KINDS = {
    "saved_model": timed(saved_model),
    "bert_serve": timed(bert_serve),
    "bert_serve_bfloat16": timed(bert_serve),
    "bert_serve_tensorflow": timed(lambda directory: bert_serve(directory, runtime="tensorflow")),
    "bert_serve_onnx": timed(lambda directory: bert_serve(directory, runtime="onnxruntime")),
    "bert_serve_int8": timed(lambda directory: bert_serve(directory, int8=True)),
    "cc": cc,
    "onnxruntime": timed(onnxruntime),
    "onnxruntime_int8": timed(lambda directory: onnxruntime(directory, "model.int8.onnx")),
    "openvino_int8": timed(openvino),
    "keras_hub": timed(keras_hub),
    "keras_hub_128": timed(lambda directory: keras_hub(directory, sequence_length=_MAX_TOKENS)),
}


def main() -> None:
    """Reads batches, writes times and answers."""
    ask = KINDS[sys.argv[1]](sys.argv[2])
    print(f"{MARKER}ready", flush=True)
    for line in sys.stdin:
        seconds, probabilities = ask(json.loads(line))
        print(MARKER + json.dumps({"seconds": seconds, "probabilities": probabilities.tolist()}), flush=True)


if __name__ == "__main__":
    main()
