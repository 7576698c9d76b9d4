"""bert-quickstart: from raw text to a served and queried model in minutes, on a laptop, with no download.

Text -> WordPiece vocabulary -> pre-training data -> masked-LM and next-sentence pre-training -> words for holes in
held-out sentences -> a fine-tuned classifier -> a learning curve, which shows what pre-training is worth -> a
SavedModel that takes strings -> an HTTP server -> answers. Most stages run one of the other commands and show its
command line. The same command continues after the last finished stage.
"""

import json
import math
import statistics
import subprocess
import time
import urllib.request

from keras_bert.errors import InputError
from keras_bert.files import expand_files, read_json, read_lines, write_json, write_lines
from keras_bert.presets import PRESETS
from tasks import flags
from tasks.quickstart import docstrings, own_text, search
from tasks.quickstart.corpus import Corpus, label_sentences
from tasks.quickstart.pipeline import StageRun, run_command, start_command
from tasks.quickstart.settings import QuickstartSettings

_HELD_OUT_SHARE = 0.1
_MODEL_NAME = "quickstart"
_MIN_WORDS = 8  # Shorter docstrings, such as "Returns the result.", could come from any package.
_NUM_QUESTIONS = 4
_LONG_QUESTION = 100  # Characters; about a line of the terminal.
_STAGES = {"do_train": True, "do_eval": True}
# Of the recipes in docs/benchmarks.md the one that learns most in these minutes.
_MASKED_SHARE = 0.2  # In training alone; the held-out records keep the 15% that they were written with.
_PRETRAINING = {
    "optimizer": "muon",
    "adam_lr_ratio": 0.75,
    "initial_attention": "neighbors",
    "next_sentence_weight": 0.3,
    "dynamic_masking": True,
    "masked_lm_prob": _MASKED_SHARE,
}
_NUM_HOLES = 5
# The paper's rates, 2e-5 to 5e-5, are for models a hundred times larger; docs/quickstart.md compares three. Random
# weights need about a hundred steps to leave chance behind, so no patience may end a training.
_FINE_TUNING = {"learning_rate": 1e-3, "optimizer": "adamw", "validation_share": 0.2, "early_stopping_patience": 20}
_FINE_TUNING_BATCH = 32
_MIN_FINE_TUNING_STEPS = 100
_SIZES = (16, 64)  # Training rows of each label on the learning curve, besides all that there are.
_NUM_SEEDS = 3


def quickstart(settings: QuickstartSettings) -> dict:
    """Runs all stages, prints the table, and writes `metrics.json`.

    Returns:
        The records of the stages by name, as in `metrics.json`.

    Raises:
        InputError: the text or the directory cannot be used.
    """
    own = None  # Read before the directory is touched, so that a wrong path loses nothing.
    if settings.input_file:
        own = own_text.read_corpus(expand_files(settings.input_file))
        own_text.split(own, _HELD_OUT_SHARE)
    identity = {**settings.identity(), "input_checksum": own and own_text.checksum(own)}
    run = StageRun(settings.output_dir, identity, settings.overwrite)
    run.stage("corpus", lambda: _make_corpus(run, settings, own))
    run.stage("vocabulary", lambda: _train_vocabulary(run, settings))
    run.stage("pre-training data", lambda: _create_data(run, settings))
    run.stage("pre-training", lambda: _pretrain(run, settings))
    run.stage("masked words", lambda: _ask_masked_lm(run, settings))
    run.stage("fine-tuning", lambda: _fine_tune(run, settings))
    run.stage("learning curve", lambda: _draw_learning_curve(run, settings))
    if min(run.records["corpus"].get("pairs", [0])) > 1:
        run.stage("search", lambda: search.train(run, settings, "embedder", load_weights=True))
        run.stage("search, random start", lambda: search.train(run, settings, "random_embedder", load_weights=False))
        run.stage("search export", lambda: search.export(run, search.QUESTION))
    run.stage("export", lambda: _export(run))
    run.stage("serving", lambda: _serve(run), keep=False)
    write_json(run.path("metrics.json"), run.records)
    print(f"\n{run.table()}\n\n{_summary(run)}", flush=True)
    return run.records


# === Text ===


def _make_corpus(run: StageRun, settings: QuickstartSettings, own: Corpus | None) -> dict:
    corpus = own or docstrings.collect(max_sentences_per_package=settings.max_sentences_per_package)
    print(corpus.summary(), flush=True)
    training, held_out = parts = (own_text if own else docstrings).split(corpus, _HELD_OUT_SHARE)
    write_lines(run.path("corpus", "train.txt"), training.lines())
    write_lines(run.path("corpus", "held_out.txt"), held_out.lines())
    num_pairs = search.write_texts(run, training, held_out)
    has_labels = len(held_out.sentences_by_package()) > 1
    if not has_labels:
        print("The text gives no two labels: fine-tuning tells the installed packages apart instead.", flush=True)
        parts = docstrings.split(docstrings.collect(max_sentences_per_package=2000), _HELD_OUT_SHARE)
    are_files = own is not None and has_labels
    tables = label_sentences(
        *parts,
        num_packages=settings.num_labels,
        max_training_rows=settings.rows_per_label,
        min_words=1 if are_files else _MIN_WORDS,  # Not every language separates words by blanks.
        hide_names=not are_files,
    )
    labels = sorted({label for _, label in tables[0]})
    for name, rows in zip(("train", "dev"), tables, strict=True):
        if len({label for _, label in rows}) < 2 or len(rows) < 2 * len(labels):
            raise InputError(f"--input_file: too little text for a {name} table, {len(rows)} rows. Give longer files.")
        write_lines(run.path("corpus", f"{name}.tsv"), map("\t".join, [("sentence", "label"), *rows]))
    return {
        "figure": corpus.summary(),
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "bytes": corpus.num_bytes,
        "labels": labels,
        "labels_are": "input files" if are_files else "installed packages",
        "labelled_sentences": [len(rows) for rows in tables],
        "pairs": num_pairs,
    }


# === The other commands ===


def _train_vocabulary(run: StageRun, settings: QuickstartSettings) -> dict:
    run_command(
        "bert-train-vocab",
        input_file=run.path("corpus", "train.txt"),
        vocab_file=run.path("vocab.txt"),
        vocab_size=settings.vocab_size,
    )
    size = sum(1 for _ in read_lines(run.path("vocab.txt")))
    return {"figure": f"{size:,} WordPieces", "vocabulary_size": size}


def _create_data(run: StageRun, settings: QuickstartSettings) -> dict:
    instances = {}
    for part, copies in (("train", 2), ("held_out", 1)):
        output_file = run.path("data", f"{part}.tfrecord")
        run_command(
            "bert-create-pretraining-data",
            input_file=run.path("corpus", f"{part}.txt"),
            output_file=output_file,
            vocab_file=run.path("vocab.txt"),
            dupe_factor=copies,
            **_lengths(settings),
        )
        instances[part] = read_json(f"{output_file}.report.json")["instances"]
    figure = f"{instances['train']:,} training and {instances['held_out']:,} held-out instances"
    return {"figure": figure, "instances": instances}


def _lengths(settings: QuickstartSettings) -> dict:
    """Returns the flags that data and pre-training share."""
    longest, seed = settings.max_seq_length, settings.random_seed
    predictions = max(1, round(longest * _MASKED_SHARE))
    return {"max_seq_length": longest, "max_predictions_per_seq": predictions, "random_seed": seed}


def _pretrain(run: StageRun, settings: QuickstartSettings) -> dict:
    # For minutes of training instead of days. A few passes over the text do not overfit a small model, so dropout is
    # off. Kernels start at a deviation of 1 / sqrt(H), which keeps a layer's output as large as its input. The paper's
    # 0.02 is about that at H = 1024, but a fifth of it at H = 128, where the loss then stays on the unigram plateau for
    # some 700 of 2,500 steps longer.
    config = PRESETS[settings.preset].config
    deviation = round(config.hidden_dim**-0.5, 3)
    size = run.records["vocabulary"]["vocabulary_size"]
    config = config.replace(vocabulary_size=size, dropout=0.0, initializer_range=deviation)
    config.to_json_file(run.path("bert_config.json"))
    steps = settings.num_train_steps
    run_command(
        "bert-pretrain",
        input_file=run.path("data", "train.tfrecord"),
        eval_input_file=run.path("data", "held_out.tfrecord"),
        output_dir=run.path("pretrained"),
        vocab_file=run.path("vocab.txt"),
        bert_config_file=run.path("bert_config.json"),
        train_batch_size=settings.train_batch_size,
        eval_batch_size=64,
        learning_rate=settings.learning_rate,
        num_train_steps=steps,
        num_warmup_steps=max(1, steps // 10),
        save_checkpoints_steps=max(1, steps // 4),
        **_lengths(settings),
        **_PRETRAINING,
        **_STAGES,
    )
    metrics = read_json(run.path("pretrained", "metrics.json"))
    figure = (
        f"held-out masked-LM accuracy {metrics['masked_lm_accuracy']:.1%} (most frequent token: "
        f"{metrics['unigram_accuracy']:.1%}), next sentence {metrics['next_sentence_accuracy']:.1%} (majority answer: "
        f"{metrics['majority_next_sentence_accuracy']:.1%})"
    )
    return {"figure": figure, **metrics}


def _ask_masked_lm(run: StageRun, settings: QuickstartSettings) -> dict:
    from keras_bert import BertMaskedLM
    from tasks.quickstart import masked_words

    model = BertMaskedLM.from_preset(run.path("pretrained", "preset"), sequence_length=settings.max_seq_length)
    sentences = [line for _, line in read_lines(run.path("corpus", "held_out.txt"))]
    holes = masked_words.find_holes(sentences, model.preprocessor, _NUM_HOLES, _LONG_QUESTION)
    asked = [
        {"text": hole.text, "word": hole.word, "best": best}
        for hole, best in zip(holes, masked_words.best_words(model, holes), strict=True)
    ]
    for one in asked:
        words = ", ".join(f"{word} {probability:.0%}" for word, probability in one["best"])
        print(f"  {one['text']}\n    -> {words}; hidden: {one['word']}", flush=True)
    among = sum(one["word"] in dict(one["best"]) for one in asked)
    return {"figure": f"{among} of {len(asked)} hidden words among the model's five likeliest", "asked": asked}


# === Fine-tuning ===


def _fine_tuning_flags(run: StageRun, settings: QuickstartSettings, rows: int, load_weights: bool, seed: int) -> dict:
    """Returns the flags of `bert-classify` for a number of rows per label."""
    record = run.records["corpus"]
    num_rows = rows * len(record["labels"])
    num_examples = num_rows - round(num_rows * _FINE_TUNING["validation_share"])
    name = "train.tsv" if num_rows == record["labelled_sentences"][0] else f"train_{rows}.tsv"
    return dict(
        train_file=run.path("corpus", name),
        dev_file=run.path("corpus", "dev.tsv"),
        text_column="sentence",
        label_column="label",
        preset=run.path("pretrained", "preset"),
        load_weights=load_weights,
        max_seq_length=settings.max_seq_length,
        train_batch_size=_FINE_TUNING_BATCH,
        eval_batch_size=64,
        num_train_epochs=max(
            settings.num_train_epochs, math.ceil(_MIN_FINE_TUNING_STEPS * _FINE_TUNING_BATCH / num_examples)
        ),
        random_seed=seed,
        **_FINE_TUNING,
        **_STAGES,
    )


def _rows_per_label(run: StageRun) -> int:
    record = run.records["corpus"]
    return record["labelled_sentences"][0] // len(record["labels"])


def _fine_tune(run: StageRun, settings: QuickstartSettings) -> dict:
    flags_of_training = _fine_tuning_flags(run, settings, _rows_per_label(run), True, settings.random_seed)
    run_command("bert-classify", output_dir=run.path("classifier"), **flags_of_training)
    metrics = read_json(run.path("classifier", "metrics.json"))
    figure = (
        f"accuracy {metrics['accuracy']:.1%} from pre-training (majority class: {metrics['majority_accuracy']:.1%})"
    )
    return {"figure": figure, **metrics}


def _draw_learning_curve(run: StageRun, settings: QuickstartSettings) -> dict:
    """Repeats the fine-tuning with fewer rows, random weights and other seeds."""
    from tasks.classification.task import ClassificationSettings
    from tasks.quickstart import learning_curve

    header, *rows = (line for _, line in read_lines(run.path("corpus", "train.tsv")))
    largest, seed, found = _rows_per_label(run), settings.random_seed, run.records["fine-tuning"]
    sizes = [size for size in _SIZES if size < largest]
    for size in sizes:
        write_lines(run.path("corpus", f"train_{size}.tsv"), [header, *learning_curve.first_rows(rows, size)])
    results = learning_curve.measure(
        lambda *wanted: ClassificationSettings(
            output_dir=run.path("classifier"), **_fine_tuning_flags(run, settings, *wanted)
        ),
        [*sizes, largest],
        range(seed, seed + _NUM_SEEDS),
        known={(largest, True, seed): found["accuracy"]},
    )
    learning_curve.draw(run.path("learning_curve.png"), results, found["majority_accuracy"])
    gains = [
        f"{gain[0]:+.1f} points with {row['rows']} rows a label"
        for row, gain in zip(results, map(_gain, results), strict=True)
    ]
    return {"figure": f"pre-training bought {', '.join(gains)}", "results": results}


def _gain(row: dict) -> tuple[float, float, float]:
    """Returns mean, lowest and highest of what pre-training bought with each seed, in points."""
    gains = [100 * (one - other) for one, other in zip(row["pretrained"], row["random"], strict=True)]
    return statistics.fmean(gains), min(gains), max(gains)


# === Export and serving ===


def _export(run: StageRun) -> dict:
    run_command("bert-export", model_dir=run.path("classifier", "model"), export_dir=run.path("served"))
    return {"figure": f"SavedModel in {run.path('served')}, verified in a fresh process"}


def _serve(run: StageRun) -> dict:
    questions = _questions(run)
    flags_of_server = {"model_name": _MODEL_NAME, "model_base_path": run.path("served"), "rest_api_port": 0, "port": -1}
    with start_command("bert-serve", stdout=subprocess.PIPE, **flags_of_server) as server:
        line = server.stdout.readline()
        if " at http://" not in line:
            raise SystemExit(server.wait() or 1)
        print(line.strip(), flush=True)
        url = f"{line.split(' at ')[1].strip()}:predict"
        _ask(url, [text for text, _ in questions])  # Warms the server up.
        start = time.monotonic()
        answers = [_ask(url, [text])[0] for text, _ in questions]
        milliseconds = (time.monotonic() - start) * 1000 / len(questions)
    for (text, expected), answer in zip(questions, answers, strict=True):
        print(f"  {text}\n    -> {answer['label']} ({answer['score']:.0%}); expected: {expected}", flush=True)
    figure = f"{len(answers)} questions over HTTP, {milliseconds:.0f} ms each"
    return {"figure": figure, "milliseconds": milliseconds, "answers": answers}


def _questions(run: StageRun) -> list[tuple[str, str]]:
    """Picks held-out sentences with different labels, preferably short ones."""
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
        # The server is on this machine, so no proxy.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return json.load(response)["predictions"]
    except OSError as error:
        raise InputError(f"{url}: the server did not answer ({error}).") from error


# === Summary ===


def _summary(run: StageRun) -> str:
    from tasks.fine_tuning.sweep import format_table

    record = run.records["corpus"]
    rows = []
    for row in run.records["learning curve"]["results"]:
        shares = (f"{statistics.fmean(row[start]):.1%}" for start in ("pretrained", "random"))
        rows.append([row["rows"], *shares, "{:+.1f} points ({:+.1f} to {:+.1f})".format(*_gain(row))])
    header = ["rows of each", "from pre-training", "from random weights", "gain, its range over the seeds"]
    return (
        f"Telling {len(record['labels'])} {record['labels_are']} apart, means of {_NUM_SEEDS} fine-tunings (majority "
        f"class: {run.records['fine-tuning']['majority_accuracy']:.1%}):\n{format_table(header, rows)}\n\n"
        f"Learning curve: {run.path('learning_curve.png')}   Report: {run.path('classifier', 'report.html')}   "
        f"Figures: {run.path('metrics.json')}\n"
        f"Serve it again: bert-serve --model_name={_MODEL_NAME} --model_base_path={run.path('served')} "
        "--rest_api_port=8501"
    )


def main(settings: QuickstartSettings) -> None:
    quickstart(settings)


console_main = flags.console_main(main, QuickstartSettings)

if __name__ == "__main__":
    console_main()
