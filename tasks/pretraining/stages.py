"""The stages of `bert-pretrain`: check the records, train, evaluate, save the preset."""

import dataclasses
import itertools
import os
import time

import keras
import tensorflow as tf
from tqdm import tqdm

from keras_bert.backbone import BertBackbone
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, read_json, write_json
from keras_bert.tokenizer import BertTokenizer
from keras_bert.weights import read_bert_config, read_tokenizer
from tasks.build_trainer import build_trainer, prepare_devices
from tasks.checkpoints import keep_settings
from tasks.flags import write_flags
from tasks.pretraining.data import make_eval_dataset, train_dataset_maker
from tasks.pretraining.losses import PretrainingObjective
from tasks.pretraining.masking import MaskingRules
from tasks.pretraining.metrics import most_frequent_accuracy, perplexity
from tasks.pretraining.model import BertPretrainer, build_pretrainer
from tasks.pretraining.packed_data import PackingPlan, plan_packing
from tasks.records import RecordStatistics, scan_records
from tasks.settings import CHANGEABLE, TrainingSettings, identify
from tasks.throughput import Speed, find_peak, pretraining_flops_per_token
from tasks.training import Trainer

PRESET_DIRECTORY = "preset"
METRICS_FILE = "metrics.json"
_SIZES = ("num_layers", "hidden_dim", "num_heads", "intermediate_dim")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(TrainingSettings):
    """The flags of `bert-pretrain`, by their names and with their defaults.

    Attributes:
        input_file, eval_input_file: TFRecord paths or patterns; the held-out ones are needed with `do_eval` only.
        output_dir: directory for everything the run writes.
        vocab_file, do_lower_case: the vocabulary with which the data was created.
        preset: name or directory of the architecture; its weights are not loaded.
        bert_config_file: JSON file of the architecture, in the place of `preset`.
        num_layers, hidden_dim, num_heads, intermediate_dim: replace the architecture's sizes.
        init_checkpoint: preset, name or directory of any format, from whose encoder and heads training starts; gives
            the architecture too.
        max_seq_length, max_predictions_per_seq: lengths with which the data was created.
        do_train, do_eval: the stages; at least one.
        packing: several instances in one row of `max_seq_length`; batch sizes count rows then.
        dynamic_masking: fresh masks each epoch, by `masked_lm_prob` and `do_whole_word_mask`; held-out records keep
            theirs.
        attention: "bidirectional", or "left_to_right" (the paper's table 5); None: the architecture's.
        use_next_sentence: False: the masked-LM loss alone.
        peak_tflops: what a device can do, in 10^12 operations a second; None: measured.
        max_eval_steps: batches an evaluation looks at; None: all.
        num_train_steps, num_warmup_steps: as in `build_optimizer`.

    Raises:
        InputError: settings that contradict each other.
    """

    input_file: str | list[str]
    output_dir: str
    vocab_file: str
    eval_input_file: str | list[str] | None = None
    do_lower_case: bool = True
    preset: str | None = None
    bert_config_file: str | None = None
    num_layers: int | None = None
    hidden_dim: int | None = None
    num_heads: int | None = None
    intermediate_dim: int | None = None
    init_checkpoint: str | None = None
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    do_train: bool = False
    do_eval: bool = False
    packing: bool = False
    dynamic_masking: bool = False
    masked_lm_prob: float = 0.15
    do_whole_word_mask: bool = False
    attention: str | None = None
    use_next_sentence: bool = True
    peak_tflops: float | None = None
    max_eval_steps: int | None = None
    num_train_steps: int = 100000
    num_warmup_steps: int = 10000

    def __post_init__(self):
        if not (self.do_train or self.do_eval):
            raise InputError("Nothing to do. Give --do_train, --do_eval or both.")
        if self.do_eval and not self.eval_input_file:
            raise InputError("--do_eval needs --eval_input_file: records that are not among the training ones.")
        if self.num_warmup_steps > self.num_train_steps:
            raise InputError(
                "--num_warmup_steps must be at most --num_train_steps. "
                f"Received: {self.num_warmup_steps} and {self.num_train_steps}"
            )
        if not 0 < self.masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob must lie in (0, 1]. Received: {self.masked_lm_prob}")
        given = [f"--{name}" for name in ("preset", "bert_config_file", "init_checkpoint") if getattr(self, name)]
        if len(given) != 1:
            raise InputError(
                "The architecture must be given once, by --preset, --bert_config_file or --init_checkpoint. "
                f"Received: {' and '.join(given) or 'none of them'}"
            )

    @property
    def lengths(self) -> dict[str, int]:
        return {"max_seq_length": self.max_seq_length, "max_predictions_per_seq": self.max_predictions_per_seq}


# Stages and paths; of what the paths name, content is compared in their place.
_CHANGEABLE = CHANGEABLE | {
    "input_file", "eval_input_file", "output_dir", "vocab_file", "preset", "bert_config_file", "init_checkpoint",
    "do_train", "do_eval", "max_eval_steps", "peak_tflops",
}  # fmt: skip


def run_stages(settings: Settings) -> dict:
    """Trains and evaluates, or one of them; see `tasks.pretraining.run.pretrain`."""
    strategy = prepare_devices(settings)
    tokenizer = BertTokenizer(settings.vocab_file, lowercase=settings.do_lower_case)
    train_files = expand_files(settings.input_file)
    eval_files = expand_files(settings.eval_input_file) if settings.do_eval else []
    trainer = _build_trainer(tokenizer, settings, strategy)
    train_records = _scan(train_files, tokenizer, settings)
    metrics = {}
    evaluation = None
    if settings.do_eval:
        eval_records = _scan(eval_files, tokenizer, settings)
        metrics["unigram_accuracy"] = most_frequent_accuracy(train_records.answer_counts, eval_records.answer_counts)
        if settings.use_next_sentence:
            counts = (part.next_sentence_counts for part in (train_records, eval_records))
            metrics["majority_next_sentence_accuracy"] = most_frequent_accuracy(*counts)
        evaluation = _Evaluation(trainer, eval_files, eval_records.num_records, settings)
    masking = _masking(tokenizer, settings) if settings.dynamic_masking else None
    writes = trainer.workers.is_chief
    if settings.do_train:
        identity = _identity(trainer.model.backbone, tokenizer, train_records, settings)
        keep_settings(settings.output_dir, identity, writes=writes)
    elif not trainer.restore():
        raise InputError(f"{settings.output_dir}: no checkpoint to evaluate. Train first, with --do_train.")
    if writes:
        write_flags(dict(sorted(dataclasses.asdict(settings).items())), settings.output_dir)
    if settings.do_train:
        metrics.update(_train(trainer, train_files, train_records, masking, evaluation, settings))
    if evaluation is not None:
        metrics.update(evaluation.figures or evaluation())
    if writes:
        if settings.do_train:
            _save_preset(trainer.model, tokenizer, settings.output_dir)
        metrics = _write_metrics(metrics, settings.output_dir)
    trainer.workers.wait()
    return metrics


def _identity(backbone: BertBackbone, tokenizer: BertTokenizer, records: RecordStatistics, settings: Settings) -> dict:
    return {
        **identify(
            settings, backbone, tokenizer, weights_are_loaded=bool(settings.init_checkpoint), changeable=_CHANGEABLE
        ),
        "train_records": records.num_records,
        "train_records_checksum": records.checksum,
    }


def _write_metrics(metrics: dict, output_dir: str) -> dict:
    """Writes metrics.json; a call that trained nothing adds to what is there."""
    path = os.path.join(output_dir, METRICS_FILE)
    if "train_seconds" not in metrics and os.path.exists(path):
        metrics = {**read_json(path), **metrics}
    write_json(path, metrics)
    return metrics


def _scan(files: list[str], tokenizer: BertTokenizer, settings: Settings) -> RecordStatistics:
    vocabulary_size = tokenizer.vocabulary_size()
    with tqdm(desc="check records", unit="record", mininterval=0.5) as progress:
        return scan_records(files, vocabulary_size=vocabulary_size, progress=progress, **settings.lengths)


def _masking(tokenizer: BertTokenizer, settings: Settings) -> MaskingRules:
    return MaskingRules.of(
        tokenizer,
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions_per_seq=settings.max_predictions_per_seq,
        do_whole_word_mask=settings.do_whole_word_mask,
    )


def _plan(files: list[str], masking: MaskingRules | None, settings: Settings) -> PackingPlan | None:
    if not settings.packing:
        return None
    with tqdm(desc="plan rows", unit="record", mininterval=0.5) as progress:
        return plan_packing(files, masking=masking, progress=progress, **settings.lengths)


# === The model ===


def read_architecture(settings: Settings, vocabulary_size: int) -> BertConfig:
    """The architecture that the settings name, with their overrides and the size of the vocabulary file.

    Raises:
        InputError: it does not fit the data's length, the vocabulary or, with `init_checkpoint`, the weights.
    """
    source = settings.preset or settings.bert_config_file or settings.init_checkpoint
    config = BertConfig.from_json_file(source) if settings.bert_config_file else read_bert_config(source)
    overrides = {name: getattr(settings, name) for name in _SIZES if getattr(settings, name) is not None}
    if settings.init_checkpoint and overrides:
        raise InputError(f"--{next(iter(overrides))} cannot change the sizes of --init_checkpoint={source}.")
    if settings.init_checkpoint and config.vocabulary_size != vocabulary_size:
        raise InputError(
            f"{settings.vocab_file}: {vocabulary_size} WordPieces, but --init_checkpoint={source} has "
            f"{config.vocabulary_size}. Give the vocabulary that belongs to the weights."
        )
    if "hidden_dim" in overrides and "intermediate_dim" not in overrides:
        overrides["intermediate_dim"] = 4 * overrides["hidden_dim"]  # the paper's ratio (section 3)
    if settings.attention:
        overrides["attention"] = settings.attention
    config = config.replace(vocabulary_size=vocabulary_size, **overrides)
    if settings.max_seq_length > config.max_sequence_length:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {source} has {config.max_sequence_length} positions. Give "
            "a --bert_config_file with more max_position_embeddings."
        )
    return config


def check_vocabulary(settings: Settings, pieces: list[str]) -> None:
    """Checks that `vocab_file` and `do_lower_case` are what the weights of `init_checkpoint` were trained with.

    Args:
        settings: with `init_checkpoint`.
        pieces: of `vocab_file`.

    Raises:
        InputError: the checkpoint says otherwise; one without a vocabulary says nothing.
    """
    held = read_tokenizer(settings.init_checkpoint, settings.do_lower_case)
    if held is None or held["vocabulary"] == pieces:
        return
    pairs = enumerate(itertools.zip_longest(pieces, held["vocabulary"], fillvalue=""), start=1)
    number, (ours, theirs) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    raise InputError(
        f"{settings.vocab_file}:{number}: {ours!r}, but the vocabulary of --init_checkpoint={settings.init_checkpoint} "
        f"has {theirs!r} there. Create the data with the vocabulary that belongs to the weights."
    )


def _build_trainer(tokenizer: BertTokenizer, settings: Settings, strategy: tf.distribute.Strategy) -> Trainer:
    config = read_architecture(settings, tokenizer.vocabulary_size())
    if settings.init_checkpoint:
        check_vocabulary(settings, tokenizer.get_vocabulary())

    def build_model():
        layout = "packed" if settings.packing else "rectangular"
        if settings.init_checkpoint:
            return BertPretrainer.from_preset(
                settings.init_checkpoint,
                use_next_sentence=settings.use_next_sentence,
                layout=layout,
                dtype=keras.config.dtype_policy(),
                trainable=True,
                attention=config.attention,
            )
        return build_pretrainer(BertBackbone(**config.to_dict(), layout=layout), settings.use_next_sentence)

    return build_trainer(
        settings,
        build_model,
        PretrainingObjective(settings.use_next_sentence),
        output_dir=settings.output_dir,
        num_train_steps=settings.num_train_steps,
        num_warmup_steps=settings.num_warmup_steps,
        strategy=strategy,
    )


# === Training ===


def _train(
    trainer: Trainer,
    files: list[str],
    records: RecordStatistics,
    masking: MaskingRules | None,
    evaluation: "_Evaluation | None",
    settings: Settings,
) -> dict:
    """Trains to the last step; returns what metrics.json says of it, speed only if there was something left to do."""
    plan = _plan(files, masking, settings)
    make_dataset = train_dataset_maker(
        files,
        num_records=records.num_records,
        batch_size=settings.train_batch_size,
        random_seed=settings.random_seed,
        masking=masking,
        packing=plan,
        **settings.lengths,
    )
    steps = settings.num_train_steps - trainer.restore()
    speed = _speed(trainer, records, settings) if steps > 0 else None
    start = time.monotonic()
    trainer.fit(
        make_dataset,
        settings.num_train_steps,
        save_checkpoints_steps=settings.save_checkpoints_steps,
        evaluate=evaluation,
        speed=speed,
        description="pre-training",
    )
    figures = {"train_records": records.num_records, "train_steps": settings.num_train_steps}
    if plan is not None:
        figures["real_token_share"] = plan.real_token_share_before
        figures["packed_real_token_share"] = plan.real_token_share_after
    if steps > 0:
        seconds = time.monotonic() - start - (evaluation.seconds if evaluation else 0.0)
        examples_per_row = plan.num_records / plan.num_rows if plan else 1
        examples_per_second = steps * settings.train_batch_size * examples_per_row / seconds
        figures["train_seconds"] = round(seconds, 1)
        figures["examples_per_second"] = round(examples_per_second, 1)
        tokens_per_second = examples_per_second * records.num_real_tokens / records.num_records
        figures["real_tokens_per_second"] = round(tokens_per_second)
        if speed is not None:
            figures["share_of_peak"] = speed.share_of_peak(tokens_per_second)
            figures["peak_tflops"] = round(speed.peak_flops / 1e12, 3)
            figures["peak_source"] = speed.peak_source
    return figures


def _speed(trainer: Trainer, records: RecordStatistics, settings: Settings) -> Speed | None:
    peak = find_peak(trainer.strategy, settings.peak_tflops, settings.mixed_precision)
    if peak is None:
        return None
    per_example = (records.num_real_tokens / records.num_records, records.answer_counts.sum() / records.num_records)
    return Speed(pretraining_flops_per_token(trainer.model.backbone.bert_config, *per_example), *peak)


class _Evaluation:
    """Evaluates the trainer's model on the held-out records; keeps the latest figures and the time spent."""

    def __init__(self, trainer: Trainer, files: list[str], num_records: int, settings: Settings):
        self.figures: dict[str, float] = {}
        self.seconds = 0.0
        self._trainer = trainer
        self._max_steps = settings.max_eval_steps
        self._dataset = make_eval_dataset(
            files,
            num_records=num_records,
            batch_size=settings.eval_batch_size,
            packing=_plan(files, None, settings),
            **settings.lengths,
        )

    def __call__(self) -> dict[str, float]:
        start = time.monotonic()
        figures = self._trainer.evaluate(self._dataset, self._max_steps)
        figures.setdefault("masked_lm_loss", figures["loss"])  # A loss of one part has no other name.
        self.figures = {**figures, "perplexity": perplexity(figures["masked_lm_loss"])}
        self.seconds += time.monotonic() - start
        return self.figures


def _save_preset(model: BertPretrainer, tokenizer: BertTokenizer, output_dir: str) -> None:
    with atomic_path(os.path.join(output_dir, PRESET_DIRECTORY)) as temporary:
        model.save_to_preset(temporary)
        tokenizer.save_to_preset(temporary)
