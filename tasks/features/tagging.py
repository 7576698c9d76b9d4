"""Table 7 of the paper: frozen features into a BiLSTM that finds named entities; training, evaluation, prediction.

Shapes: N sentences, W words of a file, K chosen layers, H hidden, C tags.
"""

import dataclasses
import os
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.tokenizer import BertTokenizer
from tasks import entity_metrics as metrics
from tasks.build_trainer import build_trainer, prepare_devices
from tasks.checkpoints import keep_settings
from tasks.conll import Documents, write_conll
from tasks.early_stopping import EarlyStopping
from tasks.examples import count_steps
from tasks.features import word_features
from tasks.features.bilstm import EXTRACTOR, TAGGER, TaggingObjective, build_tagger, join_extractor
from tasks.features.extractor import load_encoder
from tasks.features.layers import layer_name
from tasks.features.model import build_feature_extractor
from tasks.features.word_features import WordFeatures
from tasks.model_files import load_model, save_model
from tasks.report import Score, write_report
from tasks.settings import CHANGEABLE, TrainingSettings

TASK_NAME = "feature_based_tagging"
COMMAND = "bert-features --task_name=ner"
MODEL_DIRECTORY, FEATURES_DIRECTORY = "model", "features"
METRICS_FILE, REPORT_FILE, HISTORY_FILE = "metrics.json", "report.html", "history.json"
DEV_PREDICTIONS_FILE, PREDICTIONS_FILE = "dev_predictions.conll", "predictions.conll"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerSettings(TrainingSettings):
    """How the feature-based tagger is trained; the flags have the same names.

    Attributes:
        preset: the frozen encoder, and its vocabulary.
        layers: numbers of layers, as `tasks.features.layers.resolve_layers` gives them.
        learning_rate, optimizer: for new weights; those of fine-tuning are too low, or too rough, for a BiLSTM.
        combine, lstm_units, lstm_layers, lstm_dropout: as in `tasks.features.bilstm.build_tagger`.
        max_seq_length: tokens of a window at most.
        document_context: whether windows run over whole documents, not over single sentences.
        num_train_epochs: passes over the sentences.
        warmup_proportion: share of the steps over which the learning rate rises.
        early_stopping_patience: as in `tasks.fine_tuning.FineTuningSettings`.
    """

    preset: str
    layers: tuple[int, ...]
    learning_rate: float = 1e-3
    optimizer: str = "adamw"
    combine: str = "concatenate"
    lstm_units: int = 768
    lstm_layers: int = 2
    lstm_dropout: float = 0.1
    max_seq_length: int = 128
    document_context: bool = False
    num_train_epochs: float = 10.0
    warmup_proportion: float = 0.1
    early_stopping_patience: int = 0


class Tagger(NamedTuple):
    """A frozen encoder and what is trained on it.

    Attributes:
        extractor: the encoder's inputs to `features` (B, S, K * H).
        tagger: of `build_tagger`.
        tokenizer: BertTokenizer.
        task: what `task.json` holds beside the model: `tags`, in the order of their numbers; `layers`, `combine`,
            `max_seq_length`, `document_context`.
    """

    extractor: keras.Model
    tagger: keras.Model
    tokenizer: BertTokenizer
    task: dict


def run_stages(
    splits: dict[str, Documents],
    settings: TaggerSettings | None,
    *,
    output_dir: str,
    eval_batch_size: int,
    skipped: int,
) -> dict:
    """Trains on the split "train", evaluates on "dev", predicts "test", as far as they are there; writes the report.

    Args:
        splits: the files.
        settings: how to train; None: `output_dir/model` is evaluated and applied.
        output_dir: where everything is written.
        eval_batch_size: sentences of a batch in evaluation and prediction.
        skipped: sentences that were left out of the files.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: the preset or the model does not fit, too little data, or `output_dir` holds a training with other
            settings.
    """
    if settings is None:
        tagger, results = load(output_dir), read_metrics(output_dir)
        features = _load_features(tagger, splits, output_dir, eval_batch_size)
    else:
        tagger, features, results = train(splits, settings, output_dir=output_dir)
    results["skipped_rows"] = skipped
    shown = {"scores": [], "mistakes": [], "tables": []}
    if "dev" in splits:
        shown = evaluate(tagger, splits["dev"], features["dev"], results, output_dir, eval_batch_size)
    if "test" in splits:
        predict(tagger, splits["test"], features["test"], output_dir, eval_batch_size)
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    history = os.path.join(output_dir, HISTORY_FILE)
    write_report(
        os.path.join(output_dir, REPORT_FILE),
        title="Named entities from frozen features",
        history=read_json(history) if os.path.exists(history) else None,
        confusion=None,
        lengths={split: one.sentence_lengths for split, one in features.items()},
        max_length=tagger.task["max_seq_length"],
        long_examples="read in several windows",
        settings=tagger.task if settings is None else dataclasses.asdict(settings),
        notes=[f"{skipped} sentences were left out: see skipped_rows.tsv."] if skipped else [],
        **shown,
    )
    return results


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


def _load_features(
    tagger: Tagger, splits: dict[str, Documents], output_dir: str, batch_size: int
) -> dict[str, WordFeatures]:
    """Computes the features of all splits, or finds them where an earlier call has left them."""
    task = tagger.task
    return {
        split: word_features.load_word_features(
            os.path.join(output_dir, FEATURES_DIRECTORY, split),
            documents,
            tagger.extractor,
            tagger.tokenizer,
            max_seq_length=task["max_seq_length"],
            document_context=task["document_context"],
            layers=task["layers"],
            batch_size=batch_size,
            description=f"features of {split}",
        )
        for split, documents in splits.items()
    }


# === Training and loading ===


def train(
    splits: dict[str, Documents], settings: TaggerSettings, *, output_dir: str
) -> tuple[Tagger, dict[str, WordFeatures], dict]:
    """Trains a BiLSTM on the features of "train" and writes `output_dir/model`; continues from the last checkpoint.

    Args:
        splits: "train" is trained on; "dev", if it is there, evaluated at every checkpoint.
        settings: how to train.
        output_dir: where model, features, checkpoints, events and curve are written.

    Returns:
        (the trained tagger, the features of all splits, results for `metrics.json`).
    """
    started = time.perf_counter()
    documents = splits["train"]
    num_steps = _count_steps(documents, settings)
    strategy = prepare_devices(settings)
    tagger = _build(documents, settings)
    features = _load_features(tagger, splits, output_dir, settings.eval_batch_size)
    trainer = build_trainer(
        settings,
        lambda: _build_head(tagger.task, settings, features["train"].vectors.shape[1]),
        TaggingObjective(),
        output_dir=output_dir,
        num_train_steps=num_steps,
        num_warmup_steps=int(num_steps * settings.warmup_proportion),
        strategy=strategy,
    )
    tagger = tagger._replace(tagger=trainer.model)
    keep_settings(output_dir, _identity(tagger, documents, settings))
    first_step = trainer.restore()
    history = _fit(trainer, tagger, splits, features, settings, num_steps)
    save_model(
        os.path.join(output_dir, MODEL_DIRECTORY),
        join_extractor(tagger.extractor, tagger.tagger),
        tagger.tokenizer,
        {"task": TASK_NAME, **tagger.task},
    )
    results = {
        "tags": tagger.task["tags"],
        "train_sentences": documents.num_sentences,
        "train_words": len(documents.tokens),
        "train_steps": num_steps,
        "feature_dim": features["train"].vectors.shape[1],
        **_learned_weights(tagger),
    }
    was_over = first_step >= num_steps or not any(row["step"] > first_step for row in history.training)
    # Of a finished training, what an earlier call measured is still true.
    earlier = read_metrics(output_dir) if was_over else {"train_seconds": round(time.perf_counter() - started, 2)}
    return tagger, features, {**earlier, **results}


def _count_steps(documents: Documents, settings: TaggerSettings) -> int:
    num_steps = count_steps(documents.num_sentences, settings.train_batch_size, settings.num_train_epochs)
    if num_steps < 1:
        raise InputError(
            f"{documents.path}: {documents.num_sentences} sentences in {settings.num_train_epochs:g} epochs do not "
            f"fill one batch of {settings.train_batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )
    return num_steps


def _build(documents: Documents, settings: TaggerSettings) -> Tagger:
    """The frozen encoder of the preset, still without what is trained on it."""
    backbone, tokenizer = load_encoder(settings.preset, settings.max_seq_length)
    extractor = build_feature_extractor(backbone, settings.layers, "concatenate")
    extractor.trainable = False
    task = {
        "tags": sorted(set(documents.tags)),
        "layers": list(settings.layers),
        "combine": settings.combine,
        "max_seq_length": settings.max_seq_length,
        "document_context": settings.document_context,
    }
    return Tagger(extractor, None, tokenizer, task)


def _build_head(task: dict, settings: TaggerSettings, width: int) -> keras.Model:
    return build_tagger(
        len(task["layers"]),
        width // len(task["layers"]),
        len(task["tags"]),
        settings.combine,
        lstm_units=settings.lstm_units,
        lstm_layers=settings.lstm_layers,
        lstm_dropout=settings.lstm_dropout,
    )


def _identity(tagger: Tagger, documents: Documents, settings: TaggerSettings) -> dict:
    """What must stay when a stopped training continues."""
    changeable = CHANGEABLE | {"preset"}
    kept = {name: value for name, value in dataclasses.asdict(settings).items() if name not in changeable}
    numbers = word_features.number_tags(documents, tagger.task["tags"])
    return {
        **kept,
        **tagger.task,
        **word_features.identify_encoder(tagger.extractor, tagger.tokenizer),
        "train_words_checksum": word_features.checksum_of(documents),
        "train_tags_checksum": word_features.checksum(numbers),
    }


def _fit(
    trainer, tagger: Tagger, splits: dict, features: dict[str, WordFeatures], settings: TaggerSettings, num_steps: int
):
    """Trains up to the last step; evaluates at least once an epoch where there is a dev file. Returns the history."""
    numbers = word_features.number_tags(splits["train"], tagger.task["tags"])
    length = int(np.diff(splits["train"].sentence_splits).max()) if settings.jit_compile else None
    interval, stopping, evaluate = settings.save_checkpoints_steps, None, None
    if "dev" in splits:
        interval = min(interval, max(1, splits["train"].num_sentences // settings.train_batch_size))
        evaluate = _evaluator(tagger, splits["dev"], features["dev"], settings.eval_batch_size)
    if settings.early_stopping_patience:
        stopping = EarlyStopping("f1", settings.early_stopping_patience)
    return trainer.fit(
        lambda step: word_features.make_train_dataset(
            features["train"], numbers, settings.train_batch_size, settings.random_seed, step, num_steps, length
        ),
        num_steps,
        save_checkpoints_steps=interval,
        evaluate=evaluate,
        early_stopping=stopping,
        description="BiLSTM",
    )


def _evaluator(tagger: Tagger, documents: Documents, features: WordFeatures, batch_size: int):
    """Makes what scores the held-out file while the BiLSTM is trained."""
    gold = documents.split(documents.tags)
    tags = tagger.task["tags"]
    numbers = word_features.number_tags(documents, tags)

    def evaluator() -> dict[str, float]:
        logits = compute_logits(tagger, features, batch_size, "evaluation")
        loss = metrics.mean_loss(metrics.word_losses(logits, numbers), numbers)
        return {"loss": loss, **metrics.score(gold, metrics.predict_tags(logits, tags, documents))}

    return evaluator


def _learned_weights(tagger: Tagger) -> dict:
    """`layer_weights`: what the training has made of the layers' weighted sum."""
    if tagger.task["combine"] != "weighted_sum" or len(tagger.task["layers"]) == 1:
        return {}
    weights = keras.ops.convert_to_numpy(tagger.tagger.get_layer("combine_states").layer_weights())
    names = [layer_name(number) for number in tagger.task["layers"]]
    return {"layer_weights": {name: float(weight) for name, weight in zip(names, weights, strict=True)}}


def load(output_dir: str) -> Tagger:
    """Loads the trained model of a run.

    Raises:
        InputError: there is none, or it is of another task.
    """
    model, tokenizer, task = load_model(os.path.join(output_dir, MODEL_DIRECTORY), TASK_NAME, COMMAND)
    task = {name: value for name, value in task.items() if name != "task"}
    return Tagger(model.get_layer(EXTRACTOR), model.get_layer(TAGGER), tokenizer, task)


# === Evaluation and prediction ===


def compute_logits(tagger: Tagger, features: WordFeatures, batch_size: int, description: str) -> np.ndarray:
    """Applies the BiLSTM to every sentence: float32, shape (W, C), in the file's order."""
    count = len(features.vectors)
    dataset, batches = word_features.make_eval_dataset(features, np.zeros(count, np.int32), batch_size)

    @tf.function(input_signature=dataset.element_spec[:1])
    def forward(inputs):
        return tagger.tagger(inputs, training=False)

    logits = np.empty((count, len(tagger.task["tags"])), np.float32)
    splits = features.sentence_splits
    with tqdm(total=len(splits) - 1, desc=description, unit="sentence", mininterval=0.5, leave=False) as progress:
        for (inputs, _), numbers in zip(dataset, batches, strict=True):
            places = np.concatenate([np.arange(splits[number], splits[number + 1]) for number in numbers])
            logits[places] = forward(inputs).numpy()[inputs["padding_mask"].numpy().astype(bool)]
            progress.update(len(numbers))
    return logits


def evaluate(
    tagger: Tagger, documents: Documents, features: WordFeatures, results: dict, output_dir: str, batch_size: int
) -> dict:
    """Scores a tagger on a file with tags; adds to `results` and writes `dev_predictions.conll`.

    Returns:
        What the report shows of it, by the names of `write_report`'s arguments.
    """
    started = time.perf_counter()
    logits = compute_logits(tagger, features, batch_size, "evaluate")
    gold, predicted = documents.split(documents.tags), metrics.predict_tags(logits, tagger.task["tags"], documents)
    numbers = word_features.number_tags(documents, tagger.task["tags"])
    losses = metrics.word_losses(logits, numbers)
    results |= {
        **metrics.score(gold, predicted),
        **metrics.score_intervals(gold, predicted),
        "per_type": metrics.score_types(gold, predicted),
        "loss": metrics.mean_loss(losses, numbers),
        "words": len(documents.tokens),
        "words_of_unknown_tags": int(np.count_nonzero(numbers < 0)),
        "eval_seconds": round(time.perf_counter() - started, 2),
    }
    _write_predictions(os.path.join(output_dir, DEV_PREDICTIONS_FILE), documents, predicted)
    columns = ("precision", "recall", "f1", "correct", "predicted", "gold")
    types = [[name, *(figures[column] for column in columns)] for name, figures in results["per_type"].items()]
    return {
        "scores": [
            Score("entity F1", results["f1"], *results["f1_interval"]),
            *(Score(name.replace("_", " "), results[name]) for name in ("precision", "recall", "token_accuracy")),
        ],
        "mistakes": metrics.find_mistakes(documents, predicted, losses),
        "tables": [("Entity types", ["type", *columns], types)],
    }


def predict(tagger: Tagger, documents: Documents, features: WordFeatures, output_dir: str, batch_size: int) -> None:
    """Writes `predictions.conll`: token, the file's own tag if it has one, predicted tag."""
    logits = compute_logits(tagger, features, batch_size, "predict")
    predicted = metrics.predict_tags(logits, tagger.task["tags"], documents)
    _write_predictions(os.path.join(output_dir, PREDICTIONS_FILE), documents, predicted)


def _write_predictions(path: str, documents: Documents, predicted: metrics.Tags) -> None:
    columns = [] if documents.tags is None else [documents.tags]
    write_conll(path, documents, *columns, [tag for sentence in predicted for tag in sentence])
