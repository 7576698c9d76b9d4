"""Raw text to a served, queried model in minutes, on a laptop, with no download.

Text -> WordPiece vocabulary -> pre-training data -> masked-LM and next-sentence pre-training -> a fine-tuned
classifier (beside the same one from random weights) -> a SavedModel that takes strings -> an HTTP server -> answers.
Each stage runs one of the other commands and shows its command line. Running again continues after the last
finished stage.
"""

import json
import subprocess
import time
import urllib.request

from absl import flags

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import expand_files, read_json, read_lines, write_json
from keras_bert.presets import PRESETS
from tasks import docstrings, own_text
from tasks import flags as task_flags
from tasks.pipeline import StageRun, run_command, start_command

_INPUT_FILE = flags.DEFINE_string(
    "input_file", None, "Text of your own, one sentence a line, a blank line between documents; several files with "
    "commas or a pattern. By default the docstrings of the installed Python packages."
)  # fmt: skip
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "runs/quickstart", "Directory for everything the run writes.")
_OVERWRITE = flags.DEFINE_boolean("overwrite", False, "Start anew where the directory holds a run.")
_PRESET = flags.DEFINE_enum("preset", "tiny", list(PRESETS), "Sizes of the model to pre-train.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 8000, "WordPieces.", lower_bound=200)
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length",
    64,
    "Tokens of a sequence.",
    lower_bound=16,
    upper_bound=PRESETS["tiny"].config.max_sequence_length,
)
_TRAIN_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 64, "Instances of a pre-training step.", lower_bound=1)
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 2500, "Pre-training steps.", lower_bound=1)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "Peak learning rate of pre-training.", lower_bound=0.0)
_NUM_TRAIN_EPOCHS = flags.DEFINE_integer("num_train_epochs", 5, "Fine-tuning epochs.", lower_bound=1)
_NUM_LABELS = flags.DEFINE_integer("num_labels", 8, "Packages (or input files) to tell apart.", lower_bound=2)
_ROWS_PER_LABEL = flags.DEFINE_integer(
    "rows_per_label", 250, "Labelled sentences of each label at most, for fine-tuning.", lower_bound=1
)
_MAX_SENTENCES = flags.DEFINE_integer(
    "max_sentences_per_package", 20000, "Sentences of one package at most.", lower_bound=100
)
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of all random draws.", lower_bound=0)

_HELD_OUT_SHARE = 0.1
_MODEL_NAME = "quickstart"
_MIN_WORDS = 8  # Shorter docstrings, such as "Returns the result.", could stand in any package.
_NUM_QUESTIONS = 4
_LONG_QUESTION = 100  # Characters: a line of the terminal.
_FINE_TUNING_RATE = 1e-3  # The paper's rates, 2e-5 to 5e-5, are for models a hundred times as large.


def main(argv) -> None:
    del argv
    settings = {name: value for name, value in task_flags.resolved_flags().items() if name in _SETTINGS}
    quickstart(_OUTPUT_DIR.value, settings, overwrite=_OVERWRITE.value)


_SETTINGS = (
    "input_file", "preset", "vocab_size", "max_seq_length", "train_batch_size", "num_train_steps", "learning_rate",
    "num_train_epochs", "num_labels", "rows_per_label", "max_sentences_per_package", "random_seed",
)  # fmt: skip


def quickstart(output_dir: str, settings: dict, overwrite: bool = False) -> dict:
    """Runs every stage, prints the table, and writes `metrics.json`.

    Args:
        output_dir: str.
        settings: dict of this module's flags, by name; all of `_SETTINGS`.
        overwrite: bool, start anew.

    Returns:
        dict, the stages' records by name, as in `metrics.json`.

    Raises:
        InputError: the text, or the directory, is not fit for it.
    """
    if "," in output_dir:
        raise InputError(f"{output_dir}: a comma separates files in the commands' flags. Choose a path without one.")
    own = None  # Read before the directory is touched: nothing is lost to a wrong path.
    if settings["input_file"]:
        own = own_text.read_corpus(expand_files(settings["input_file"]))
        own_text.split(own, _HELD_OUT_SHARE)
    run = StageRun(output_dir, {**settings, "input_checksum": own and own_text.checksum(own)}, overwrite)
    run.stage("corpus", lambda: _make_corpus(run, settings, own))
    run.stage("vocabulary", lambda: _train_vocabulary(run, settings))
    run.stage("pre-training data", lambda: _create_data(run, settings))
    run.stage("pre-training", lambda: _pretrain(run, settings))
    run.stage("fine-tuning", lambda: _fine_tune(run, settings, "classifier", load_weights=True))
    run.stage("fine-tuning, random start", lambda: _fine_tune(run, settings, "random", load_weights=False))
    run.stage("export", lambda: _export(run))
    run.stage("serving", lambda: _serve(run), keep=False)
    write_json(run.path("metrics.json"), run.records)
    print(f"\n{run.table()}\n\n{_verdict(run.records)}\n\n{_where(run)}", flush=True)
    return run.records


# === Text ===


def _make_corpus(run: StageRun, settings: dict, own: docstrings.Corpus | None) -> dict:
    corpus = own or docstrings.collect(max_sentences_per_package=settings["max_sentences_per_package"])
    print(corpus.summary(), flush=True)
    training, held_out = parts = (own_text if own else docstrings).split(corpus, _HELD_OUT_SHARE)
    docstrings.write(training, run.path("corpus", "train.txt"))
    docstrings.write(held_out, run.path("corpus", "held_out.txt"))
    has_labels = len(held_out.sentences_by_package()) > 1
    if not has_labels:
        print("The text gives no two labels: fine-tuning tells the installed packages apart instead.", flush=True)
        parts = docstrings.split(docstrings.collect(max_sentences_per_package=2000), _HELD_OUT_SHARE)
    are_files = own is not None and has_labels
    tables = docstrings.label_sentences(
        *parts,
        num_packages=settings["num_labels"],
        max_training_rows=settings["rows_per_label"],
        min_words=1 if are_files else _MIN_WORDS,  # not every language puts blanks between words
        hide_names=not are_files,
    )
    labels = sorted({label for _, label in tables[0]})
    for name, rows in zip(("train", "dev"), tables, strict=True):
        if len({label for _, label in rows}) < 2 or len(rows) < 2 * len(labels):
            raise InputError(f"--input_file: too little text for a {name} table, {len(rows)} rows. Give longer files.")
        docstrings.write_table(rows, run.path("corpus", f"{name}.tsv"))
    return {
        "figure": corpus.summary(),
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "bytes": corpus.num_bytes,
        "labels": labels,
        "labels_are": "input files" if are_files else "installed packages",
        "labelled_sentences": [len(rows) for rows in tables],
    }


# === The other commands ===


def _train_vocabulary(run: StageRun, settings: dict) -> dict:
    run_command(
        "bert-train-vocab",
        "tasks.pretraining.train_vocab",
        input_file=run.path("corpus", "train.txt"),
        vocab_file=run.path("vocab.txt"),
        vocab_size=settings["vocab_size"],
    )
    size = sum(1 for _ in read_lines(run.path("vocab.txt")))
    return {"figure": f"{size:,} WordPieces", "vocabulary_size": size}


def _create_data(run: StageRun, settings: dict) -> dict:
    instances = {}
    for part, copies in (("train", 2), ("held_out", 1)):
        output_file = run.path("data", f"{part}.tfrecord")
        run_command(
            "bert-create-pretraining-data",
            "tasks.pretraining.create_data",
            input_file=run.path("corpus", f"{part}.txt"),
            output_file=output_file,
            vocab_file=run.path("vocab.txt"),
            max_seq_length=settings["max_seq_length"],
            max_predictions_per_seq=_max_predictions(settings),
            dupe_factor=copies,
            random_seed=settings["random_seed"],
        )
        instances[part] = read_json(f"{output_file}.report.json")["instances"]
    figure = f"{instances['train']:,} training and {instances['held_out']:,} held-out instances"
    return {"figure": figure, "instances": instances}


def _max_predictions(settings: dict) -> int:
    return max(1, round(settings["max_seq_length"] * 0.15))  # google-research/bert's README: a little over 15%


def _pretrain(run: StageRun, settings: dict) -> dict:
    steps = settings["num_train_steps"]
    vocabulary_size = sum(1 for _ in read_lines(run.path("vocab.txt")))
    _architecture(settings["preset"], vocabulary_size).to_json_file(run.path("bert_config.json"))
    run_command(
        "bert-pretrain",
        "tasks.pretraining.run",
        input_file=run.path("data", "train.tfrecord"),
        eval_input_file=run.path("data", "held_out.tfrecord"),
        output_dir=run.path("pretrained"),
        vocab_file=run.path("vocab.txt"),
        bert_config_file=run.path("bert_config.json"),
        max_seq_length=settings["max_seq_length"],
        max_predictions_per_seq=_max_predictions(settings),
        train_batch_size=settings["train_batch_size"],
        eval_batch_size=settings["train_batch_size"],
        optimizer="adamw",
        learning_rate=settings["learning_rate"],
        num_train_steps=steps,
        num_warmup_steps=max(1, steps // 10),
        save_checkpoints_steps=max(1, steps // 4),
        random_seed=settings["random_seed"],
        do_train=True,
        do_eval=True,
    )
    metrics = read_json(run.path("pretrained", "metrics.json"))
    figure = (
        f"held-out masked-LM accuracy {metrics['masked_lm_accuracy']:.1%} (most frequent token: "
        f"{metrics['unigram_accuracy']:.1%}), next sentence {metrics['next_sentence_accuracy']:.1%} (majority answer: "
        f"{metrics['majority_next_sentence_accuracy']:.1%})"
    )
    return {"figure": figure, **metrics}


def _architecture(preset: str, vocabulary_size: int) -> BertConfig:
    """The preset's sizes, set up for minutes of training instead of days.

    Dropout is off: a few passes over the text do not overfit a small model. Kernels start at a deviation of
    1 / sqrt(H), which keeps a small layer's output as large as its input; the paper's 0.02 is about that at H = 1024
    and a fifth of it at H = 128, where the loss then rests on the unigram plateau for some 700 of 2,500 steps more.
    """
    config = PRESETS[preset].config
    return config.replace(
        vocabulary_size=vocabulary_size, dropout=0.0, initializer_range=round(config.hidden_dim**-0.5, 3)
    )


def _fine_tune(run: StageRun, settings: dict, name: str, load_weights: bool) -> dict:
    run_command(
        "bert-classify",
        "tasks.glue.run",
        train_file=run.path("corpus", "train.tsv"),
        dev_file=run.path("corpus", "dev.tsv"),
        text_column="sentence",
        label_column="label",
        preset=run.path("pretrained", "preset"),
        load_weights=load_weights,
        output_dir=run.path(name),
        max_seq_length=settings["max_seq_length"],
        train_batch_size=32,
        eval_batch_size=64,
        optimizer="adamw",
        learning_rate=_FINE_TUNING_RATE,
        num_train_epochs=settings["num_train_epochs"],
        random_seed=settings["random_seed"],
        do_train=True,
        do_eval=True,
    )
    metrics = read_json(run.path(name, "metrics.json"))
    start = "from pre-training" if load_weights else "from random weights"
    figure = f"accuracy {metrics['accuracy']:.1%} {start} (majority class: {metrics['majority_accuracy']:.1%})"
    return {"figure": figure, **metrics}


def _export(run: StageRun) -> dict:
    run_command("bert-export", "export.run", model_dir=run.path("classifier", "model"), export_dir=run.path("served"))
    return {"figure": f"SavedModel in {run.path('served')}, verified in a fresh process"}


def _serve(run: StageRun) -> dict:
    questions = _questions(run)
    base_path = run.path("served")
    with start_command(
        "bert-serve", "export.local_server", stdout=subprocess.PIPE, model_name=_MODEL_NAME, model_base_path=base_path,
        rest_api_port=0, port=-1,
    ) as server:  # fmt: skip
        line = server.stdout.readline()
        if " at http://" not in line:
            raise SystemExit(server.wait() or 1)
        print(line.strip(), flush=True)
        url = f"{line.split(' at ')[1].strip()}:predict"
        _ask(url, [text for text, _ in questions])  # The first answer warms the server up.
        start = time.monotonic()
        answers = [_ask(url, [text])[0] for text, _ in questions]
        milliseconds = (time.monotonic() - start) * 1000 / len(questions)
    for (text, expected), answer in zip(questions, answers, strict=True):
        print(f"  {text}\n    -> {answer['label']} ({answer['score']:.0%}); expected: {expected}", flush=True)
    figure = f"{len(answers)} questions over HTTP, {milliseconds:.0f} ms each"
    return {"figure": figure, "milliseconds": milliseconds, "answers": answers}


def _questions(run: StageRun) -> list[tuple[str, str]]:
    """Picks held-out sentences with different labels, short ones if there are any."""
    rows = [line.split("\t") for number, line in read_lines(run.path("corpus", "dev.tsv")) if number > 1]
    chosen: dict[str, str] = {}
    for text, label in sorted(rows, key=lambda row: len(row[0]) >= _LONG_QUESTION):
        if len(chosen) < _NUM_QUESTIONS:
            chosen.setdefault(label, text)
    return [(text, label) for label, text in chosen.items()]


def _ask(url: str, texts: list[str]) -> list[dict]:
    body = json.dumps({"instances": [{"text": text} for text in texts]}).encode("utf-8")
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        # No proxy: the server is on this machine.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return json.load(response)["predictions"]
    except OSError as error:
        raise InputError(f"{url}: the server did not answer ({error}).") from error


# === What it came to ===


def _verdict(records: dict) -> str:
    pretrained, random = records["fine-tuning"]["accuracy"], records["fine-tuning, random start"]["accuracy"]
    majority = records["fine-tuning"]["majority_accuracy"]
    bought = 100 * (pretrained - random)
    task = f"Telling {len(records['corpus']['labels'])} {records['corpus']['labels_are']} apart"
    return (
        f"{task}: pre-trained {pretrained:.1%}, random start {random:.1%}, majority class {majority:.1%}. "
        f"Pre-training {'bought' if bought > 0 else 'cost'} {abs(bought):.1f} points."
    )


def _where(run: StageRun) -> str:
    return (
        f"Curve: {run.path('pretrained', 'curve.png')}   Confusion matrix: "
        f"{run.path('classifier', 'confusion_matrix.png')}   Figures: {run.path('metrics.json')}\n"
        f"Serve it again: bert-serve --model_name={_MODEL_NAME} --model_base_path={run.path('served')} "
        "--rest_api_port=8501"
    )


def console_main() -> None:
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
