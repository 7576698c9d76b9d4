"""Contextual embeddings of any texts from chosen layers, and the paper's feature-based named-entity recognition.

    bert-features --preset=base --input_file=texts.txt --layers=-1,-2,-3,-4 --output_file=features.npz
    bert-features --preset=hf://sentence-transformers/all-MiniLM-L6-v2 --input_file=texts.txt --pooling=mean \\
        --normalize --output_file=sentences.parquet
    bert-features --task_name=ner --preset=base --train_file=train.conll --dev_file=dev.conll --do_train --do_eval \\
        --layers=-1,-2,-3,-4 --combine=concatenate --output_dir=runs/features

extract (the default): --input_file holds a text a line, `a ||| b` for a pair; or, with --input_format=conll, a word a
line and a blank line between sentences. The ending of --output_file says the format: .npz, .tfrecord, .parquet (needs
pyarrow) or .jsonl (google-research/bert's). A token has its string, its id and the characters it stems from; a
sentence of words the place of each word's first token too. --pooling=mean is over all real tokens, [CLS] and [SEP]
included, as sentence-transformers has it. --output_dir, where given, gets metrics.json and flags.json.

ner (the paper's section 5.3): the features of each word's first token are computed once, kept in
--output_dir/features, and a BiLSTM is trained on them. The rows of the paper's Table 7 are
    embeddings                 --layers=embeddings
    second-to-last hidden      --layers=-2
    last hidden                --layers=-1
    weighted sum last four     --layers=-1,-2,-3,-4 --combine=weighted_sum
    concat last four           --layers=-1,-2,-3,-4 --combine=concatenate
    weighted sum all twelve    --layers=all --combine=weighted_sum
each with --lstm_units=768 (the default) and --document_context=document. The weights of a sum are learned here.
"""

import os

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import expand_file, expand_files
from keras_bert.presets import resolve_preset
from keras_bert.weights import read_bert_config
from tasks import flags as task_flags
from tasks.bad_rows import BadRows
from tasks.conll import DELIMITERS, Documents, read_conll
from tasks.features import data, writing
from tasks.features.layers import COMBINES, POOLINGS, check_layer_weights, resolve_layers
from tasks.tags import SCHEMES

TASKS = ("extract", "ner")
INPUT_FORMATS = ("text", "conll")
DEFAULT_LAYERS = ("-1", "-2", "-3", "-4")  # google-research/bert extract_features.py
DEFAULT_OUTPUT = "features.npz"
# Flags of one task alone: those that both tasks have are not listed.
EXTRACTION_FLAGS = frozenset({"input_file", "input_format", "output_file", "layer_weights", "pooling", "normalize"})
SHARED_FLAGS = frozenset(
    {
        "task_name", "preset", "output_dir", "layers", "combine", "max_seq_length", "eval_batch_size", "bad_rows",
        "tag_column", "delimiter", "tag_scheme",
    }
)  # fmt: skip


def define_flags() -> None:
    """Defines the command's flags; those shared with other commands come from `tasks.flags`."""
    _define_extraction()
    _define_tagging()
    task_flags.define_training(learning_rate=1e-3, optimizer="adamw")
    task_flags.define_train_epochs(num_train_epochs=10.0)
    task_flags.define_distribution()


def _define_extraction() -> None:
    for name, default, values, text in (
        ("task_name", "extract", TASKS, "extract embeddings; or ner: train a tagger on frozen ones."),
        ("input_format", "text", INPUT_FORMATS, "text: a text a line; conll: a word a line, blank lines between."),
        ("combine", "none", COMBINES, "What becomes of several layers; for --task_name=ner none means concatenate."),
        ("pooling", "none", POOLINGS, "none: a vector a token; else one a text: the first token's, the mean of all, "
         "or the pooler's."),
        ("bad_rows", "refuse", task_flags.BAD_ROWS, "A file with rows that cannot be used: refuse it, or skip them."),
    ):  # fmt: skip
        flags.DEFINE_enum(name, default, list(values), text, allow_override=True)
    for name, text in {
        "preset": "Encoder and vocabulary: a short name (tiny ... large), a full name, a handle (hf://...), or a "
        "directory, zip or file of any known format.",
        "input_file": "Files to extract from: paths or glob patterns with commas between.",
        "output_file": f"File of the embeddings; default: {DEFAULT_OUTPUT} in --output_dir.",
        "output_dir": "Directory for everything else a run writes: results, and for ner model, features, curve.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    flags.DEFINE_list("layers", None, "Layers: -1 the last, 1 the first, 0 or embeddings, all (of the encoder); "
                      "default: -1,-2,-3,-4, with --pooling -1.", allow_override=True)  # fmt: skip
    flags.DEFINE_list("layer_weights", None, "One factor for each of --layers, for --combine=weighted_sum.",
                      allow_override=True)  # fmt: skip
    flags.DEFINE_boolean("normalize", False, "Divide each pooled vector by its length.", allow_override=True)
    flags.DEFINE_integer("max_seq_length", 128, "Longest sequence in tokens: longer texts are cut, sentences of words "
                         "read in several windows.", lower_bound=4, allow_override=True)  # fmt: skip


def _define_tagging() -> None:
    for name, text in {
        "train_file": "ner: file of tagged words to train on.",
        "dev_file": "ner: file of tagged words to evaluate on.",
        "test_file": "ner: file of words to predict, with or without tags.",
    }.items():
        flags.DEFINE_string(name, None, text, allow_override=True)
    flags.DEFINE_integer("tag_column", -1, "ner: column of the tag, from 0 (the token's); negative: from the end.",
                         allow_override=True)  # fmt: skip
    flags.DEFINE_enum("delimiter", None, list(DELIMITERS), "What parts the columns; default: tab if the first row has "
                      "one, else white space.", allow_override=True)  # fmt: skip
    flags.DEFINE_enum("tag_scheme", "auto", ["auto", *SCHEMES], "Scheme of the tags; auto: each file's by its content.",
                      allow_override=True)  # fmt: skip
    flags.DEFINE_enum("document_context", "none", ["none", "document"], "ner: document: windows run over whole "
                      "documents; a file without -DOCSTART- is one.", allow_override=True)  # fmt: skip
    for name, default, least, text in (
        ("lstm_units", 768, 1, "width of each direction (the paper: 768)."),
        ("lstm_layers", 2, 1, "BiLSTMs, one on the other (the paper: 2)."),
        ("early_stopping_patience", 0, 0, "evaluations without a better one after which training ends, with the "
         "weights of the best; 0: all steps, and the last weights."),
    ):  # fmt: skip
        flags.DEFINE_integer(name, default, f"ner: {text}", lower_bound=least, allow_override=True)
    flags.DEFINE_float("lstm_dropout", 0.1, "ner: dropout on the input and the output of each BiLSTM.", lower_bound=0.0,
                       upper_bound=0.9, allow_override=True)  # fmt: skip
    task_flags.define_stages("train", "eval", "predict")


define_flags()


# === Extraction ===


def extract(
    *,
    preset: str,
    input_file: str | list[str],
    output_file: str | None = None,
    output_dir: str | None = None,
    input_format: str = "text",
    layers: list[str] | None = None,
    combine: str = "none",
    layer_weights: list[str] | list[float] | None = None,
    pooling: str = "none",
    normalize: bool = False,
    max_seq_length: int = 128,
    eval_batch_size: int = 8,
    bad_rows: str = "refuse",
    tag_column: int = -1,
    delimiter: str | None = None,
    tag_scheme: str = "auto",
) -> dict:
    """Writes the embeddings of texts; every argument is the flag of its name.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported at once.

    Args:
        preset: encoder and vocabulary.
        input_file: as in `keras_bert.files.expand_files`.
        output_file: its ending says the format; one of `output_file` and `output_dir` is needed.
        output_dir: gets `metrics.json` and, without `output_file`, `features.npz`.
        input_format: "text" or "conll".
        layers: names of layers, as in `tasks.features.layers.resolve_layers`.
        combine, layer_weights, pooling, normalize: as in `tasks.features.model.build_feature_extractor`.
        max_seq_length: tokens of a sequence at most.
        eval_batch_size: sequences of a batch.
        bad_rows: "refuse" or "skip": what an empty line, a broken row, or a sentence too long to be pooled does.
        tag_column, delimiter, tag_scheme: as in `tasks.conll.read_conll`, for "conll"; a file of one column will do.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a row, a preset or a setting is wrong; there is then no new `output_file`.
    """
    if not (output_file or output_dir):
        raise InputError("Nowhere to write to. Give --output_file, or --output_dir.")
    output_file = output_file or os.path.join(output_dir, DEFAULT_OUTPUT)
    writing.check_path(output_file)
    default = ["-1"] if pooling != "none" else DEFAULT_LAYERS
    chosen = _check_layers(task_flags.require_preset(preset, "Extracting features"), layers or default, max_seq_length)
    weights = check_layer_weights(layer_weights, combine, len(chosen))
    _check_pooling(pooling, normalize, combine, chosen, read_bert_config(preset).num_layers)
    rejected = BadRows(bad_rows)
    paths = expand_files(_require(input_file, "--input_file: the texts to extract from"))
    if input_format == "conll":
        reading = {"tag_column": tag_column, "delimiter": delimiter, "tag_scheme": tag_scheme, "needs_tags": False}
        rows: list[data.Row] = []
        for path in paths:
            rows += data.sentence_rows(read_conll(path, **reading, bad_rows=rejected), len(rows))
        count = len(rows)
    else:
        count = data.count_texts(paths, rejected)
        rows = data.read_texts(paths, None)

    from tasks.features import stages

    settings = stages.ExtractionSettings(
        preset=preset,
        layers=tuple(chosen),
        combine=combine,
        layer_weights=tuple(weights),
        pooling=pooling,
        normalize=normalize,
        max_seq_length=max_seq_length,
        eval_batch_size=eval_batch_size,
    )
    results = stages.extract(rows, count, settings, output_file=output_file, bad_rows=rejected)
    if output_dir:
        stages.write_metrics(output_dir, results, rejected)
    return results


def _check_layers(preset: str, layers: list[str], max_seq_length: int) -> list[int]:
    config = read_bert_config(preset)
    chosen = resolve_layers(layers, config.num_layers)
    if max_seq_length > config.max_sequence_length:
        raise InputError(
            f"--max_seq_length={max_seq_length}: {preset} has positions for {config.max_sequence_length} tokens. Give "
            "at most that many."
        )
    resolve_preset(preset, "tokenizer")  # Before TensorFlow is imported.
    return chosen


def _check_pooling(pooling: str, normalize: bool, combine: str, chosen: list[int], num_layers: int) -> None:
    if normalize and pooling == "none":
        raise InputError("--normalize is for pooled vectors. Give --pooling=mean, cls or pooler, or leave it out.")
    if pooling == "pooler" and (chosen != [num_layers] or combine != "none"):
        raise InputError("--pooling=pooler takes the last layer alone. Leave out --layers and --combine.")


def _require(value, what: str):
    if not value:
        raise InputError(f"{what}. Give it.")
    return value


# === Tagging ===


def tag(
    *,
    output_dir: str,
    preset: str | None = None,
    train_file: str | None = None,
    dev_file: str | None = None,
    test_file: str | None = None,
    layers: list[str] | None = None,
    combine: str = "none",
    max_seq_length: int = 128,
    document_context: str = "none",
    do_train: bool = False,
    do_eval: bool = False,
    do_predict: bool = False,
    train_batch_size: int = 32,
    eval_batch_size: int = 8,
    num_train_epochs: float = 10.0,
    early_stopping_patience: int = 0,
    bad_rows: str = "refuse",
    tag_column: int = -1,
    delimiter: str | None = None,
    tag_scheme: str = "auto",
    **training,
) -> dict:
    """Trains, evaluates and applies a BiLSTM on frozen features; every argument is the flag of its name.

    Args:
        output_dir: where everything is written; without `do_train`, its `model/` is evaluated or applied.
        preset: the frozen encoder; needed with `do_train` only.
        train_file, dev_file, test_file: the files of the stages, of tagged words.
        layers, combine, max_seq_length, document_context: what the features are; used with `do_train` only, as are
            `train_batch_size`, `num_train_epochs`, `early_stopping_patience` and `training`.
        do_train, do_eval, do_predict: the stages; at least one.
        eval_batch_size: sentences of a batch in evaluation and prediction.
        bad_rows, tag_column, delimiter, tag_scheme: as in `tasks.conll.read_conll`.
        **training: further attributes of `tasks.features.tagging.TaggerSettings`.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: a file, a row, a preset or a setting is wrong.
    """
    stages = {"train": (do_train, train_file), "dev": (do_eval, dev_file), "test": (do_predict, test_file)}
    files = {split: file for split, (wanted, file) in stages.items() if wanted}
    if not files:
        raise InputError("Nothing to do. Give --do_train, --do_eval or --do_predict, or several of them.")
    if do_train:
        chosen = _check_layers(task_flags.require_preset(preset), layers or DEFAULT_LAYERS, max_seq_length)
        if early_stopping_patience and not do_eval:
            raise InputError("--early_stopping_patience needs an evaluation. Give --do_eval and --dev_file.")
    rejected = BadRows(bad_rows)
    reading = {"tag_column": tag_column, "delimiter": delimiter, "tag_scheme": tag_scheme, "bad_rows": rejected}
    splits = {split: _read(split, file, reading) for split, file in files.items()}

    from tasks.features import tagging

    settings = None
    if do_train:
        settings = tagging.TaggerSettings(
            preset=preset,
            layers=tuple(chosen),
            combine="concatenate" if combine == "none" else combine,
            max_seq_length=max_seq_length,
            document_context=document_context == "document",
            train_batch_size=train_batch_size,
            eval_batch_size=eval_batch_size,
            num_train_epochs=num_train_epochs,
            early_stopping_patience=early_stopping_patience,
            **training,
        )
    results = tagging.run_stages(
        splits, settings, output_dir=output_dir, eval_batch_size=eval_batch_size, skipped=rejected.count
    )
    rejected.write(output_dir)
    return results


def _read(split: str, file: str | None, reading: dict) -> Documents:
    path = expand_file(f"--{split}_file", _require(file, f"--{split}_file: the file of the stage"))
    return read_conll(path, needs_tags=split != "test", **reading)


# === Command ===


def main(argv: list[str]) -> None:
    """Runs the command; `argv` holds its name alone."""
    del argv
    settings = task_flags.resolved_flags()
    is_extraction = settings["task_name"] == "extract"
    is_own = {name: name in SHARED_FLAGS or (name in EXTRACTION_FLAGS) == is_extraction for name in settings}
    for name in settings:
        if not is_own[name] and flags.FLAGS[name].present:
            other = "ner" if is_extraction else "extract"
            raise InputError(f"--{name} is for --task_name={other}. Received: --task_name={settings['task_name']}")
    own = {name: value for name, value in settings.items() if is_own[name] and name != "task_name"}
    if not is_extraction:
        _require(own["output_dir"], "--output_dir: the directory of the run")
    results = (extract if is_extraction else tag)(**own)
    output_dir = settings["output_dir"]
    if output_dir:
        task_flags.write_flags(settings, output_dir)
    _print(results, settings)


def _print(results: dict, settings: dict) -> None:
    if settings["task_name"] == "ner":
        if settings["do_eval"]:
            print(f"entity F1: {results['f1']:.4f}")
        print(f"Results are in {settings['output_dir']}.")
        return
    if results["cut_rows"]:
        print(f"{results['cut_rows']} of {results['rows']} texts were cut to --max_seq_length tokens.")
    where = settings["output_file"] or os.path.join(settings["output_dir"], DEFAULT_OUTPUT)
    print(f"{results['rows']} rows, {results['tokens']} tokens, {results['tokens_per_second']:.0f} tokens/s: {where}")


def console_main() -> None:
    """The console script `bert-features`."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
