"""Settings of `bert-classify`."""

import dataclasses

from keras_bert.answers.rules import NO_LABEL, POOLED
from keras_bert.errors import InputError
from tasks.classify.glue import TASKS, TableTask
from tasks.fine_tuning import columns, rare_labels
from tasks.fine_tuning.settings import LongTextSettings
from tasks.settings import changeable, setting

FEW_ROWS = 100  # Per label. With fewer, `few_labels` is on by default.
# Settings that only plain fine-tuning can follow; and, in PLANS, those that say what to fine-tune, or how.
_CONTRARY = ("early_stopping_patience", "lora_rank", "num_frozen_layers", "reinit_layers", "num_restarts")
_CONTRARY += ("text_pair_column", "regression", "distribution_strategy", *rare_labels.NAMES)
PLANS = ("task_name", "load_weights", "init_checkpoint", "bert_config_file", "num_train_epochs", "learning_rate")
PLANS += ("train_batch_size", "gradient_accumulation_steps", "layer_decay", "warmup_proportion")


class ClassifySettings(LongTextSettings, rare_labels.RareLabelSettings):
    """Settings of `bert-classify`."""

    text_column: str | None = changeable(None, "Column with the text; default: the task's, or else recognized.")
    label_column: str | None = changeable(
        None,
        "Column with the label, the labels or the score; or several columns of 0 and 1, separated by commas, each with "
        "its label as its name. Default: the task's, or else recognized.",
    )
    task_name: str = changeable(
        "table",
        "table: any TSV, CSV, Excel, JSON Lines or Parquet file with named columns; or a GLUE task, also in GLUE's "
        "spelling, such as SST-2. mnli-m and mnli-mm: MNLI with one of its dev sets.",
        choices=tuple(sorted(TASKS)),
        any_spelling=True,
        subject="data",
    )
    text_pair_column: str | None = changeable(None, "Column with the second text, for tasks on pairs of texts.")
    column_names: list[str] | None = changeable(None, "Names of all columns, for files without a header.")
    labels: list[str] | None = changeable(
        None, "Labels in the order of their class numbers; default: the GLUE task's, or the training file's, sorted."
    )
    multi_label: bool | None = changeable(
        None,
        "A row may have any number of labels, or none. Default: true if cells hold JSON lists, or --label_column names "
        "several columns.",
    )
    label_separator: str | None = changeable(
        None, f"Separator of the labels in a cell; default: the one of {' '.join(columns.SEPARATORS)} that occurs."
    )
    regression: bool = changeable(False, "The label column holds numbers to predict, such as ratings.")
    data_dir: str | None = changeable(None, "Directory with GLUE's files, or with tables named train, dev and test.")
    few_labels: str | None = setting(
        None,
        "How to train on single texts with few rows per label. frozen: a logistic regression on the preset's "
        "embeddings; contrastive: then also all weights, starting from this head, with a contrastive loss; names: no "
        "training, the answer is the label of --labels whose name is nearest; off: plain fine-tuning; auto: "
        "contrastive, but frozen with very few rows or if it is much better on held-out rows, off if neither helps. "
        f"Default: auto for tables with fewer than {FEW_ROWS} rows per label, unless flags say how to "
        "fine-tune; else off.",
        choices=("auto", "frozen", "contrastive", "names", "off"),
        subject="training",
    )
    find_wrong_labels: bool | None = changeable(
        None,
        "List training rows whose label is likely wrong in doubtful_labels.tsv, by a cross-validated logistic "
        "regression on the preset's embeddings. Default: true if --few_labels fits this regression anyway.",
    )
    precision: float | None = changeable(
        None,
        "Share of the given answers that should be right. Below the confidence that gives this share on the held-out "
        f"rows, the label is {NO_LABEL}, in predictions and in the served model. --do_eval chooses the confidence "
        "anew. Default: every row gets a label; without --do_train, as in the model's training.",
        above=0.0,
        at_most=1.0,
        subject="answers",
    )

    def __post_init__(self):
        if self.few_labels == "names" and not self.splits:
            object.__setattr__(self, "do_train", True)
            object.__setattr__(self, "do_eval", bool(self.dev_file))
        super().__post_init__()
        if self.find_wrong_labels and (self.is_search or self.few_labels == "names" or not self.do_train):
            raise InputError(
                "--find_wrong_labels looks at the rows of one training. Give it with --do_train, without "
                "--few_labels=names and without several rates, batch sizes or restarts."
            )
        if self.precision and not (self.do_eval or (self.do_train and self.validation_share)):
            raise InputError(
                f"--precision={self.precision}: the least confidence is chosen on labelled rows. Give --do_eval, or "
                "--do_train and --validation_share."
            )
        contrary = self.contrary_to_few_labels()
        if self.few_labels not in (None, "off") and contrary:
            raise InputError(
                f"--few_labels={self.few_labels} trains a linear head on single texts and classes, on one device. "
                f"Leave out {contrary[0]}, or give --few_labels=off."
            )
        if self.few_labels == "names" and not self.labels:
            raise InputError("--few_labels=names compares texts with the labels' names. Name them with --labels.")
        if self.few_labels == "names" and (self.train_file or self.dev_share or self.validation_share):
            raise InputError(
                "--few_labels=names trains on no rows. Leave out --train_file and shares of its rows, and name rows to "
                "score on: --dev_file."
            )

    def contrary_to_few_labels(self) -> list[str]:
        """Lists the flags of this call that only plain fine-tuning can follow."""
        searched = [name for name, values in self.grid.items() if values[1:]]
        pooled = ["--long_text"] if self.long_text in POOLED else []
        return [*(f"--{name}" for name in searched), *pooled, *self.changed(*_CONTRARY)]

    def table_task(self) -> TableTask:
        """Returns the task, with the columns named by the settings.

        Raises:
            InputError: settings contradict the task or each other.
        """
        chosen = TASKS[self.task_name]
        if self.regression and not chosen.is_regression:
            if chosen.labels is not None:
                raise InputError(
                    f"--regression: {chosen.name} has classes ({', '.join(chosen.labels)}), not scores. Leave it out."
                )
            chosen = chosen.as_regression()
        if chosen.is_regression and self.labels:
            raise InputError(f"--labels={','.join(self.labels)}: a task with scores has no classes. Leave it out.")
        if self.labels and set(self.labels) != set(chosen.labels or ()):  # The file has these labels, not GLUE's.
            chosen = dataclasses.replace(chosen, class_names=())
        if self.has_several_labels:
            self._check_several_labels(chosen)
            chosen = chosen.as_multi_label(self.marked_labels, self.label_separator)
        named = {name: getattr(self, name) for name in ("text_column", "text_pair_column", "label_column")}
        chosen = dataclasses.replace(chosen, **{name: value for name, value in named.items() if value})
        if self.column_names:
            chosen = dataclasses.replace(chosen, headerless_columns=tuple(self.column_names), test_has_header=False)
        return chosen

    @property
    def has_several_labels(self) -> bool:
        """Whether the flags say that a row has any number of labels."""
        says_so = self.label_separator is not None or self.marked_labels is not None
        return says_so if self.multi_label is None else self.multi_label

    @property
    def marked_labels(self) -> tuple[str, ...] | None:
        """The labels, if each has a column of its own."""
        return tuple(self.label_column.split(",")) if "," in (self.label_column or "") else None

    def _check_several_labels(self, chosen: TableTask) -> None:
        if chosen.is_regression:
            raise InputError("--regression predicts a number, --multi_label labels. Leave one of them out.")
        if chosen.labels is not None:
            raise InputError(f"--multi_label: {chosen.name} has one label a row. Leave it out.")
        if self.marked_labels and (self.labels or self.label_separator):
            raise InputError(
                f"--label_column={self.label_column}: the columns are the labels. Leave out --labels and "
                "--label_separator."
            )
