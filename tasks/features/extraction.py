"""Extracts embeddings from rows into a file. Memory use does not grow with the input."""

import os
import time
from collections.abc import Iterable, Sequence

import numpy as np

from keras_bert.answers.rules import unit
from keras_bert.errors import InputError
from keras_bert.files import check_writable, expand_files, write_json
from keras_bert.presets.weights import open_checkpoint, read_bert_config
from tasks.features import data, writing
from tasks.features.settings import (
    COMBINED,
    DEFAULT_LAYERS,
    DEFAULT_OUTPUT,
    POOLED,
    FeatureSettings,
    choose_layers,
    layer_name,
)
from tasks.features.writing import Block, Column, open_writer
from tasks.fine_tuning.examples import Predictor
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.parallel import progress_bar
from tasks.text.steps import check_outputs

BLOCK_BYTES = 256 << 20  # Vectors in memory at once: some hundred rows of four base layers at 128 tokens.
MAX_BLOCK_ROWS = 4096


def extract(settings: FeatureSettings) -> dict:
    """Writes the embeddings of texts to a file, and `metrics.json` to the output directory if there is one.

    All files are read and checked before TensorFlow is imported, so that wrong input is reported within a second.

    Returns:
        The content of `metrics.json`.

    Raises:
        InputError: a file, a row, a preset or a setting is wrong; no output file is then written.
    """
    from tasks.fine_tuning.start import find_start

    path = output_path(settings)
    writing.check_path(path)
    if settings.output_dir:
        check_writable(settings.output_dir)
    default = DEFAULT_LAYERS if settings.pooling == "none" else DEFAULT_LAYERS[:1]
    layers, config = choose_layers(settings, default, "Extracting features")
    if settings.normalize and settings.pooling == "none":
        raise InputError("--normalize is for pooled vectors. Give --pooling=mean, cls or pooler, or leave it out.")
    if settings.pooling == "pooler" and (layers != [config.num_layers] or settings.combine != "none"):
        raise InputError("--pooling=pooler takes the last layer alone. Leave out --layers and --combine.")
    bad_rows = BadRows(settings.bad_rows)
    rows, count = _read(settings, path, bad_rows)
    with find_start(settings) as origin:
        extraction = _Extraction(settings, layers, origin)
    results = {**extraction.write(rows, count, path), "skipped_rows": bad_rows.count}
    if settings.output_dir:
        write_json(os.path.join(settings.output_dir, "metrics.json"), results)
        bad_rows.write(settings.output_dir)
    return results


def output_path(settings: FeatureSettings) -> str:
    """Returns the path of the output file.

    Raises:
        InputError: neither `output_file` nor `output_dir` is set.
    """
    if not (settings.output_file or settings.output_dir):
        raise InputError("Nowhere to write to. Give --output_file, or --output_dir.")
    return settings.output_file or os.path.join(settings.output_dir, DEFAULT_OUTPUT)


def _read(settings: FeatureSettings, output: str, bad_rows: BadRows) -> tuple[Iterable[data.Row], int]:
    if not settings.input_file:
        raise InputError("Give --input_file: the texts to extract features from.")
    paths = expand_files(settings.input_file)
    check_outputs([("output_file", output)], [("input_file", path) for path in paths])
    if settings.input_format == "text":
        count = sum(1 for _ in data.read_texts(paths, bad_rows))  # Bad rows are reported before any work starts.
        if not count:
            raise InputError(f"{', '.join(paths)}: no texts. Expected one a line.")
        return data.read_texts(paths, None), count
    rows: list[data.Row] = []
    for path in paths:
        documents = read_conll(path, delimiter=settings.delimiter, tag_scheme=None, needs_tags=False, bad_rows=bad_rows)
        skipped = [int(where.rpartition(":")[2]) for where, _ in bad_rows.rows if where.rpartition(":")[0] == path]
        rows += data.sentence_rows(documents, len(rows) + bad_rows.count - len(skipped), skipped)
    if settings.pooling != "none":  # A vector is made from one sequence, so that a long sentence is cut like a text.
        rows = [row._replace(texts=(" ".join(row.words),), words=None) for row in rows]
    return rows, len(rows)


class _Extraction:
    """Runs the loaded encoder on rows and writes its outputs.

    Args:
        settings: settings of the run.
        layers: indices of the layers to extract.
        origin: `tasks.fine_tuning.start.Start` of the encoder.

    Raises:
        InputError: the encoder has no pooler, or fewer token embeddings than the vocabulary has pieces.
    """

    def __init__(self, settings: FeatureSettings, layers: list[int], origin):
        from keras_bert.vocabulary import check_rows
        from tasks.features.model import FeatureExtractor, load_encoder

        if settings.pooling == "pooler" and origin.load_weights:
            with open_checkpoint(origin.preset) as checkpoint:
                if "pooled_dense/kernel" not in checkpoint.tensors:
                    raise InputError(f"{origin.preset}: has no pooler. Choose --pooling=mean or --pooling=cls.")
        self._tokenizer = origin.tokenizer()
        self._vocabulary = np.array(self._tokenizer.get_vocabulary())
        check_rows(origin.preset, len(self._vocabulary), read_bert_config(origin.preset).vocabulary_size)
        backbone = load_encoder(origin, settings.random_seed)
        self._predictor = Predictor(FeatureExtractor(backbone, layers, settings.pooling))
        self._width = backbone.hidden_dim
        self._names = [POOLED] if settings.pooling == "pooler" else list(map(layer_name, layers))
        # Names of the vectors in JSON lines: google-research/bert's negative index of an encoder layer, or a name.
        by_layer = {layer_name(n): n - backbone.num_layers - 1 if n else layer_name(n) for n in layers}
        self._indices = {**by_layer, COMBINED: settings.combine, POOLED: POOLED}
        self._settings = settings

    def write(self, rows: Iterable[data.Row], num_rows: int, path: str) -> dict:
        """Writes the embeddings of all rows in order; returns most of the content of `metrics.json`."""
        started, settings, results = time.perf_counter(), self._settings, {"rows": 0, "tokens": 0, "cut_rows": 0}
        vectors = len(self._names) * (settings.max_seq_length if settings.pooling == "none" else 1)
        block_rows = min(BLOCK_BYTES // (4 * self._width * vectors), MAX_BLOCK_ROWS)
        with open_writer(path, self._indices) as write, progress_bar("extract", "row", num_rows) as progress:
            for batch in data.batches_of(rows, max(settings.eval_batch_size, block_rows)):
                progress.update(len(batch))
                encoded = data.encode_rows(batch, self._tokenizer, settings.max_seq_length)
                block = self._block(batch, encoded)
                write(block)
                results["rows"] += len(batch)
                results["tokens"] += len(encoded.kept)
                results["cut_rows"] += encoded.num_cut
        seconds = time.perf_counter() - started
        names = [name for name in self._indices if name in block]
        results["vectors"] = {name: block[name].values.shape[-1] for name in names}
        return {
            **results,
            "seconds": round(seconds, 2),
            "tokens_per_second": round(results["tokens"] / seconds, 1),
        }

    def _block(self, batch: Sequence[data.Row], encoded: data.Encoded) -> Block:
        index = Column(np.array([row.index for row in batch], np.int64))
        vectors = self._combine(self._predictor.compute_outputs(encoded.examples, self._settings.eval_batch_size))
        if self._settings.pooling != "none":
            return {"index": index, **{name: Column(array) for name, array in vectors.items()}}
        if len(encoded.kept) < len(encoded.examples.token_ids):  # Windows overlap.
            vectors = {name: array[encoded.kept] for name, array in vectors.items()}
        token_ids, row_splits = encoded.columns["token_ids"]
        values = {**vectors, "tokens": self._vocabulary[token_ids]}
        columns = {name: Column(of_tokens, row_splits) for name, of_tokens in values.items()}
        return {"index": index, **columns, **encoded.columns}

    def _combine(self, joined: np.ndarray) -> dict[str, np.ndarray]:
        """Returns vectors by name from the layers' states one after the other, float (..., K * H)."""
        combine, states = self._settings.combine, np.split(joined, len(self._names), axis=-1)
        if combine == "none":
            vectors = dict(zip(self._names, states, strict=True))
        elif combine == "concatenate":
            vectors = {COMBINED: joined}
        else:
            vectors = {COMBINED: sum(states) / (len(states) if combine == "mean" else 1)}
        return {name: unit(array) for name, array in vectors.items()} if self._settings.normalize else vectors
