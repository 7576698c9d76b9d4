"""Runs the stages of `bert-adapt`: text, new tokens, evaluation of the old preset, training, and the new preset."""

import dataclasses
import functools
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.formats import keras_preset
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.presets import tokenizers, weights
from keras_bert.tokenization.normalizer import split_words
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from keras_bert.vocabulary import check_rows
from tasks.engine.settings import TrainingSettings
from tasks.pretraining.adaptation.new_pieces import choose_pieces
from tasks.pretraining.adaptation.settings import AdaptSettings
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.run import pretrain
from tasks.pretraining.train.settings import PretrainingSettings
from tasks.pretraining.train_vocab import VocabularySettings, train_vocab
from tasks.pretraining.word_counts import read_counts
from tasks.report.page import Report, write_report
from tasks.text.blocks import split_block, spool_pipes, text_blocks
from tasks.text.stages import StageRun
from tasks.text.steps import work_identity

_HELD_OUT = 10  # Every tenth document is held out,
_HELD_OUT_BYTES = 1 << 18  # up to this size, and at most a quarter of it from one document: about 500 sequences of 128.
_MIN_DOCUMENTS = 2 * _HELD_OUT  # The held-out text needs two: a random next sentence comes from another document.
_LINES = 32  # Maximum number of lines that are taken as a document if the text has too few documents.
_PASSES = 2  # Each pairs the sentences differently. Masks are drawn in each epoch anyway.
_CLOCK_WARMUP = 10  # Steps. A few minutes on a CPU allow some hundred.
# The paper's share (section 3.1). Words are masked as a whole, so that both vocabularies must guess them from context.
# Otherwise the remaining pieces of a word would help the old vocabulary, which splits more words.
_MASKS = {"masked_lm_prob": 0.15, "do_whole_word_mask": True}
_TOKENS, _BIAS = "embeddings/token_embedding/embeddings", "masked_lm/output_bias"
_SHOWN = 100  # New tokens to list in the report.
_SCORES = ("tokens", "masked_lm_loss")


@files.keep_copies()
def run_stages(settings: AdaptSettings) -> dict:
    """Runs all stages that are left to do; see `tasks.pretraining.adapt.adapt`."""
    preset, paths = settings.preset, files.expand_files(settings.input_file)
    tokenizer = tokenizers.read_tokenizer(preset, settings.do_lower_case)
    if tokenizer is None:
        raise InputError(f"{preset}: has no tokenizer. Put the vocab.txt that belongs to its weights beside them.")
    positions = weights.read_bert_config(preset).max_sequence_length
    if settings.max_seq_length > positions:
        raise InputError(f"--max_seq_length={settings.max_seq_length}: must be at most the {positions} of {preset}.")
    # Normalizes the pieces as every tokenizer does on reading them.
    tokenizer["vocabulary"] = PythonBertTokenizer(tokenizer["vocabulary"], tokenizer["lowercase"]).get_vocabulary()
    contents = {"preset (--preset)": _checksum(preset), "text (--input_file)": work_identity(paths)}
    run = StageRun(settings.output_dir, settings.identity(), contents)
    run.stage("text", lambda: _split(run, paths, settings.input_format))
    run.stage("new tokens", lambda: _add_tokens(run, settings, tokenizer))
    run.stage("before", lambda: _evaluate(run, settings, tokenizer))
    run.stage("training", lambda: _train(run, settings, tokenizer))
    run.stage("preset", lambda: _write_result(run, tokenizer))
    metrics, tokens = _metrics(run), run.records["new tokens"]
    files.write_json(run.path("metrics.json"), metrics)
    before, after = ([metrics[f"{when}{name}_per_character"] for name in _SCORES] for when in ("before_", ""))
    notes = [
        f"Tokens a character of the held-out text: {before[0]:.4f} before, {after[0]:.4f} after, "
        f"{metrics['saved_token_share']:.1%} fewer (one token a word: {metrics['most_saved_token_share']:.1%} fewer).",
        f"Masked-LM loss a character: {before[1]:.4f} before, {after[1]:.4f} after.",
    ]
    if "masked_lm" not in tokens["heads"]:
        head = f"{preset} has no masked-LM head: one was made, tied to its token table."
        notes.append(f"{head} The loss before is that of the head's random weights.")
    report = Report(
        title=f"{preset}, adapted",
        history=files.read_optional_json(run.path("training", "history.json")),
        notes=notes,
        tables=[
            ("New tokens that save most", ["token", "times", "stands for"], tokens["table"][:_SHOWN]),
            ("Figures", ["figure", "value"], [list(figure) for figure in metrics.items()]),
        ],
        settings=dataclasses.asdict(settings),
    )
    write_report(run.path("report.html"), report)
    print(f"\n{run.table()}\n", *notes, f"Preset: {run.path('preset')}", sep="\n", flush=True)
    return metrics


def _metrics(run: StageRun) -> dict:
    tokens, before, after = (run.records[name] for name in ("new tokens", "before", "training"))
    metrics = {**tokens["figures"], "before_masked_lm_loss": before["masked_lm_loss"]}
    for when, record in (("before_", before), ("", after)):
        per_character = record["masked_lm_loss"] * metrics[f"{when}tokens_per_character"]
        metrics[f"{when}masked_lm_loss_per_character"] = per_character
    return metrics | {name: value for name, value in after.items() if name not in ("figure", "seconds")}


def _checksum(preset: str) -> int:
    """Returns a CRC-32 of a preset's tensors: its path may move, and the files there may change."""
    with weights.open_checkpoint(preset) as checkpoint:
        tensors = sorted(checkpoint.tensors.items())
        return functools.reduce(lambda total, item: zlib.crc32(item[1].read().tobytes(), total), tensors, 0)


# === Text ===


def _split(run: StageRun, paths: list[str], input_format: str) -> dict:
    """Writes the training text and the held-out text, one sentence per line, a blank line between documents."""
    with tempfile.TemporaryDirectory(dir=run.directory) as pipes, files.atomic_path(run.path("text")) as directory:
        paths, num_lines, documents = spool_pipes(paths, pipes), 0, 0
        for number, _ in _lines(paths, input_format):
            num_lines, documents = num_lines + 1, number + 1
        has_documents = documents >= _MIN_DOCUMENTS
        size = None if has_documents else min(_LINES, num_lines // _MIN_DOCUMENTS)
        if size == 0:
            raise InputError(f"--input_file: expected at least {_MIN_DOCUMENTS} lines of text, found {num_lines}.")
        sizes, of_document, last = {"train": 0, "held_out": 0}, 0, {}
        os.makedirs(directory)
        sinks = {side: open(os.path.join(directory, f"{side}.txt"), "w", encoding="utf-8") for side in sizes}
        with sinks["train"], sinks["held_out"]:
            for number, line in _lines(paths, input_format, size):
                of_document = of_document if number in last.values() else 0
                is_held_out = number % _HELD_OUT == _HELD_OUT - 1 and sizes["held_out"] < _HELD_OUT_BYTES
                side = "held_out" if is_held_out and of_document < _HELD_OUT_BYTES // 4 else "train"
                sinks[side].write(("\n" if last.get(side, number) != number else "") + line + "\n")
                num_bytes = len(line.encode())
                sizes[side], of_document, last[side] = sizes[side] + num_bytes, of_document + num_bytes, number
    figure = f"{documents:,} documents, {sizes['train']:,} bytes to train on, {sizes['held_out']:,} held out"
    return {"figure": figure, "has_documents": has_documents}


def _lines(paths: list[str], input_format: str, size: int | None = None) -> Iterator[tuple[int, str]]:
    """Yields the number of the document and the text of each line. If given, `size` lines make a document."""
    number, count, has_ended = -1, 0, True
    for block in text_blocks(paths, 1 << 62):  # A single block, or none if all files are empty.
        for line in split_block(block, input_format):
            if line is None:
                has_ended = True
                continue
            number = count // size if size else number + has_ended
            count, has_ended = count + 1, False
            yield number, line


# === New tokens ===


def _add_tokens(run: StageRun, settings: AdaptSettings, tokenizer: dict) -> dict:
    """Chooses the pieces to add; writes the preset with them (start/) and without them (before/)."""
    old, lowercase, pieces = tokenizer["vocabulary"], tokenizer["lowercase"], []
    if settings.num_new_tokens:
        text, words = run.path("text", "train.txt"), run.path("text", "words")
        counted = VocabularySettings(input_file=[text], word_counts_file=words, do_lower_case=lowercase)
        train_vocab(counted)
        counts, _ = read_counts(words, lowercase, counted.max_distinct_words)
        pieces = choose_pieces(counts, old, settings.num_new_tokens)
        if not pieces:
            cause = f"--num_new_tokens={settings.num_new_tokens}: no new token would shorten this text"
            raise InputError(f"{cause}. Give more text, or train with the old ones by --num_new_tokens=0.")
    table = [[piece.piece, str(piece.times), " ".join(piece.parts)] for piece in pieces]
    files.write_table(run.path("new_tokens.tsv"), ["token", "times", "stands_for"], table)
    ids = {piece: number for number, piece in enumerate(old)}
    with weights.open_checkpoint(settings.preset) as checkpoint:
        check_rows(checkpoint.source, len(old), checkpoint.config.vocabulary_size)
        for name, added in (("before", []), ("start", pieces)):
            part_ids = [[ids[part] for part in piece.parts] for piece in added]
            vocabulary = [*old, *(piece.piece for piece in added)]
            _write(run, name, with_rows(checkpoint, len(old), part_ids), tokenizer | {"vocabulary": vocabulary})
        heads = checkpoint.heads
    examples = ", ".join(piece.piece for piece in pieces[:8])
    figures = _count_tokens(run, lowercase)
    return {"figure": f"{len(pieces):,} {examples}", "table": table, "heads": heads, "figures": figures}


def _write(run: StageRun, name: str, checkpoint: Checkpoint, tokenizer: dict) -> None:
    with files.atomic_path(run.path(name)) as temporary:
        keras_preset.write(temporary, checkpoint, tokenizer)


def _vocabulary(run: StageRun, name: str) -> str:
    return run.path(name, keras_preset.VOCABULARY_FILE)


def with_rows(checkpoint: Checkpoint, num_pieces: int, part_ids: list[list[int]]) -> Checkpoint:
    """Returns a checkpoint with more rows in its token embeddings and in the output bias of its masked LM.

    Args:
        checkpoint: an open checkpoint.
        num_pieces: number of rows to keep, the size of the vocabulary. Rows that pad the table are dropped.
        part_ids: ids of the old pieces for each new piece, whose row becomes the mean of theirs.
    """

    def grow(read: Callable[[], np.ndarray]) -> np.ndarray:
        old = np.asarray(read())[:num_pieces]
        means = (old[ids].mean(axis=0, keepdims=True, dtype=np.float64).astype(old.dtype) for ids in part_ids)
        return np.concatenate([old, *means])

    size, tensors = num_pieces + len(part_ids), dict(checkpoint.tensors)
    for path in tensors.keys() & {_TOKENS, _BIAS}:
        source, shape, read = tensors[path]
        tensors[path] = StoredTensor(source, (size, *shape[1:]), functools.partial(grow, read))
    config = checkpoint.config.replace(vocabulary_size=size)
    return dataclasses.replace(checkpoint, config=config, tensors=tensors)


def _count_tokens(run: StageRun, lowercase: bool) -> dict:
    """Counts the tokens of the held-out text with the old and with the new vocabulary."""
    old, new = (PythonBertTokenizer(_vocabulary(run, name), lowercase) for name in ("before", "start"))
    lines = [line for _, line in files.read_lines(run.path("text", "held_out.txt"))]
    characters, words = sum(map(len, lines)), sum(len(split_words(line, lowercase)) for line in lines)
    before, after = (sum(len(tokenizer.tokenize(line)) for line in lines) for tokenizer in (old, new))
    return {
        "new_tokens": new.vocabulary_size() - old.vocabulary_size(),
        "vocabulary_size": new.vocabulary_size(),
        "before_tokens_per_character": before / characters,
        "tokens_per_character": after / characters,
        "saved_token_share": 1 - after / before,
        "most_saved_token_share": 1 - words / before,
    }


# === Training ===


def _create_data(run: StageRun, settings: AdaptSettings, tokenizer: dict, side: str, preset: str, passes: int) -> str:
    """Makes the records of the training or held-out text with a preset's vocabulary; returns their path."""
    output_file = run.path("data", f"{preset}_{side}.tfrecord")
    names = ("sentence_splitter", "sentence_language", "random_seed")
    data = DataSettings(
        input_file=[run.path("text", f"{side}.txt")],
        output_file=[output_file],
        vocab_file=_vocabulary(run, preset),
        do_lower_case=tokenizer["lowercase"],
        dupe_factor=passes,
        **{name: getattr(settings, name) for name in names},
        **_lengths(settings),
        **_MASKS,
    )
    create_pretraining_data(data)
    return output_file


def _lengths(settings: AdaptSettings) -> dict[str, int]:
    length = settings.max_seq_length
    return {"max_seq_length": length, "max_predictions_per_seq": math.ceil(_MASKS["masked_lm_prob"] * length)}


def _evaluate(run: StageRun, settings: AdaptSettings, tokenizer: dict) -> dict:
    """Evaluates the unchanged preset, with its own tokens."""
    held_out = _create_data(run, settings, tokenizer, "held_out", "before", passes=1)
    metrics = _pretrain(run, settings, tokenizer, "before", held_out, held_out, output_dir=run.path("evaluation"))
    return {"figure": f"held-out masked-LM loss {metrics['masked_lm_loss']:.3f}", **metrics}


def _train(run: StageRun, settings: AdaptSettings, tokenizer: dict) -> dict:
    train = _create_data(run, settings, tokenizer, "train", "start", passes=_PASSES)
    held_out = _create_data(run, settings, tokenizer, "held_out", "start", passes=1)
    own = {"output_dir": run.path("training"), "do_train": True, "dynamic_masking": True, **_MASKS}
    metrics = _pretrain(run, settings, tokenizer, "start", train, held_out, **own)
    figure = f"{metrics['train_steps']:,} steps, held-out masked-LM loss {metrics['masked_lm_loss']:.3f}"
    return {"figure": figure, **metrics}


def _pretrain(
    run: StageRun, settings: AdaptSettings, tokenizer: dict, start: str, input_file: str, eval_input_file: str, **own
) -> dict:
    """Runs bert-pretrain from a preset, with next sentences if the preset has that head and the text has documents."""
    names = [field.name for field in dataclasses.fields(TrainingSettings)]
    shared = {name: getattr(settings, name) for name in (*names, "num_train_steps", "time_budget_minutes")}
    num_warmup_steps = min(100, settings.num_train_steps // 10)
    has_head = "next_sentence" in run.records["new tokens"]["heads"]
    own |= {"use_next_sentence": has_head and run.records["text"]["has_documents"], **_lengths(settings)}
    training = PretrainingSettings(
        input_file=[input_file],
        eval_input_file=[eval_input_file],
        vocab_file=_vocabulary(run, start),
        do_lower_case=tokenizer["lowercase"],
        init_checkpoint=run.path(start),
        num_warmup_steps=_CLOCK_WARMUP if settings.time_budget_minutes else num_warmup_steps,
        do_eval=True,
        **shared,
        **own,
    )
    return pretrain(training)


def _write_result(run: StageRun, tokenizer: dict) -> dict:
    """Writes a preset of the original kind, such as an embedder, with the trained weights.

    A bare encoder also gets the masked-LM head.
    """
    vocabulary = [piece for _, piece in files.read_lines(_vocabulary(run, "start"))]
    trained = run.path("training", "preset")
    with weights.open_checkpoint(run.path("start")) as start, weights.open_checkpoint(trained) as after:
        is_bare = not (start.heads or start.is_embedder)
        kept = {path for path in after.tensors if path in start.tensors or (is_bare and path.startswith("masked_lm/"))}
        result = dataclasses.replace(start, tensors={**start.tensors, **{path: after.tensors[path] for path in kept}})
        _write(run, "preset", result, tokenizer | {"vocabulary": vocabulary})
    files.remove_path(run.path("before"))
    return {"figure": f"heads: {', '.join(result.heads) or 'none'}"}
