"""bert-quickstart: goes from raw text to a served and queried model in minutes, on a laptop, without a download.

    bert-quickstart
    bert-quickstart --time_budget_minutes=10
    bert-quickstart --input_file='my_text/*.txt' --output_dir=runs/my_text

Text -> WordPiece vocabulary -> pre-training data -> masked-LM and next-sentence pre-training -> a classifier,
fine-tuned from the pre-trained weights and from random ones -> a search -> a SavedModel that takes strings -> an HTTP
server -> answers. Most stages run one of the other commands and show its command line. The same command continues after
the last finished stage.
"""

import json
import statistics
import subprocess
import time
import urllib.request

from keras_bert.errors import InputError
from keras_bert.files import expand_files, read_json, read_lines, write_json, write_lines
from keras_bert.presets.catalog import PRESETS
from tasks import flags
from tasks.quickstart import corpus, docstrings
from tasks.quickstart.corpus import Document
from tasks.quickstart.pipeline import run_command, start_command
from tasks.quickstart.settings import QuickstartSettings
from tasks.text.stages import StageRun

_MODEL_NAME = "quickstart"
_STAGES = {"do_train": True, "do_eval": True}
_LENGTH = 64  # Tokens of a sequence.
_NUM_PACKAGES, _MAX_SENTENCES = 10, 20_000
_NUM_LABELS, _MAX_DEV_ROWS = 8, 250
_NUM_QUESTIONS = 4
_LONG_QUESTION = 100  # Characters; about a line of the terminal.
_SEARCH_QUESTION = "how do I compute the inverse of a matrix"
_NUM_SHOWN = 3  # Passages.
_LENGTHS = {"max_seq_length": _LENGTH, "max_predictions_per_seq": 13}  # A fifth, as `masked_lm_prob` below.
# The recipe in docs/benchmarks.md that learns most in these minutes. `save_checkpoints_steps` leaves the time to steps:
# besides the last evaluation, there is only the one that measures how long an evaluation takes.
_PRETRAINING = {
    "train_batch_size": 32,
    "learning_rate": 4e-3,
    "num_warmup_steps": 50,
    "optimizer": "muon",
    "adam_lr_ratio": 0.75,
    "initial_attention": "neighbors",
    "next_sentence_weight": 0.3,
    "dynamic_masking": True,
    "masked_lm_prob": 0.2,
    "eval_batch_size": 64,
    "max_eval_steps": 30,
    "save_checkpoints_steps": 100_000,
}
# The paper's rates, 2e-5 to 5e-5, are for models a hundred times larger. Random weights need about a hundred steps, 4
# epochs of 800 rows, to do better than chance.
_FINE_TUNING = {"learning_rate": 1e-3, "optimizer": "adamw", "train_batch_size": 32, "eval_batch_size": 64}
_FINE_TUNING_STEPS = 100
_NUM_SEEDS = 3
_SEARCH = {"learning_rate": 3e-3, "optimizer": "adamw", "num_train_epochs": 1, "eval_batch_size": 64}
_SEARCH_BATCH = 64
_SEARCH_ROWS = {"train": 12_000, "dev": 1000}


def quickstart(settings: QuickstartSettings) -> None:
    """Runs all stages, prints a table of them, and writes their records by stage name to `metrics.json`.

    Raises:
        InputError: the text or the directory cannot be used.
    """
    own = None
    if settings.input_file:
        own = corpus.without_repeats(corpus.read_texts(expand_files(settings.input_file)))
    checksum = own and corpus.hash_of("\n".join(corpus.lines_of(own)))
    run = StageRun(settings.output_dir, settings.identity(), {"text (--input_file)": checksum})
    run.stage("corpus", lambda: _make_corpus(run, settings, own))
    run.stage("vocabulary", lambda: _train_vocabulary(run))
    run.stage("pre-training data", lambda: _create_data(run, settings))
    run.stage("pre-training", lambda: _pretrain(run, settings))
    run.stage("fine-tuning", lambda: _fine_tune(run, settings, "classifier", load_weights=True))
    run.stage("fine-tuning, random start", lambda: _fine_tune(run, settings, "random_classifier", load_weights=False))
    if min(run.records["corpus"]["search_rows"]) > 1:
        run.stage("search", lambda: _train_search(run, settings))
        run.stage("search export", lambda: _export_search(run))
    run.stage("export", lambda: _export(run))
    run.stage("serving", lambda: _serve(run), keep=False)
    write_json(run.path("metrics.json"), run.records)
    print(f"\n{run.table()}\n\n{_summary(run)}", flush=True)


# === Text ===


def _make_corpus(run: StageRun, settings: QuickstartSettings, own: list[Document] | None) -> dict:
    documents = own or _read_docstrings()
    sides = training, held_out = corpus.split(documents)
    write_lines(run.path("corpus", "train.txt"), corpus.lines_of(training))
    write_lines(run.path("corpus", "held_out.txt"), corpus.lines_of(held_out))
    has_labels = len({document.label for document in held_out}) > 1
    if not has_labels:
        print("The text gives no two labels: fine-tuning tells the installed packages apart instead.", flush=True)
        sides = corpus.split(_read_docstrings())
    are_files = own is not None and has_labels
    tables = corpus.label_sentences(sides, _NUM_LABELS, (settings.rows_per_label, _MAX_DEV_ROWS), not are_files)
    labels = sorted({label for _, label in tables[0]})
    for name, rows in zip(("train", "dev"), tables, strict=True):
        if len({label for _, label in rows}) < 2 or len(rows) < 2 * len(labels):
            raise InputError(f"--input_file: too little text for a {name} table, {len(rows)} rows. Give longer files.")
        write_lines(run.path("corpus", f"{name}.tsv"), map("\t".join, [("sentence", "label"), *rows]))
    return {
        "figure": corpus.summary(documents),
        "labels": labels,
        "labels_are": "input files" if are_files else "installed packages",
        "labelled_sentences": [len(rows) for rows in tables],
        "search_rows": _write_search_rows(run, training, held_out),
    }


def _read_docstrings() -> list[Document]:
    return corpus.without_repeats(docstrings.collect(_NUM_PACKAGES, _MAX_SENTENCES))


def _write_search_rows(run: StageRun, training: list[Document], held_out: list[Document]) -> list[int]:
    """Writes pairs to train on, pairs to evaluate on, and all passages, such as `pandas.read_csv: Read a ...`."""
    passages, counts = [], []
    for (part, max_rows), documents in zip(_SEARCH_ROWS.items(), (training, held_out), strict=True):
        rows = corpus.search_rows(documents)
        passages += [f"{name}: {question} {passage}" for name, question, passage in rows]
        pairs = [(question, passage) for _, question, passage in rows[:max_rows]]
        write_lines(run.path("corpus", f"pairs_{part}.tsv"), map("\t".join, [("question", "passage"), *pairs]))
        counts.append(len(pairs))
    write_lines(run.path("corpus", "passages.txt"), passages)
    return counts


# === Pre-training ===


def _train_vocabulary(run: StageRun) -> dict:
    vocab_file = run.path("vocab.txt")
    run_command("bert-train-vocab", input_file=run.path("corpus", "train.txt"), vocab_file=vocab_file, vocab_size=8000)
    size = sum(1 for _ in read_lines(vocab_file))
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
            random_seed=settings.random_seed,
            **_LENGTHS,
        )
        instances[part] = read_json(f"{output_file}.report.json")["instances"]
    figure = f"{instances['train']:,} training and {instances['held_out']:,} held-out instances"
    return {"figure": figure, "instances": instances}


def _pretrain(run: StageRun, settings: QuickstartSettings) -> dict:
    # Settings for minutes of training instead of days. A few passes over the text do not overfit a small model, so
    # dropout is off. Kernels start with a standard deviation of 1 / sqrt(H), which keeps a layer's output as large as
    # its input. The paper's 0.02 is close to that for H = 1024, but less than a quarter of it for H = 128, where the
    # loss then stays on the unigram plateau for some 700 of 2,500 steps longer.
    config = PRESETS[settings.preset].config
    deviation = round(config.hidden_dim**-0.5, 3)
    size = run.records["vocabulary"]["vocabulary_size"]
    config = config.replace(vocabulary_size=size, dropout=0.0, initializer_range=deviation)
    config.to_json_file(run.path("bert_config.json"))
    run_command(
        "bert-pretrain",
        input_file=run.path("data", "train.tfrecord"),
        eval_input_file=run.path("data", "held_out.tfrecord"),
        output_dir=run.path("pretrained"),
        vocab_file=run.path("vocab.txt"),
        bert_config_file=run.path("bert_config.json"),
        time_budget_minutes=settings.time_budget_minutes,
        random_seed=settings.random_seed,
        **_LENGTHS,
        **_PRETRAINING,
        **_STAGES,
    )
    metrics = read_json(run.path("pretrained", "metrics.json"))
    figure = (
        f"{metrics['train_steps']:,} steps, held-out masked-LM accuracy {metrics['masked_lm_accuracy']:.1%} (most "
        f"frequent token: {metrics['unigram_accuracy']:.1%})"
    )
    return {"figure": figure, **metrics}


# === Fine-tuning ===


def _fine_tune(run: StageRun, settings: QuickstartSettings, name: str, load_weights: bool) -> dict:
    """Fine-tunes with several seeds; returns the dev accuracy of each, and the metrics of the best."""
    num_rows = run.records["corpus"]["labelled_sentences"][0]
    run_command(
        "bert-classify",
        train_file=run.path("corpus", "train.tsv"),
        dev_file=run.path("corpus", "dev.tsv"),
        text_column="sentence",
        label_column="label",
        preset=run.path("pretrained", "preset"),
        load_weights=load_weights,
        output_dir=run.path(name),
        max_seq_length=_LENGTH,
        num_train_epochs=_FINE_TUNING_STEPS * _FINE_TUNING["train_batch_size"] / num_rows,
        num_restarts=_NUM_SEEDS,
        random_seed=settings.random_seed,
        **_FINE_TUNING,
        **_STAGES,
    )
    sweep, metrics = read_json(run.path(name, "sweep", "sweep.json")), read_json(run.path(name, "metrics.json"))
    accuracies = [training["metrics"]["accuracy"] for training in sweep["runs"]]
    start = "from pre-training" if load_weights else "from random weights"
    figure = f"accuracy {_spread(accuracies, '.1%')} {start} (majority class: {metrics['majority_accuracy']:.1%})"
    return {"figure": figure, "accuracies": accuracies, "best": metrics}


def _spread(values: list[float], form: str) -> str:
    """Renders the mean and the range."""
    return f"{statistics.fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


# === Search ===


def _train_search(run: StageRun, settings: QuickstartSettings) -> dict:
    """Trains an embedder that finds the rest of a document by its first sentence."""
    run_command(
        "bert-embed",
        train_file=run.path("corpus", "pairs_train.tsv"),
        dev_file=run.path("corpus", "pairs_dev.tsv"),
        preset=run.path("pretrained", "preset"),
        output_dir=run.path("embedder"),
        max_seq_length=_LENGTH,
        train_batch_size=min(_SEARCH_BATCH, run.records["corpus"]["search_rows"][0]),
        random_seed=settings.random_seed,
        **_SEARCH,
        **_STAGES,
    )
    metrics = read_json(run.path("embedder", "metrics.json"))
    return {"figure": f"recall@10 {metrics['recall@10']:.1%} of held-out questions", **metrics}


def _export_search(run: StageRun) -> dict:
    passages, export_dir = run.path("corpus", "passages.txt"), run.path("search")
    run_command(
        "bert-export", model_dir=run.path("embedder", "model"), task="search", passages=passages, export_dir=export_dir
    )
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers ops of the graph)

    answer = tf.saved_model.load(f"{export_dir}/1").signatures["query"](text=tf.constant([_SEARCH_QUESTION]))
    texts = [text.decode() for text in answer["passages"][0].numpy()]
    print(f"  {_SEARCH_QUESTION}", *(f"    -> {text}" for text in texts[:_NUM_SHOWN]), sep="\n", flush=True)
    count = sum(1 for _ in read_lines(passages))
    return {"figure": f"{count:,} passages; {_SEARCH_QUESTION!r} finds {texts[0].split(': ')[0]}", "answers": texts}


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
    record = run.records["corpus"]
    starts = [run.records[name]["accuracies"] for name in ("fine-tuning", "fine-tuning, random start")]
    gains = [100 * (pretrained - random) for pretrained, random in zip(*starts, strict=True)]
    return (
        f"What pre-training bought: {_spread(gains, '+.1f')} points, the mean and range of {_NUM_SEEDS} seeds.\n"
        f"At telling {len(record['labels'])} {record['labels_are']} apart by one sentence, the classifier reaches "
        f"{_spread(starts[0], '.1%')} from pre-training and {_spread(starts[1], '.1%')} from random weights.\n\n"
        f"Report: {run.path('classifier', 'report.html')}   Figures: {run.path('metrics.json')}\n"
        f"Serve it again: bert-serve --model_name={_MODEL_NAME} --model_base_path={run.path('served')} "
        "--rest_api_port=8501"
    )


console_main = flags.console_main(quickstart, QuickstartSettings)

if __name__ == "__main__":
    console_main()
