"""The extraction of `bert-features`: rows in, a file of embeddings out, in memory that does not grow with the input."""

import dataclasses
import os
import time
from collections.abc import Iterable, Sequence

import numpy as np
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.weights import open_checkpoint
from tasks.bad_rows import BadRows
from tasks.features import data
from tasks.features.extractor import Extractor, load_encoder
from tasks.features.layers import layer_name
from tasks.features.model import COMBINED, POOLED, build_feature_extractor
from tasks.features.writing import Block, Tokens, open_writer

METRICS_FILE = "metrics.json"
BLOCK_BYTES = 256 << 20  # Vectors held at once: some hundred rows of four base layers at 128 tokens.
MAX_BLOCK_ROWS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """What is extracted; the flags have the same names.

    Attributes:
        preset: encoder and vocabulary.
        layers: numbers of layers, as `tasks.features.layers.resolve_layers` gives them.
        combine, layer_weights, pooling, normalize: as in `build_feature_extractor`.
        max_seq_length: tokens of a sequence at most.
        eval_batch_size: sequences of a batch.
    """

    preset: str
    layers: tuple[int, ...]
    combine: str = "none"
    layer_weights: tuple[float, ...] = ()
    pooling: str = "none"
    normalize: bool = False
    max_seq_length: int = 128
    eval_batch_size: int = 32


def extract(
    rows: Iterable[data.Row],
    num_rows: int,
    settings: ExtractionSettings,
    *,
    output_file: str,
    bad_rows: BadRows,
) -> dict:
    """Writes the embeddings of all rows, in their order.

    Args:
        rows: all with texts, or all with words; at least one.
        num_rows: how many there are, for the progress bar.
        settings: what is extracted.
        output_file: its ending says the format (`tasks.features.writing`).
        bad_rows: collects sentences that are too long to be pooled.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: the preset does not fit the settings, or a sentence is too long and `bad_rows` refuses it; there is
            then no new file.
    """
    started = time.perf_counter()
    _check_pooler(settings)
    backbone, tokenizer = load_encoder(settings.preset, settings.max_seq_length)
    model = build_feature_extractor(
        backbone,
        settings.layers,
        settings.combine,
        layer_weights=settings.layer_weights,
        pooling=settings.pooling,
        normalize=settings.normalize,
    )
    extractor = Extractor(model, settings.eval_batch_size)
    results = {"rows": 0, "tokens": 0, "cut_rows": 0, "vectors": dict(extractor.widths)}
    indices = _json_indices(settings, backbone.num_layers)
    size = _block_rows(extractor.widths, settings)
    with (
        open_writer(output_file, tokenizer.get_vocabulary(), indices) as writer,
        tqdm(total=num_rows, desc="extract", unit="row", mininterval=0.5) as progress,
    ):
        for batch in data.batches_of(rows, size):
            progress.update(len(batch))
            encoded = data.encode_rows(batch, tokenizer, settings.max_seq_length)
            if settings.pooling != "none":
                batch, encoded = _leave_out_long(batch, encoded, tokenizer, settings, bad_rows)
            if batch:
                writer.write(_block(batch, encoded, extractor(encoded.examples), settings))
                _count(results, encoded)
        if not results["rows"]:
            raise InputError(
                f"{bad_rows.rows[0][0]}: this sentence, as all others, is too long. Raise --max_seq_length."
            )
    return {**results, **_speed(results, time.perf_counter() - started), "skipped_rows": bad_rows.count}


def _check_pooler(settings: ExtractionSettings) -> None:
    if settings.pooling != "pooler":
        return
    with open_checkpoint(settings.preset) as checkpoint:
        if "pooled_dense/kernel" not in checkpoint.tensors:
            raise InputError(f"{settings.preset}: has no pooler. Choose --pooling=mean or --pooling=cls.")


def _block_rows(widths: dict[str, int], settings: ExtractionSettings) -> int:
    """How many rows a block takes so that its vectors stay below `BLOCK_BYTES`, but at least a batch."""
    vectors = settings.max_seq_length if settings.pooling == "none" else 1
    rows = BLOCK_BYTES // (4 * sum(widths.values()) * vectors)
    return max(settings.eval_batch_size, min(rows, MAX_BLOCK_ROWS))


def _json_indices(settings: ExtractionSettings, num_layers: int) -> dict[str, int | str]:
    """What JSON lines call the vectors: google-research/bert's negative index of an encoder layer, or a name."""
    by_layer = {layer_name(n): n - num_layers - 1 if n else layer_name(n) for n in settings.layers}
    return {**by_layer, COMBINED: settings.combine, POOLED: POOLED}


def _leave_out_long(
    batch: list[data.Row], encoded: data.Encoded, tokenizer, settings: ExtractionSettings, bad_rows: BadRows
) -> tuple[list[data.Row], data.Encoded]:
    """Leaves out sentences of several windows: one vector is made of one sequence."""
    limit, kept = settings.max_seq_length, []
    for row, length in zip(batch, np.diff(encoded.row_splits), strict=True):
        if length <= limit:
            kept.append(row)
            continue
        reason = f"the sentence has {length} tokens, and one vector takes at most {limit}. Raise --max_seq_length."
        bad_rows.add(row.where, reason)
    bad_rows.finish()
    is_same = len(kept) in (0, len(batch))
    return kept, encoded if is_same else data.encode_rows(kept, tokenizer, limit)


def _block(
    batch: Sequence[data.Row], encoded: data.Encoded, vectors: dict[str, np.ndarray], settings: ExtractionSettings
) -> Block:
    indices = np.array([row.index for row in batch], np.int64)
    if settings.pooling != "none":
        return Block(indices, vectors, None)
    kept = encoded.kept
    is_words = batch[0].words is not None
    tokens = Tokens(
        encoded.examples.token_ids[kept],
        encoded.examples.segment_ids[kept],
        encoded.starts,
        encoded.ends,
        encoded.row_splits,
        encoded.word_starts if is_words else None,
        encoded.word_splits if is_words else None,
    )
    if len(kept) < len(encoded.examples.token_ids):  # Windows overlap.
        vectors = {name: array[kept] for name, array in vectors.items()}
    return Block(indices, vectors, tokens)


def _count(results: dict, encoded: data.Encoded) -> None:
    results["rows"] += len(encoded.row_splits) - 1
    results["tokens"] += len(encoded.kept)
    results["cut_rows"] += encoded.num_cut


def _speed(results: dict, seconds: float) -> dict:
    return {"seconds": round(seconds, 2), "tokens_per_second": round(results["tokens"] / seconds, 1)}


def write_metrics(output_dir: str, results: dict, bad_rows: BadRows) -> None:
    """Writes `metrics.json` and, where rows were skipped, `skipped_rows.tsv`."""
    os.makedirs(output_dir, exist_ok=True)
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    bad_rows.write(output_dir)
