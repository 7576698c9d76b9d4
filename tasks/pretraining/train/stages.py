"""Runs the stages of `bert-pretrain`: checks the records, trains, evaluates, and saves the preset."""

import dataclasses
import os
import time

import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, read_optional_json, write_json
from keras_bert.tokenization.tokenizer import BertTokenizer
from tasks.engine.build_trainer import build_trainer, prepare_devices
from tasks.engine.settings import identify, tokenizer_identity
from tasks.engine.strategy import needs_static_shapes
from tasks.engine.time_budget import CLOCK_FILE, UNSETTLED, Budget
from tasks.engine.training import Trainer
from tasks.engine.workers import Workers
from tasks.flags import write_flags
from tasks.pretraining.data.masking import MaskingRules
from tasks.pretraining.data.publishing import REPORT_ENDING, check_published
from tasks.pretraining.data.shard_index import Records, read_records
from tasks.pretraining.train.architecture import model_builder, read_architecture
from tasks.pretraining.train.batches import TrainBatches, make_eval_dataset
from tasks.pretraining.train.losses import PretrainingObjective, most_frequent_accuracy, perplexity
from tasks.pretraining.train.packed_data import plan_packing
from tasks.pretraining.train.settings import PretrainingSettings
from tasks.report.card import Card, Data, command_line, write_card
from tasks.report.page import Report, write_report

_SCORES = ("masked_lm_accuracy", "next_sentence_accuracy", "masked_lm_loss", "perplexity")


def run_stages(settings: PretrainingSettings, started: float) -> dict:
    """Trains, evaluates, or both; see `tasks.pretraining.run.pretrain`.

    Args:
        settings: settings of the run.
        started: `time.monotonic()` when the run began.
    """
    strategy = prepare_devices(settings)
    with Workers(strategy).naming_lost_ones():
        return _run(settings, strategy, started)


def _run(settings: PretrainingSettings, strategy: tf.distribute.Strategy, started: float) -> dict:
    tokenizer = BertTokenizer(settings.vocab_file, lowercase=settings.do_lower_case)
    train_files = _find_records(settings.input_file)
    eval_files = _find_records(settings.eval_input_file) if settings.do_eval else []
    check_published([*train_files, *eval_files])
    objective = PretrainingObjective(settings.use_next_sentence, settings.next_sentence_weight)
    num_steps = (UNSETTLED if settings.time_budget_minutes else settings.num_train_steps, settings.num_warmup_steps)
    config = read_architecture(settings, tokenizer.vocabulary_size())
    contents = {settings.vocab_file: tokenizer_identity(tokenizer), settings.architecture_source: config.to_dict()}
    Workers(strategy).check_equal(contents)
    trainer = build_trainer(settings, model_builder(settings, config, tokenizer), objective, strategy, num_steps)
    writes = trainer.workers.is_chief
    train_data = _read(train_files, trainer, tokenizer, settings)
    metrics, evaluation = {}, None
    if settings.do_eval:
        eval_data = _read(eval_files, trainer, tokenizer, settings)
        metrics |= _guesses(train_data, eval_data, settings)
        evaluation = _Evaluation(trainer, eval_data, settings)
    if settings.do_train:
        loads = bool(settings.init_checkpoint)
        records = {"train_records": train_data.num_records, "train_records_checksum": train_data.checksum}
        trainer.keep_settings(identify(settings, trainer.model.backbone, tokenizer, weights_are_loaded=loads) | records)
    elif not trainer.restore() and not settings.init_checkpoint:
        raise InputError(
            f"{settings.output_dir}: no checkpoint to evaluate. Train first (--do_train), or give --init_checkpoint."
        )
    elif settings.init_checkpoint and trainer.step.numpy():
        print(f"Evaluating the last checkpoint in {settings.output_dir} instead of --init_checkpoint.")
    if writes:
        write_flags(dict(sorted(dataclasses.asdict(settings).items())), settings.output_dir)
    if settings.do_train:
        masking = MaskingRules.of(tokenizer, settings) if settings.dynamic_masking else None
        metrics |= _train(trainer, train_data, masking, evaluation, _budget(trainer, settings, started), settings)
    if evaluation is not None:
        metrics |= evaluation.figures or evaluation()
    if writes:
        if settings.do_train:
            with atomic_path(os.path.join(settings.output_dir, "preset")) as temporary:
                trainer.model.save_to_preset(temporary)
                tokenizer.save_to_preset(temporary)
        path = os.path.join(settings.output_dir, "metrics.json")
        # A call that trained nothing adds to the figures of the training. Without a training (step 0), earlier figures
        # may belong to another model.
        if "train_seconds" not in metrics and int(trainer.step.numpy()):
            metrics = {**read_optional_json(path), **metrics}
        write_json(path, metrics)
        data = [Data("train", str(settings.input_file), train_data.num_records)]
        if settings.do_eval:
            data.append(Data("held out", str(settings.eval_input_file), eval_data.num_records))
        _write_pages(trainer, tokenizer, data, metrics, settings)
    trainer.workers.wait()
    return metrics


def _find_records(patterns: str | list[str]) -> list[str]:
    """Lists files of records, without their reports, which `train.tfrecord*` matches too."""
    return [path for path in expand_files(patterns) if not path.endswith(REPORT_ENDING)]


def _write_pages(trainer: Trainer, tokenizer, data: list[Data], metrics: dict, settings: PretrainingSettings) -> None:
    """Writes the model card and the report."""
    report = Report(
        title="Pre-trained BERT",
        history=read_optional_json(os.path.join(settings.output_dir, "history.json")),
        max_length=settings.max_seq_length,
        tables=[("Figures", ["figure", "value"], [list(figure) for figure in metrics.items()])],
        settings=dataclasses.asdict(settings),
    )
    write_report(os.path.join(settings.output_dir, "report.html"), report)
    card = Card(
        report=report,
        task="fill_mask",
        config=trainer.model.backbone.bert_config,
        num_parameters=trainer.model.count_params(),
        tokenizer=tokenizer_identity(tokenizer),
        data=data,
        metrics=metrics,
        scores=[name for name in _SCORES if name in metrics],
    )
    write_card(settings.output_dir, card)


def _read(files: list[str], trainer: Trainer, tokenizer: BertTokenizer, settings: PretrainingSettings) -> Records:
    """Reads the indexes of files. The chief makes missing ones before the other workers look for them.

    Raises:
        InputError: as in `read_records`; or the workers see different files.
    """
    workers = trainer.workers
    if not workers.is_chief:
        workers.wait()
    records = read_records(files, tokenizer.vocabulary_size(), **settings.lengths)
    if workers.is_chief:
        workers.wait()
    vocabulary = tokenizer_identity(tokenizer)["vocabulary_checksum"]
    indexes = zip(files, records.indexes, strict=True)
    others = [path for path, index in indexes if index.vocabulary not in (-1, vocabulary)]
    if others:  # A vocabulary that was only extended since then still fits.
        logging.warning(
            "%s: was created with another vocabulary than --vocab_file=%s, so that its ids may stand for other words. "
            "Give the data's vocabulary, or create the data again.",
            others[0],
            settings.vocab_file,
        )
    workers.check_equal({"number of files": len(files)})
    workers.check_equal({path: int(index.checksum) for path, index in zip(files, records.indexes, strict=True)})
    return records


def _guesses(train: Records, held_out: Records, settings: PretrainingSettings) -> dict[str, float]:
    """Returns the scores of always giving the most frequent answer."""
    pairs = {"unigram_accuracy": (train.answer_counts, held_out.answer_counts)}
    if settings.use_next_sentence:
        pairs["majority_next_sentence_accuracy"] = train.next_sentence_counts, held_out.next_sentence_counts
    return {name: most_frequent_accuracy(*counts) for name, counts in pairs.items()}


# === Training ===


def _budget(trainer: Trainer, settings: PretrainingSettings, started: float) -> Budget:
    if not settings.time_budget_minutes:
        return Budget(settings.num_train_steps)
    return Budget(
        path=os.path.join(settings.output_dir, CLOCK_FILE) if trainer.workers.is_chief else None,
        seconds=60.0 * settings.time_budget_minutes,
        started=started,
        schedule=trainer.schedule,
        save_checkpoints_steps=settings.save_checkpoints_steps,
    )


def _train(
    trainer: Trainer,
    data: Records,
    masking: MaskingRules | None,
    evaluation: "_Evaluation | None",
    budget: Budget,
    settings: PretrainingSettings,
) -> dict:
    """Trains to the last step; returns the training's figures, with figures of speed only if a step was left to do."""
    plan = plan_packing(data, masking) if settings.packing else None
    sizes = {"batch_size": settings.train_batch_size, "random_seed": settings.random_seed}
    make_dataset = TrainBatches(data, **sizes, masking=masking, packing=plan)
    before = trainer.restore()
    if budget.is_over(before) and not before:
        raise InputError(
            f"--time_budget_minutes={settings.time_budget_minutes}: over before step 1, with the time of earlier calls "
            f"in {os.path.join(settings.output_dir, CLOCK_FILE)}. Give more, or choose a new --output_dir."
        )
    start = time.monotonic()
    options = {"save_checkpoints_steps": settings.save_checkpoints_steps, "evaluate": evaluation}
    trainer.fit(make_dataset, budget, description="pre-training", **options)
    last = int(trainer.step.numpy())
    steps, figures = last - before, {"train_records": data.num_records, "train_steps": last}
    figures["train_start"] = settings.init_checkpoint or "random weights"
    if settings.time_budget_minutes:
        figures["num_train_steps"] = budget.num_steps
    if plan is not None:
        share = data.num_real_tokens / (data.num_records * settings.max_seq_length)
        figures |= {"real_token_share": share, "packed_real_token_share": share * data.num_records / plan.num_rows}
    if before and steps > 0:
        figures["train_resumed_at"] = before
    if steps > 0:
        seconds = time.monotonic() - start - (evaluation.seconds if evaluation else 0.0)
        num_examples = steps * settings.train_batch_size * (data.num_records / plan.num_rows if plan else 1)
        figures |= {
            "train_seconds": round(seconds, 1),
            "examples_per_second": round(num_examples / seconds, 1),
            "real_tokens_per_second": round(num_examples / seconds * data.num_real_tokens / data.num_records),
            "train_command": command_line("bert-pretrain", settings),
        }
    return figures


# === Evaluation ===


class _Evaluation:
    """Evaluates the trainer's model on the held-out records. Keeps the latest figures and the time spent."""

    def __init__(self, trainer: Trainer, data: Records, settings: PretrainingSettings):
        self.figures: dict[str, float] = {}
        self.seconds = 0.0
        self._trainer = trainer
        dataset = make_eval_dataset(
            data,
            batch_size=settings.eval_batch_size,
            packing=plan_packing(data) if settings.packing else None,
            is_static=needs_static_shapes(trainer.strategy),
        )
        self._dataset = dataset.take(settings.max_eval_steps or -1)  # All of it.

    def __call__(self) -> dict[str, float]:
        start = time.monotonic()
        figures = self._trainer.evaluate(self._dataset)
        figures.setdefault("masked_lm_loss", figures["loss"])  # A loss of one part has no other name.
        self.figures = {**figures, "perplexity": perplexity(figures["masked_lm_loss"])}
        self.seconds += time.monotonic() - start
        return self.figures
