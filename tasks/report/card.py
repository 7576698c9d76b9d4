"""README.md: the model card of a training or an export, Markdown below a YAML head as the Hugging Face Hub reads it.

A card says what the run knows, and computes nothing. `card.md.j2` lays out that of a training; an export has a template
of its own, and takes head and body of the training's card along.
"""

import dataclasses
import importlib.metadata
import math
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import yaml

from keras_bert.config import BertConfig
from keras_bert.files import absolute, atomic_path, exists, is_directory, read_lines
from tasks.report.page import Mistake
from tasks.settings import Settings

CARD_FILE = "README.md"
PIPELINES = {
    "classification": "text-classification",
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
_HEAD = re.compile(r"---\n(?:.*\n)*?---\n")  # Whole lines: a value of the head, or the body, may hold dashes, too.
_NUM_MISTAKES, _LONGEST_PART = 5, 300
_PACKAGES = ("keras-bert-zoo", "tensorflow", "keras", "tensorflow-text")


class Data(NamedTuple):
    """A file of the run: what it is for, its path, how many rows, the longest in tokens, and how many were cut."""

    split: str
    path: str
    rows: int
    longest: int | None = None
    num_cut: int | None = None


@dataclasses.dataclass(frozen=True)
class Card:
    """What a training knows of its model.

    Attributes:
        title: heading.
        task: a key of `PIPELINES`, or of a head that is not listed there.
        config: sizes of the encoder; None: it has none of its own.
        num_parameters: of the whole model.
        tokenizer: `tasks.engine.settings.tokenizer_identity`.
        start: where its weights come from; None: nobody knows any more.
        max_length: longest sequence in tokens.
        long_examples: what becomes of longer ones.
        data: its files.
        metrics: content of `metrics.json`.
        scores: the names in `metrics` that are scores, the main one first.
        history: content of `history.json`.
        mistakes: as in `tasks.report.page.Report`.
        notes: sentences on what limits the model.
    """

    title: str
    task: str
    config: BertConfig | None
    num_parameters: int
    tokenizer: dict
    start: str | None
    max_length: int
    data: Sequence[Data]
    metrics: dict[str, Any]
    scores: Sequence[str]
    history: dict
    long_examples: str = "cut"
    mistakes: Sequence[Mistake] = ()
    notes: Sequence[str] = ()


def command_line(command: str, settings: Settings) -> str:
    """Returns a command with the flags that differ from their defaults, but for `--output_dir`."""
    words = [command]
    for field in dataclasses.fields(settings):
        value, rule = getattr(settings, field.name), field.metadata["rule"]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        name = rule.flag or field.name
        if value == default or name == "output_dir":
            continue
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no'}{name}")
        elif rule.repeats:
            words += [f"--{name}={one}" for one in value]
        else:
            words.append(f"--{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}")
    return shlex.join(words)


def write_card(directory: str, card: Card) -> None:
    """Writes the card of a training to its directory."""
    worst = sorted(card.mistakes, key=lambda one: (math.isnan(one.loss), -one.loss))[:_NUM_MISTAKES]
    evaluations = card.history.get("evaluations", [])
    body = _template().render(
        card=card,
        worst=[_mistake(one) for one in worst],
        scores=[(name, *_score(name, card.metrics)) for name in card.scores],
        curve=[(row["step"], row.get(card.scores[0]) if card.scores else None, row.get("loss")) for row in evaluations],
        hardware=hardware(),
        versions=[f"Python {platform.python_version()}", *map(_version, _PACKAGES)],
    )
    save(directory, head(card.task, card.start, card.title, card.metrics, card.scores, card.data) + body)


def save(directory: str, text: str) -> None:
    """Writes a card's text; the file is replaced whole."""
    with atomic_path(os.path.join(directory, CARD_FILE)) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)


def find_card(source: str) -> str | None:
    """Returns the card of a model's or preset's directory, or else of the run that it is part of, or None."""
    if not is_directory(source):
        return None
    run = os.path.dirname(absolute(source))
    for directory in (source, run) if exists(os.path.join(run, "metrics.json")) else (source,):
        path = os.path.join(directory, CARD_FILE)
        if exists(path) and _HEAD.match(text := "".join(f"{line}\n" for _, line in read_lines(path))):
            return text
    return None


def split_card(text: str) -> tuple[str, str]:
    """Splits a card into its YAML head, fences included, and its body."""
    end = _HEAD.match(text).end()
    return text[:end], text[end:]


def head(
    task: str,
    start: str | None = None,
    title: str = "",
    metrics: Mapping[str, Any] = {},
    scores: Sequence[str] = (),
    data: Sequence[Data] = (),
) -> str:
    """Returns the YAML head; language, licence and data sets are for the author to add."""
    pipeline = PIPELINES.get(task, "other")  # Hugging Face's name for what has none.
    found: dict[str, Any] = {"library_name": "keras", "pipeline_tag": pipeline, "tags": ["bert", "keras-bert-zoo"]}
    if handle := re.match(r"hf://([\w.-]+/[\w.-]+)", start or ""):
        found["base_model"] = handle[1]
    values = {name: metrics[name] for name in scores if math.isfinite(metrics[name])}
    evaluated = next((one.path for one in data if one.split != "train"), None)
    if values and evaluated:
        result = {
            "task": {"type": pipeline},
            "dataset": {"name": os.path.basename(evaluated), "type": "local-file"},
            "metrics": [{"type": name, "value": value} for name, value in values.items()],
        }
        found["model-index"] = [{"name": title, "results": [result]}]
    todo = "# Add before you publish, since no run knows them: language, license, datasets.\n"
    return f"---\n{todo}{yaml.safe_dump(found, sort_keys=False, allow_unicode=True)}---\n"


def hardware() -> str:
    """Returns processor and GPUs in one line."""
    import tensorflow as tf

    lines = read_lines("/proc/cpuinfo") if exists("/proc/cpuinfo") else []
    names = (line.partition(":")[2].strip() for _, line in lines if line.startswith("model name"))
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    gpus = [detail.get("device_name", "GPU") for detail in details]
    return f"{os.cpu_count()} cores of {next(names, platform.machine())}, {', '.join(gpus) or 'no GPU'}"


def plain(text: str) -> str:
    r"""Returns a text in one line, such that nothing in it is Markdown, HTML or a link.

    >>> plain("read\n[me](https://x.org) <b>")
    'read \\[me\\](https:/\\/x.org) \\<b>'
    """
    escaped = re.sub(r"[\\`*_\[\]<&~]", r"\\\g<0>", " ".join(text.split()))
    return re.sub(r"(?i)(:/|www)(?=[/.])", r"\1\\", escaped)


def code(text: str) -> str:
    """Returns a text in one line as Markdown's code, in which nothing is Markdown."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__))),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    environment.filters["figure"] = lambda value: f"{value:.4g}" if isinstance(value, int | float) else ""
    return environment.get_template("card.md.j2")


def _score(name: str, metrics: Mapping[str, Any]) -> tuple:
    """Returns value, interval and baseline of a score."""
    baseline = metrics.get(_BASELINES.get(name, re.sub(r"(next_sentence_)?accuracy$", r"majority_\g<0>", name)))
    return metrics[name], metrics.get("intervals", {}).get(name), baseline if name.endswith("accuracy") else None


def _mistake(mistake: Mistake) -> str:
    """Returns the parts of a mistake in one line."""
    shown = ((plain(caption), text[:_LONGEST_PART]) for caption, text in mistake.parts if text.strip())
    return "; ".join(f"{caption}: {code(text)}" for caption, text in shown)


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"
