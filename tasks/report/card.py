"""Writes README.md, the model card of a training or an export: Markdown below a YAML head, as the Hugging Face Hub has.

A card shows what the run knows, and computes nothing. `card.md.j2` lays out the card of a training. An export has its
own template, and takes over head and body of the training's card.
"""

import contextlib
import dataclasses
import importlib.metadata
import math
import os
import platform
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from keras_bert.config import BertConfig
from keras_bert.files import absolute, exists, is_directory, read_lines, write_lines
from tasks.report import formatting
from tasks.report.page import Mistake, Report, worst_mistakes
from tasks.settings import Settings, available_cores

CARD_FILE, SECOND_FILE = "README.md", "model_card.md"  # The second is for directories with a README of the user's own.
PIPELINES = {
    "classification": "text-classification",
    "multi_label_classification": "text-classification",
    "regression": "text-classification",
    "multiple_choice": "multiple-choice",
    "token_classification": "token-classification",
    "token_regression": "token-classification",
    "feature_based_tagging": "token-classification",
    "question_answering": "question-answering",
    "sentence_embedding": "sentence-similarity",
    "search": "sentence-similarity",
    "embeddings": "feature-extraction",
    "fill_mask": "fill-mask",
}
_BASELINES = {"masked_lm_accuracy": "unigram_accuracy"}  # Other accuracies have `majority_...`.
_HEAD = re.compile(r"---\n(?:.*\n)*?---\n")  # Whole lines, since values of the head, and the body, may hold dashes.
_SIGNATURE = re.compile(r"<!-- Written by keras-bert-zoo, checksum (\d+) -->\n\Z")  # Tells whether it was edited since.
_ENVIRONMENT = formatting.environment(autoescape=False)  # Compiles the template once.
_NUM_MISTAKES, _LONGEST_PART = 5, 300
_PACKAGES = ("keras-bert-zoo", "tensorflow", "keras", "tensorflow-text")


class Data(NamedTuple):
    """A file of the run.

    Attributes:
        split: what it is for: "train", "dev" or "test".
        path: the file.
        rows: number of its rows.
        longest: length of the longest row in tokens.
        num_cut: number of rows that were truncated, or otherwise exceed the longest sequence.
    """

    split: str
    path: str
    rows: int
    longest: int | None = None
    num_cut: int | None = None


@dataclasses.dataclass(frozen=True)
class Card:
    """What a training knows about its model.

    Attributes:
        report: the report of the run, of which the card has the title, history, longest sequence, mistakes and notes.
        task: a key of `PIPELINES`, or the name of a head that is not listed there.
        config: sizes of the encoder; None if the model has no encoder of its own.
        num_parameters: number of parameters of the whole model.
        tokenizer: `tasks.engine.settings.tokenizer_identity`.
        data: files of the run.
        metrics: content of `metrics.json`; `train_start`, where the training started from, may be lost.
        scores: the names in `metrics` that are scores, the main one first.
    """

    report: Report
    task: str
    config: BertConfig | None
    num_parameters: int
    tokenizer: dict
    data: Sequence[Data]
    metrics: dict[str, Any]
    scores: Sequence[str]


def command_line(command: str, settings: Settings) -> str:
    """Returns a command with the flags that differ from their defaults, except for `--output_dir`."""
    words = [command]
    for field in dataclasses.fields(settings):
        value, rule = getattr(settings, field.name), field.metadata["rule"]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        name = rule.flag or field.name
        if value == default or name == "output_dir":
            continue
        words += [f"--{name}={item}" for item in value] if rule.repeats else [flag_of(name, value)]
    return shlex.join(words)


def flag_of(name: str, value: Any) -> str:
    """Returns the argument that gives a flag its value."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def write_card(directory: str, card: Card) -> None:
    """Writes the card of a training to its directory."""
    _ENVIRONMENT.filters["plain"] = plain
    _ENVIRONMENT.filters["figure"] = lambda value: f"{value:.4g}" if isinstance(value, int | float) else ""
    report, evaluations = card.report, (card.report.history or {}).get("evaluations", [])
    body = _ENVIRONMENT.get_template("card.md.j2").render(
        card=card,
        report=report,
        worst=[_describe(mistake) for mistake in worst_mistakes(report.mistakes, _NUM_MISTAKES)],
        scores=[(name, *_score(name, card.metrics)) for name in card.scores],
        curve=[(row["step"], row.get(card.scores[0]) if card.scores else None, row.get("loss")) for row in evaluations],
        hardware=hardware(),
        python=platform.python_version(),
        versions=list(_versions()),
    )
    save(directory, head(card.task, card) + body)


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # tensorflow-text is not everywhere.
            yield f"{package} {importlib.metadata.version(package)}"


def save(directory: str, text: str) -> None:
    """Writes a card's text. A file of the same name is kept if it was edited or is not a card."""
    for name in (CARD_FILE, SECOND_FILE):
        path = os.path.join(directory, name)
        if not exists(path) or _is_unedited(_read(path)):
            checksum = zlib.crc32(text.encode())
            write_lines(path, [f"{text}<!-- Written by keras-bert-zoo, checksum {checksum} -->"])
            return
        print(f"{path}: is kept, since it was edited or is no model card.", flush=True)


def _read(path: str) -> str:
    return "".join(f"{line}\n" for _, line in read_lines(path))


def _is_unedited(text: str) -> bool:
    signature = _SIGNATURE.search(text)
    return bool(signature) and zlib.crc32(text[: signature.start()].encode()) == int(signature[1])


def find_card(source: str) -> str | None:
    """Returns the card in a model's or preset's directory, or else that of the run it belongs to, or None."""
    if not is_directory(source):
        return None
    run = os.path.dirname(absolute(source))
    for directory in (source, run) if exists(os.path.join(run, "metrics.json")) else (source,):
        for path in (os.path.join(directory, name) for name in (CARD_FILE, SECOND_FILE)):
            if exists(path) and _HEAD.match(text := _read(path)):
                return _SIGNATURE.sub("", text)
    return None


def split_card(text: str) -> tuple[str, str]:
    """Splits a card into its YAML head, fences included, and its body."""
    end = _HEAD.match(text).end()
    return text[:end], text[end:]


def head(task: str, card: Card | None = None) -> str:
    """Returns the YAML head; language, licence and data sets are for the author to add.

    Args:
        task: as in `Card`.
        card: card of the training, if there is one.
    """
    pipeline = PIPELINES.get(task, "other")  # Hugging Face's name for tasks that it does not know.
    values: dict[str, Any] = {"library_name": "keras", "pipeline_tag": pipeline, "tags": ["bert", "keras-bert-zoo"]}
    if card:
        metrics = card.metrics
        if handle := re.match(r"hf://([\w.-]+/[\w.-]+)", metrics.get("train_start") or ""):
            values["base_model"] = handle[1]
        figures = [{"type": name, "value": metrics[name]} for name in card.scores if math.isfinite(metrics[name])]
        scored = sorted((file for file in card.data if file.split != "train"), key=lambda file: file.split != "dev")
        if figures and scored:
            dataset = {"name": os.path.basename(scored[0].path), "type": "local-file"}
            result = {"task": {"type": pipeline}, "dataset": dataset, "metrics": figures}
            values["model-index"] = [{"name": card.report.title, "results": [result]}]
    todo = "# Add before you publish, since no run knows them: language, license, datasets.\n"
    return f"---\n{todo}{yaml.safe_dump(values, sort_keys=False, allow_unicode=True)}---\n"


def hardware() -> str:
    """Returns processor and GPUs in one line."""
    import tensorflow as tf

    lines = read_lines("/proc/cpuinfo") if exists("/proc/cpuinfo") else []
    names = (line.partition(":")[2].strip() for _, line in lines if line.startswith("model name"))
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    gpus = [detail.get("device_name", "GPU") for detail in details]
    return f"{available_cores()} cores of {next(names, platform.machine())}, {', '.join(gpus) or 'no GPU'}"


def plain(text: str) -> str:
    r"""Returns a text on one line, escaped so that nothing in it is Markdown, HTML or a link.

    >>> plain("read\n[me](https://x.org) <b>")
    'read \\[me\\](https:/\\/x.org) \\<b>'
    """
    escaped = re.sub(r"[\\`*_\[\]<&~]", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"(?i)(:/|www)(?=[/.])", r"\1\\", escaped)


def code(text: str) -> str:
    """Returns a text in one line as a code span of Markdown, so that nothing in it is markup."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def _score(name: str, metrics: Mapping[str, Any]) -> tuple:
    """Returns value, interval and baseline of a score."""
    baseline = metrics.get(_BASELINES.get(name, re.sub(r"(next_sentence_)?accuracy$", r"majority_\g<0>", name)))
    return metrics[name], metrics.get("intervals", {}).get(name), baseline if name.endswith("accuracy") else None


def _describe(mistake: Mistake) -> str:
    """Returns captions and texts of a mistake in one line."""
    shown = ((plain(caption), text[:_LONGEST_PART]) for caption, text in mistake.parts if text.strip())
    return "; ".join(f"{caption}: {code(text)}" for caption, text in shown)
