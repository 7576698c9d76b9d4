"""The settings of bert-pretrain."""

from dataclasses import MISSING

from keras_bert.config import ATTENTIONS
from keras_bert.errors import InputError
from tasks.engine.settings import OPTIMIZERS, TrainingSettings
from tasks.settings import changeable, replaced, setting


def _size(what: str, **rule: str) -> int | None:
    return setting(None, f"{what}; default: that of the architecture.", at_least=1, **rule)


class PretrainingSettings(TrainingSettings):
    """Settings of bert-pretrain, which are its flags.

    Raises:
        InputError: a value is out of its bounds, or values contradict each other.
    """

    input_file: str | list[str] = changeable(MISSING, "TFRecord files: paths or patterns, separated by commas.")
    eval_input_file: str | list[str] | None = changeable(None, "Held-out TFRecord files, for --do_eval.")
    output_dir: str = changeable(MISSING, "Directory for all files of the run: preset, report, checkpoints, ...")
    vocab_file: str = changeable(MISSING, "WordPiece vocabulary with which the data was created.")
    preset: str | None = changeable(
        None,
        "Architecture: a short name (tiny mini small medium base large), a full name, or a directory. Its weights are "
        "not loaded.",
    )
    max_seq_length: int = setting(128, "Most tokens of an instance, as in the data.", at_least=3)
    do_train: bool = changeable(False, "Train the model.")
    do_eval: bool = changeable(False, "Evaluate the model.")
    num_train_steps: int = setting(100000, "Number of training steps.", at_least=1)
    time_budget_minutes: float | None = setting(
        None,
        "Minutes that the run may take, over all calls. The measured rate then decides the number of steps, in place "
        "of --num_train_steps. The learning rate stays at its peak for half of the steps.",
        above=0.0,
    )
    do_lower_case: bool = setting(True, "Lowercase and strip accents; true for an uncased vocabulary.", subject="data")
    max_predictions_per_seq: int = setting(20, "Most masked positions of an instance, as in the data.", at_least=1)
    packing: bool = setting(False, "Put several instances into a row of max_seq_length tokens; batch sizes count rows.")
    dynamic_masking: bool = setting(False, "Draw new masks in each epoch; held-out records keep their masks.")
    masked_lm_prob: float = setting(0.15, "Share of the tokens that --dynamic_masking masks.", above=0.0, at_most=1.0)
    do_whole_word_mask: bool = setting(False, "Let --dynamic_masking mask all WordPieces of a word together.")
    bert_config_file: str | None = changeable(
        None, "JSON file with the architecture, in place of --preset.", subject="start"
    )
    init_checkpoint: str | None = changeable(
        None,
        "Preset, name or directory of any format, whose encoder and heads to train further, in place of --preset.",
    )
    num_layers: int | None = _size("Number of encoder layers", subject="model")
    hidden_dim: int | None = _size("Width of the encoder")
    num_heads: int | None = _size("Number of attention heads")
    intermediate_dim: int | None = _size("Width of the feed-forward layer")
    attention: str | None = setting(
        None,
        "Direction of attention; left_to_right is the paper's ablation (table 5). Default: the architecture's.",
        choices=ATTENTIONS,
    )
    initial_attention: str = setting(
        "random",
        "neighbors: each head starts by attending to the token at a distance of its own, from 1 to 4.",
        choices=("random", "neighbors"),
    )
    use_next_sentence: bool = setting(
        True, "Train the next-sentence head, too; false: the masked LM alone.", subject="training"
    )
    next_sentence_weight: float = setting(1.0, "Weight of the next-sentence loss; the masked LM's is 1.", above=0.0)
    adam_lr_ratio: float = setting(
        1.0, "With --optimizer=muon: learning rate of the other variables, relative to the matrices.", above=0.0
    )
    num_warmup_steps: int | None = setting(
        None, "Warm-up steps; default: 10000, or a tenth of fewer steps than that; 100 in a time budget.", at_least=0
    )
    max_eval_steps: int | None = changeable(
        None, "Maximum number of batches of an evaluation; default: all.", at_least=1, subject="evaluation"
    )
    optimizer: str = replaced(
        TrainingSettings,
        "optimizer",
        "bert-2018",
        help="bert-2018: Adam with decoupled weight decay and no bias correction; adamw: with bias correction; lamb: "
        "for batches of thousands; muon: orthogonalized updates of the encoder's matrices, adamw for the rest.",
        choices=OPTIMIZERS,
    )

    def __post_init__(self):
        super().__post_init__()
        if not (self.do_train or self.do_eval):
            raise InputError("Nothing to do. Give --do_train, --do_eval or both.")
        if self.do_eval and not self.eval_input_file:
            raise InputError("--do_eval needs --eval_input_file: records that are not among the training ones.")
        warmup, steps = self.num_warmup_steps, self.num_train_steps
        if warmup is None:  # google-research/bert's, unless the steps are fewer.
            warmup = 100 if self.time_budget_minutes else 10000 if steps >= 10000 else steps // 10
            object.__setattr__(self, "num_warmup_steps", warmup)
        if warmup > steps and not self.time_budget_minutes:
            raise InputError(f"--num_warmup_steps must be at most --num_train_steps. Received: {warmup} and {steps}")
        if self.dynamic_masking and self.tpu not in (None, "local"):
            raise InputError(
                f"--dynamic_masking draws masks in this process, which needs --tpu=local. Received: --tpu={self.tpu}"
            )
        idle = self.changed("masked_lm_prob", "do_whole_word_mask")
        if idle and not self.dynamic_masking:
            raise InputError(f"{' and '.join(idle)}: the records hold their masks. Add --dynamic_masking to draw some.")
        if self.adam_lr_ratio != 1.0 and self.optimizer != "muon":
            raise InputError(f"--adam_lr_ratio is for --optimizer=muon. Received: --optimizer={self.optimizer}")
        given = [f"--{name}" for name in ("preset", "bert_config_file", "init_checkpoint") if getattr(self, name)]
        if len(given) != 1:
            raise InputError(
                "The architecture must be given once, by --preset, --bert_config_file or --init_checkpoint. "
                f"Received: {' and '.join(given) or 'none of them'}"
            )
        if self.initial_attention != "random" and self.init_checkpoint:
            raise InputError(
                f"--initial_attention={self.initial_attention}: --init_checkpoint has weights of its own. Leave it out."
            )

    @property
    def optimizer_options(self) -> dict:
        """Arguments of `build_optimizer`, by name."""
        schedule = {"lr_schedule": "constant_then_linear"} if self.time_budget_minutes else {}
        ratio = {"adam_lr_ratio": self.adam_lr_ratio} if self.optimizer == "muon" else {}
        return {**super().optimizer_options, **schedule, **ratio}

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths with which the data was created, by name."""
        return {"max_seq_length": self.max_seq_length, "max_predictions_per_seq": self.max_predictions_per_seq}

    @property
    def architecture_source(self) -> str:
        """The preset, file or checkpoint that gives the architecture."""
        return self.preset or self.bert_config_file or self.init_checkpoint
