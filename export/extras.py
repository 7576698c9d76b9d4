"""What an exported model has beside its graph: warm-up requests, batching parameters, a description, a README.

A version's own files, written before it is published:

- `assets.extra/tf_serving_warmup_requests`: TFRecord of `PredictionLog`; TensorFlow Serving runs them as it loads the
  version, and refuses one of which a request fails. The first run of a graph costs some hundred milliseconds.
- `batching_params.pbtxt`: taken with `--enable_batching --enable_per_model_batching_parameters`.
- `assets.extra/model.json`: what the model is, in and out, for clients and pages.

Below the base path, for all versions: `README.md`.
"""

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2, input_pb2, predict_pb2, prediction_log_pb2, regression_pb2

from export import clients, signatures
from export.base_path import DESCRIPTION_FILE, WARMUP_FILE
from export.heads.base import Head
from export.server.batching_parameters import PER_MODEL_FILE
from keras_bert.files import atomic_path, write_json

README_FILE = "README.md"

# TensorFlow Serving reads 1,000 at most; each is run before the version answers anybody.
_MAX_WARMUP_REQUESTS = 10

# The proto is TensorFlow Serving's BatchingParameters (session_bundle_config.proto), which is in no package.
_BATCHING_PARAMETERS = """\
# Read with --enable_batching --enable_per_model_batching_parameters.
# The number of threads is the server's, not the model's: --batching_parameters_file with num_batch_threads.
# A request of more rows than this is refused.
max_batch_size { value: 128 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
# No allowed_batch_sizes: the graph takes every size, and filling a batch up would cost time.
# Texts of unequal length need no padding, and token ids must not get TensorFlow Serving's (it repeats the first id).
pad_variable_length_inputs: false
"""


def write_extras(directory: str, head: Head) -> None:
    """Writes a version's own files.

    Args:
        directory: of the version in the making; holds `saved_model.pb`.
        head: what was exported.
    """
    os.makedirs(os.path.join(directory, "assets.extra"), exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(directory, WARMUP_FILE)) as writer:
        for signature, inputs in head.warmup()[:_MAX_WARMUP_REQUESTS]:
            writer.write(warmup_record(signature, inputs).SerializeToString())
    with open(os.path.join(directory, PER_MODEL_FILE), "w", encoding="utf-8") as file:
        file.write(_BATCHING_PARAMETERS)
    write_json(os.path.join(directory, DESCRIPTION_FILE), head.description())


def warmup_record(signature: str, inputs: Mapping[str, np.ndarray]) -> prediction_log_pb2.PredictionLog:
    """A request as TensorFlow Serving replays it: Classify and Regress by their verbs, everything else by Predict.

    Args:
        signature: name of the signature.
        inputs: input name -> array of the batch.
    """
    log = prediction_log_pb2.PredictionLog()
    if signature == signatures.CLASSIFY:
        request = classification_pb2.ClassificationRequest(input=_examples(inputs))
        log.classify_log.request.CopyFrom(request)
        log.classify_log.request.model_spec.signature_name = signature
    elif signature == signatures.REGRESS:
        log.regress_log.request.CopyFrom(regression_pb2.RegressionRequest(input=_examples(inputs)))
        log.regress_log.request.model_spec.signature_name = signature
    else:
        request = predict_pb2.PredictRequest()
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        log.predict_log.request.CopyFrom(request)
        log.predict_log.request.model_spec.signature_name = signature
    return log


def _examples(inputs: Mapping[str, np.ndarray]) -> input_pb2.Input:
    examples = [tf.train.Example.FromString(example) for example in inputs["inputs"]]
    return input_pb2.Input(example_list=input_pb2.ExampleList(examples=examples))


# === The README of the base path ===


def write_readme(export_dir: str, head: Head, version_directory: str) -> None:
    """Writes how to serve and ask this model to `README.md` below the base path.

    TensorFlow Serving looks at numeric directories only, so that a file may stand beside the versions.

    Args:
        export_dir: base path of the model.
        head: what was exported.
        version_directory: the version that was written last.
    """
    path = os.path.join(export_dir, README_FILE)
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(_readme(export_dir, head.description(), os.path.basename(version_directory)))


def _readme(export_dir: str, description: Mapping, version: str) -> str:
    labels = ", ".join(f"`{label}`" for label in description["labels"])
    return f"""# {clients.model_name(export_dir)}

{description["title"]}. {description["summary"]}

A SavedModel: texts in, answers out. Vocabulary and tokenizer are inside the graph, so that a client sends plain
strings. The encoder takes {description["sequence_length"]} tokens at a time. The numbered directories are versions; the
highest is served. This was written with version {version}. Each version was verified in a fresh process before it got
its number: see `assets.extra/verification.json` in it. What it takes and gives stands in `assets.extra/model.json`.
{f"{chr(10)}Labels, in the order of the model's outputs: {labels}{chr(10)}" if labels else ""}
## Serve

On this machine, TensorFlow Serving's gRPC (port {clients.GRPC_PORT}) and REST API (port {clients.REST_PORT}), with a
page to try the model on:

```bash
{clients.serve_command(export_dir)}
```

With TensorFlow Serving itself by docker (not run when this was written):

```
{clients.docker_command(export_dir)}
```

The version's warm-up requests run as it is loaded. The last two flags, which `bert-serve` takes as well, join requests
that wait at the same time into batches, as the version's `{PER_MODEL_FILE}` says. `TF_ENABLE_ONEDNN_OPTS=1` makes the
matrix products faster on many CPUs.

## Ask

```bash
{clients.curl_command(export_dir, description)}
```

In Python, over REST, with nothing to install:

```python
{clients.rest_client(export_dir, description)}```

In Python, over gRPC (`pip install tensorflow-serving-api`):

```python
{clients.grpc_client(export_dir, description)}```

## Signatures

The batch is the first dimension of each input and output; what stands in brackets are the others.

{_signature_tables(description["signatures"])}"""


def _signature_tables(described: Mapping[str, Mapping]) -> str:
    tables = []
    for name, signature in described.items():
        lines = [f"`{name}`", "", "| | name | what |", "| --- | --- | --- |"]
        for kind, tensors in (("input", signature["inputs"]), ("output", signature["outputs"])):
            lines += [f"| {kind} | `{tensor}` | {_cell(text)} |" for tensor, text in tensors.items()]
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
