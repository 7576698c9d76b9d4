"""`bert-export`: a trained classifier to a directory that TensorFlow Serving loads as it is.

    bert-export --model_dir=runs/mood/model --export_dir=served/mood

Writes `served/mood/1` (then 2, 3, ...), verified in a fresh process before it gets its number, and
`served/mood/README.md` with the commands that serve and ask this very model. Seconds for a small model, about a minute
for BERT-base.
"""

import json
import os
import shlex

from absl import flags

from export import base_path
from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", None, "The model directory that bert-classify wrote (its output_dir/model).")
flags.DEFINE_string("export_dir", None, "Base path of the served model; versions are its numbered sub-directories.")
flags.DEFINE_integer(
    "version",
    None,
    "Number of the version. Default: one more than the highest.",
    lower_bound=0,
    upper_bound=base_path.MAX_VERSION,
)
flags.mark_flags_as_required(["model_dir", "export_dir"])

_EXAMPLE_TEXTS = ("Returns the sorted list of names.", "It was a rainy day.")
# TensorFlow Serving's release on the TensorFlow version that wrote the graph.
_SERVING_IMAGE = "tensorflow/serving:2.20.0"


def export(model_dir: str, export_dir: str, version: int | None = None) -> str:
    """Exports what `bert-classify` trained; see `export.saved_model.export_model`.

    Returns:
        What to tell the user, several lines.

    Raises:
        InputError: `model_dir` holds no classifier, `export_dir` is no name for a model, the version exists, or the
            verification failed.
    """
    base_path.check_model_name(_model_name(export_dir), "It is the last part of --export_dir: choose another.")
    # Imported here: they bring TensorFlow, and --help shall not wait for that.
    from export import saved_model
    from export.verify import VerificationError
    from keras_bert.preprocessor import BertPreprocessor
    from tasks.glue.model import load_classifier

    classifier = load_classifier(model_dir)
    if classifier.is_regression:
        raise InputError(
            f"{model_dir}: gives a number, not a class. Expected a classifier: only those are exported yet."
        )
    try:
        version_directory = saved_model.export_model(
            classifier.model,
            BertPreprocessor(classifier.tokenizer, classifier.sequence_length),
            export_dir,
            labels=classifier.labels,
            version=version,
            num_texts=classifier.num_texts,
        )
    except VerificationError as error:
        raise InputError(str(error)) from error
    readme = _readme(export_dir, classifier.labels, classifier.num_texts, classifier.sequence_length)
    # TensorFlow Serving looks at numeric directories only, so a file may stand beside the versions.
    with (
        atomic_path(os.path.join(export_dir, "README.md")) as temporary,
        open(temporary, "w", encoding="utf-8") as file,
    ):
        file.write(readme)
    report = saved_model.read_report(version_directory).lines()
    commands = ["serve it here:", f"    {_serve_command(export_dir)}", "serve it by docker (not run here):"]
    commands += ["    " + line for line in _docker_command(export_dir).splitlines()]
    commands += ["ask it:"] + ["    " + line for line in _curl_command(export_dir, classifier.num_texts).splitlines()]
    return "\n".join([f"exported: {version_directory}", *report, *commands])


def _model_name(export_dir: str) -> str:
    return os.path.basename(os.path.abspath(export_dir))


def _serve_command(export_dir: str) -> str:
    base = shlex.quote(os.path.abspath(export_dir))
    return f"bert-serve --model_name={shlex.quote(_model_name(export_dir))} --model_base_path={base}"


def _docker_command(export_dir: str) -> str:
    name = _model_name(export_dir)
    mount = shlex.quote(f"type=bind,source={os.path.abspath(export_dir)},target=/models/{name}")
    return (
        f"docker run --rm -p 8501:8501 -e TF_ENABLE_ONEDNN_OPTS=1 -e MODEL_NAME={shlex.quote(name)} \\\n"
        f"    --mount {mount} {_SERVING_IMAGE}"
    )


def _curl_command(export_dir: str, num_texts: int) -> str:
    instances = list(_EXAMPLE_TEXTS)
    if num_texts == 2:
        instances = [{"text": _EXAMPLE_TEXTS[0], "text_pair": _EXAMPLE_TEXTS[1]}]
    body = json.dumps({"instances": instances}, ensure_ascii=False)
    url = base_path.model_url("127.0.0.1", 8501, _model_name(export_dir)) + ":predict"
    return f"curl -d {shlex.quote(body)} \\\n    {shlex.quote(url)}"


def _readme(export_dir: str, labels: list[str], num_texts: int, sequence_length: int) -> str:
    inputs = "`text` and `text_pair`" if num_texts == 2 else "`text`"
    example = "both as features" if num_texts == 2 else "as a feature"
    return f"""# {_model_name(export_dir)}

A text classifier as a SavedModel: texts in, labels out. Vocabulary and tokenizer are inside the graph, so that a
client sends plain strings. The numbered directories are versions; the highest is served. Texts are cut at
{sequence_length} tokens. Each version was verified in a fresh process before it got its number: see
`assets.extra/verification.json` in it.

Classes, in the order of `probabilities`: {", ".join(f"`{label}`" for label in labels)}

## Serve

With TensorFlow Serving by docker (the image itself was not run when this was written):

```
{_docker_command(export_dir)}
```

On this machine without docker, the same REST API:

```
{_serve_command(export_dir)}
```

## Ask

```
{_curl_command(export_dir, num_texts)}
```

| signature | inputs | outputs |
| --- | --- | --- |
| `serving_default` | {inputs}: strings | `label`, `score`, `probabilities` |
| `token_ids` | `token_ids`, `segment_ids` (batch, length), `lengths` (batch): int32 | the same |
| `classify` | `inputs`: serialized `tf.Example`s with {inputs} {example} | `classes`, `scores` |
"""


def main(argv: list[str]) -> None:
    """The command: flags in, `export` called, its result printed."""
    del argv
    print(export(FLAGS.model_dir, FLAGS.export_dir, FLAGS.version))


def console_main() -> None:
    """The console script."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
