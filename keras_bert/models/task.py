"""`BertTask`: the common part of the task models.

Shapes: B batch, S sequence.
"""

import contextlib
import dataclasses
import functools
import numbers
import os
import warnings

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.answers.base import Answers, gives_logits
from keras_bert.config import POOLINGS
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import PoolTokens, output_head
from keras_bert.encoder.layer import arguments_of, keep_arguments, weights_follow
from keras_bert.errors import InputError, first_line
from keras_bert.files import is_file, keep_copies, read_optional_object
from keras_bert.models.rows import check_lengths, has_rows, make_batches, read_examples, read_rows, split_rows
from keras_bert.presets import catalog, tokenizers, weights
from keras_bert.tokenization.preprocessor import BertPreprocessor, after

_OF_ONE_LENGTH = {"doc_stride", "max_query_length"}  # Settings of `answer` that may not fit another sequence length.
_OF_ONE_HEAD = {"temperature", "thresholds"}  # Settings of `answer` that fit the outputs of one head only.
_KINDS = {  # What the settings of `answer` must be; None stands for the default of each.
    **dict.fromkeys(("long_text", "prompt"), ("a str", str)),
    **dict.fromkeys(("null_score_diff_threshold", "temperature"), ("a number", numbers.Real)),
    **dict.fromkeys(("doc_stride", "max_tokens", "top_k"), ("a whole number", numbers.Integral)),
    **dict.fromkeys(("n_best_size", "max_answer_length", "max_query_length"), ("a whole number", numbers.Integral)),
    "thresholds": ("a list of numbers, one for each label", numbers.Real),
    "version_2_with_negative": ("True or False", bool | np.bool_),
}
_LEARNING_RATE = 5e-5  # KerasHub's default, and the largest of the paper's rates for fine-tuning (appendix A.3).


class BertTask:
    """Adds to KerasHub's `Task` what the models of this package share: a backbone with heads, a preprocessor for texts.

    With a preprocessor, `fit`, `evaluate` and `predict` take texts; without one they take what a preprocessor returns.
    Calling the model always takes encoded features. `compile()` has defaults for optimizer, loss and metrics.

    This is a mixin, since Keras cannot make a functional model of a class with two bases that are models. Subclasses
    build the model in their constructor, and keep its arguments as attributes of the same name.

    Attributes:
        answers_cls: the class that decodes the model's outputs for `answer`.
        heads: names of the head layers, as in checkpoints of every format.
        heads_are_pretrained: whether the heads come from pre-training, so that a checkpoint should hold them.
        uses_pooler: whether any head reads `pooled_output`.
        labels: names of the classes, or None. With them, `fit` and `evaluate` also take labels as strings.
        multi_label: whether a row may have any number of labels; then `fit` takes a list of strings for each.
        trained_settings: names of the settings of `answer` that a command writes beside its model.
        answer_settings: default settings of `answer`. `from_preset` reads them from the `model/` directory of a
            fine-tuned model, and saved files keep them. A new `sequence_length` or head drops those that depend on it.
    """

    backbone_cls = BertBackbone
    preprocessor_cls = BertPreprocessor
    answers_cls: type[Answers]
    heads: tuple[str, ...] = ()
    heads_are_pretrained = False
    uses_pooler = True
    labels: list[str] | None = None
    multi_label: bool = False
    trained_settings: tuple[str, ...] = ()
    answer_settings: dict = {}
    _last_answers = None

    # === Answers ===

    def answer(self, inputs, **settings):
        """Answers texts as the model's export does (`serving_default`), without padding.

        The first call, and each call with new settings, traces a graph, which takes seconds.

        Args:
            inputs: list of str, or str for a single answer; if the model reads two texts, a tuple of two of these.
                Texts that an export reads in windows may have any length.
            **settings: settings of the model's class, such as `top_k`; see docs/models.md.

        Returns:
            A list with a dict for each text, or one dict for a single text: the outputs that docs/models.md lists, as
            Python values.

        Raises:
            ValueError: the model has no preprocessor, the backend is not TensorFlow, `inputs` are not texts or have the
                wrong number, shape or size, or a setting is out of bounds.
        """
        return self._answers(**settings).rows(inputs)

    def _answers(self, **settings) -> Answers:
        """Returns the `Answers` for these settings; the graphs of the last two different settings are kept."""
        if self.preprocessor is None:
            raise ValueError("`answer` reads texts with the model's preprocessor. Received: preprocessor=None")
        if (backend := keras.backend.backend()) != "tensorflow":
            raise ValueError(f"`answer` needs KERAS_BACKEND=tensorflow, unlike fit and predict. Received: {backend}")
        if self._last_answers is None:
            self._last_answers = functools.lru_cache(maxsize=2)(self._make_answers)
        given = {**self.answer_settings, **settings}.items()
        checked = {name: _check_setting(name, value) for name, value in given if value is not None}
        answers = self._last_answers(self.preprocessor, **checked)
        self._check_segments(len(answers.text_inputs))
        return answers

    def _check_segments(self, num_texts: int) -> None:
        if num_texts > 1 and self.backbone.num_segments < 2:
            raise ValueError("Pairs of texts need a backbone of two segments. Received: num_segments=1")

    def _make_answers(self, preprocessor: BertPreprocessor, **settings) -> Answers:
        return self.answers_cls(self, preprocessor, **settings)

    # === Training ===

    def compile(self, optimizer="auto", loss="auto", *, metrics="auto", weighted_metrics="auto", **kwargs):
        """Configures training as `keras.Model.compile` does, with the task's own defaults.

        Args:
            optimizer: `"auto"` is Adam with a learning rate of 5e-5.
            loss: `"auto"` is the task's default loss.
            metrics: `"auto"` means none.
            weighted_metrics: `"auto"` is the task's metrics if `metrics` is `"auto"` too, else none.
            **kwargs: as in `keras.Model.compile`.
        """
        self._last_answers = None  # Layers may have changed, for example by LoRA.
        if weighted_metrics == "auto":
            weighted_metrics = self.default_metrics() if metrics == "auto" else None
        super().compile(
            optimizer=keras.optimizers.Adam(_LEARNING_RATE) if optimizer == "auto" else optimizer,
            loss=self.default_loss() if loss == "auto" else loss,
            metrics=None if metrics == "auto" else metrics,
            weighted_metrics=weighted_metrics,
            **kwargs,
        )

    def default_loss(self):
        """Returns the loss that `compile` takes by default."""
        return cross_entropy()

    def default_metrics(self):
        """Returns the weighted metrics that `compile` takes by default."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def make_train_function(self, force=False):
        """Makes the training step, as `keras.Model.make_train_function` does."""
        if not self.optimizer.built:
            # Otherwise the first step creates these variables, and TensorFlow traces that step twice.
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        sample_weight=None,
        validation_data=None,
        validation_split=None,
        shuffle=True,
        **kwargs,
    ):
        """Trains the model as `keras.Model.fit` does; rows may be lists of different lengths.

        Rows are shuffled in each epoch, unless `shuffle` is False or `x` is a dataset. KerasHub's `fit` does not
        shuffle them.

        Raises:
            ValueError: a row has no text or label, such as an empty cell of pandas, or columns differ in length.
        """
        held_out = tuple(validation_data) if isinstance(validation_data, list) else validation_data
        held_out = read_rows("validation_data", held_out)
        check_lengths("`validation_data`", held_out)
        x, y, sample_weight = read_examples(x, y, sample_weight)
        if has_rows(x):
            if y is None and self.loss is not None and not self.heads_are_pretrained:
                raise ValueError("`y` must have a label for each row of `x`. Received: y=None")
            columns = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
            if validation_split and held_out is None:
                columns, held_out = split_rows(columns, validation_split)
            held_out = make_batches(held_out, batch_size) if has_rows(held_out) else held_out
            x, y, sample_weight, batch_size = make_batches(columns, batch_size, shuffle), None, None, None
        elif validation_split and held_out is None:
            raise ValueError("`validation_split` needs rows, not a dataset. Pass a part of it as `validation_data`.")
        with warnings.catch_warnings() if not self.uses_pooler else contextlib.nullcontext():
            if not self.uses_pooler:  # The backbone has one for other heads.
                warnings.filterwarnings("ignore", r"Gradients do not exist for variables \['pooled_dense/[^,]*, \S*\] ")
            return super().fit(x, y, batch_size, sample_weight, held_out, shuffle=False, **kwargs)

    def evaluate(self, x=None, y=None, batch_size=None, sample_weight=None, **kwargs):
        """Evaluates the model as `keras.Model.evaluate` does, on the inputs that `fit` takes."""
        x, y, sample_weight = read_examples(x, y, sample_weight)
        return super().evaluate(x, y, batch_size=batch_size, sample_weight=sample_weight, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Computes the outputs as `keras.Model.predict` does, for the inputs that `fit` takes."""
        return super().predict(read_rows("x", x), *args, **kwargs)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        """Turns raw samples into what the model takes; runs in tf.data."""
        if any(tf.is_tensor(column) and column.shape.rank == 0 for column in keras.tree.flatten(x)):
            raise ValueError("`x` must be batches of rows. Call `batch` of the dataset.")
        if self.preprocessor is not None and isinstance(x, tuple):
            self._check_segments(len(x))
        if self.labels and y is not None and tf.as_dtype(getattr(y, "dtype", tf.string)) == tf.string:
            y = tf.ragged.map_flat_values(lambda names: _find_labels(names, self.labels), y)
            if self.multi_label:  # Turns the indices of each row's labels into 0.0 or 1.0 for each label.
                if y.shape.rank == 1:
                    raise ValueError("`y` must be a list of labels for each row. Received: one label for each row.")
                numbers = y.to_tensor(-1) if isinstance(y, tf.RaggedTensor) else y
                padded = tf.pad(numbers, [[0, 0], [0, 1]], constant_values=-1)  # A row may have no label.
                y = tf.reduce_max(tf.one_hot(padded, len(self.labels)), axis=-2)
        return super().preprocess_samples(x, y, sample_weight)

    def quantize(self, mode=None, **kwargs) -> None:
        """Quantizes the backbone, as `keras.Model.quantize` does; the heads stay floats."""
        # A saved task describes only its backbone, and rebuilds the heads from the constructor's arguments.
        with warnings.catch_warnings():  # Keras names each layer that has no products.
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
            self.backbone.quantize(mode, **kwargs)
        self.train_function = self.test_function = self.predict_function = self._last_answers = None

    # === Saving and loading ===

    def get_config(self):
        # Only a backbone that is serialized as a whole keeps its token table tied to a masked-LM head.
        own = {name: getattr(self, name) for name in self._settings()}
        own |= {"answer_settings": dict(self.answer_settings)} if self.answer_settings else {}
        return {**super().get_config(), **own, **({} if self.compiled else {"compile": False})}

    @classmethod
    def from_config(cls, config):
        model = super().from_config({name: value for name, value in config.items() if name != "answer_settings"})
        model.answer_settings = config.get("answer_settings", {})
        return model

    def compile_from_config(self, config):
        # Keras's own method does nothing for a class that overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def save_task_weights(self, filepath):
        """Writes the heads' weights, without the optimizer's, which are twice as large as the model's."""
        keras.saving.save_weights(self, filepath, objects_to_skip=self._no_heads())

    def load_task_weights(self, filepath):
        """Reads the weights that `save_task_weights` wrote."""
        keras.saving.load_weights(self, filepath, objects_to_skip=self._no_heads())

    def _no_heads(self) -> list:
        return [*self.backbone._flatten_layers(), *([self.optimizer] if self.compiled else [])]

    @classmethod
    def _settings(cls) -> list[str]:
        """Lists the constructor's arguments that describe the heads."""
        return arguments_of(cls, "backbone", "preprocessor")

    @classmethod
    @keep_copies()  # Tokenizer, settings and weights are read from the same copy.
    def from_preset(
        cls,
        preset: str | os.PathLike,
        load_weights: bool = True,
        dtype=None,
        sequence_length: int | None = None,
        lowercase: bool | None = None,
        **settings,
    ) -> "BertTask":
        """Builds the model of a preset, with the heads of its checkpoint, and a preprocessor.

        Args:
            preset: as in `BertBackbone.from_preset`: a name, a handle, or a path of any format.
            load_weights: bool; if False, the weights are random.
            dtype: as in `BertBackbone.from_preset`.
            sequence_length: int, largest number of tokens of an example; None: as saved in the preset, else the
                backbone's `max_sequence_length`. Other settings of the preprocessor are as saved.
            lowercase: bool, whether to lower-case texts, as in `BertTokenizer.from_preset`; None: the preset decides.
            **settings: arguments of the constructor, such as `labels` or `preprocessor=None`. All others, including
                `dropout`, override settings of the backbone.

        Returns:
            The model. Its `preprocessor` is None if the preset has no tokenizer. A head that the checkpoint lacks, or
            has in another shape, starts from random weights, with a warning.

        Raises:
            InputError: as `BertBackbone.from_preset`; or the number of the head's outputs is unknown.
        """
        own, overrides = cls._split(settings)
        given = own.keys() - {"preprocessor", "compile", "name"}  # An error may be about these, not about the saved.
        # The preprocessor comes first, so that a bad tokenizer is refused before weights are downloaded.
        if "preprocessor" not in own and tokenizers.has_tokenizer(preset):
            of_text = {"lowercase": lowercase, "max_sequence_length": overrides.get("max_sequence_length")}
            own["preprocessor"] = cls.preprocessor_of(preset, sequence_length, **of_text)
        if not load_weights:
            stored = cls._as_saved(weights.read_settings(preset), overrides)
            backbone = BertBackbone.from_preset(preset, load_weights=False, dtype=dtype, **overrides)
            return cls._construct(backbone, cls._merge(stored, own, preset), preset, None if given else stored)
        with weights.open_checkpoint(preset) as checkpoint:
            # The tensors, rather than `task.json`, determine how many outputs a head has.
            saved = cls._as_saved(checkpoint.settings, overrides)
            overrides = weights.as_saved(checkpoint.settings, dtype=dtype, **overrides)
            own = cls._merge(saved | cls._settings_of(checkpoint), own, preset)
            model, misfits = cls._build(checkpoint, own, overrides, None if given else saved)
            has_layer = any(layer.name == cls.heads[0] for layer in model.layers)
            if has_layer and not cls.heads_are_pretrained and cls.heads[0] not in checkpoint.heads:
                logging.warning("%s: has no %s head; it starts from random weights.", preset, cls.heads[0])
        settings = cls.answer_settings_of(preset, checkpoint)
        others = (_OF_ONE_LENGTH if sequence_length is not None else set()) | (_OF_ONE_HEAD if misfits else set())
        model.answer_settings = {name: settings[name] for name in settings.keys() - others}
        return model

    @classmethod
    def answer_settings_of(cls, preset: str | os.PathLike, checkpoint: weights.Checkpoint) -> dict:
        """Returns the `answer_settings` that a preset, or the `model/` directory of a run, keeps for this class."""
        kept = _task_of(cls, checkpoint.settings).get("answer_settings")
        settings = dict(kept) if isinstance(kept, dict) else {}
        if cls.trained_settings:
            path = catalog.name_of(preset)
            with catalog.located(path, "tokenizer") if is_file(path) else contextlib.nullcontext(path) as place:
                settings |= read_optional_object(os.path.join(place, "task.json"))
        return {name: settings[name] for name in cls.trained_settings if name in settings}

    @classmethod
    def preprocessor_of(cls, preset: str | os.PathLike, sequence_length: int | None = None, **own) -> BertPreprocessor:
        """Returns the preprocessor that `from_preset` gives a preset's model; `own` are arguments of its class."""
        settings = weights.read_settings(preset)
        if catalog.published(preset) is not None:
            # A name's settings need no files, but do not include the length, which is in the files if there are any.
            with contextlib.suppress(InputError), catalog.located(preset) as place:
                settings = weights.read_settings(place)
        task, positions = _task_of(cls, settings), own.get("max_sequence_length")
        saved, of_text = task.get("sequence_length"), task.get("preprocessor", {})
        length = sequence_length or (min(saved, positions) if saved and positions else saved)
        names = of_text.keys() & set(arguments_of(cls.preprocessor_cls, "tokenizer", "sequence_length"))
        return cls.preprocessor_cls.from_preset(preset, length, **{**{name: of_text[name] for name in names}, **own})

    @classmethod
    def from_checkpoint(cls, checkpoint: weights.Checkpoint, dtype=None, **settings) -> "BertTask":
        """Builds the model of an open checkpoint, without a preprocessor.

        Args:
            checkpoint: an open checkpoint. The `layout`, `dtype` and `trainable` that it was saved with are ignored.
            dtype, **settings: as in `from_preset`.

        Returns:
            The model. A head that the checkpoint lacks, or has in another shape, starts from random weights; there is a
            warning if the shape differs, or if the head is one of pre-training.

        Raises:
            InputError: as in `from_preset`.
        """
        own, overrides = cls._split(settings)
        own = cls._merge(cls._settings_of(checkpoint), own, checkpoint.source)
        return cls._build(checkpoint, own, {**overrides, "dtype": dtype})[0]

    @classmethod
    def has_head(cls, checkpoint: weights.Checkpoint) -> bool:
        """Returns whether a checkpoint has the weights that the model needs besides the encoder's."""
        return cls.heads[0] in checkpoint.heads

    @classmethod
    def _build(
        cls, checkpoint: weights.Checkpoint, own: dict, overrides: dict, saved: dict | None = None
    ) -> tuple["BertTask", list[str]]:
        """Returns the model, and the names of its heads that the checkpoint has in another shape; warns of these."""
        arguments = weights.merge_settings(checkpoint.config, overrides, checkpoint.source)
        with weights_follow():
            backbone = BertBackbone(**arguments)
        model = cls._construct(backbone, own, checkpoint.source, saved)
        misfits = []
        for layer in (layer for layer in model.layers if layer.name in model.heads and not model.heads_are_pretrained):
            held = [variable for variable in layer.weights if variable.path in checkpoint.tensors]
            stored = [checkpoint.tensors[variable.path].shape for variable in held]
            wanted = [tuple(variable.shape) for variable in held]
            if stored != wanted:
                misfits.append(layer.name)
                message = "%s: the shapes of its %s head are %s, those of this task %s. A new head takes its place."
                logging.warning(message, checkpoint.source, layer.name, stored, wanted)
        tensors = {path: tensor for path, tensor in checkpoint.tensors.items() if path.partition("/")[0] not in misfits}
        expected = model.heads if model.heads_are_pretrained else ()
        weights.load_weights_of(model, dataclasses.replace(checkpoint, tensors=tensors), model.uses_pooler, expected)
        return model, misfits

    @classmethod
    def _construct(cls, backbone: BertBackbone, arguments: dict, source: str, saved: dict | None) -> "BertTask":
        """Builds the model; an error about arguments `saved` in the checkpoint names that checkpoint, `source`."""
        try:
            return cls(backbone, **arguments)
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError) or not saved:
                raise
            raise InputError(f"{source}: a task that was saved with wrong settings ({first_line(error)}).") from error

    @classmethod
    def _split(cls, settings: dict) -> tuple[dict, dict]:
        """Separates the constructor's arguments from the backbone's; `dropout` counts as the backbone's."""
        names = {*cls._settings(), "preprocessor", "compile", "name"} - {"dropout"}
        own = {name: value for name, value in settings.items() if name in names}
        return own, {name: value for name, value in settings.items() if name not in names}

    @classmethod
    def _as_saved(cls, saved: dict, overrides: dict) -> dict:
        """Returns the constructor's arguments that a preset of this class was saved with, except overridden ones."""
        task = _task_of(cls, saved)
        return {name: task[name] for name in cls._settings() if name in task and name not in overrides}

    @classmethod
    def _settings_of(cls, checkpoint: weights.Checkpoint) -> dict:
        """Returns the constructor's arguments that follow from a checkpoint's heads."""
        own = checkpoint.masked_lm if "masked_lm" in cls.heads else {}
        return {f"masked_lm_{name}": value for name, value in own.items()}

    @classmethod
    def _merge(cls, stored: dict, given: dict, source: str | os.PathLike) -> dict:
        """Combines a checkpoint's arguments with the caller's, which take precedence."""
        return {**stored, **given}


class LabeledTask(BertTask):
    """A task with one head: dropout, then a linear layer with an output for each class, or a single one for a score.

    The arguments of the constructor are described in the subclasses.

    Attributes:
        dropout_name: name of the dropout layer.
    """

    dropout_name = "classifier_dropout"

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        preprocessor: BertPreprocessor | None = None,
        activation: str | None = None,
        dropout: float | None = None,
        labels: list[str] | None = None,
        pooling: str | None = None,
        multi_label: bool = False,
        **kwargs,
    ):
        if pooling not in (None, *(POOLINGS if self.uses_pooler else ())):
            allowed = "one of " + ", ".join(POOLINGS) if self.uses_pooler else "None for a head on every token"
            raise ValueError(f"`pooling` must be {allowed}. Received: pooling={pooling!r}")
        if multi_label and not self.uses_pooler:
            raise ValueError(f"`multi_label` must be False for a head on every token. Received: {multi_label=}")
        if isinstance(labels, str):
            raise ValueError(f"`labels` must be a list of str. Received: {labels=}")
        labels = None if labels is None else list(labels)  # pandas' `unique()` returns an array.
        num_classes = len(labels) if num_classes is None and labels else num_classes
        if num_classes is None or num_classes < 1:
            raise ValueError(f"`num_classes` must be at least 1. Received: num_classes={num_classes}")
        # Numbers in `y` are class indices, so labels that are numbers would be ambiguous.
        if labels and not (isinstance(labels[0], str) and len(set(labels)) == len(labels) == num_classes):
            raise ValueError(f"`labels` must be distinct str, one per class. Received: {num_classes=}, {labels=}")
        keep_arguments(self, locals())

        # === Layers ===
        rate = backbone.dropout if dropout is None else dropout
        output_dropout = keras.layers.Dropout(rate, dtype=backbone.dtype_policy, name=self.dropout_name)
        head = output_head(num_classes, backbone.initializer_range, self.heads[0], activation)

        # === Functional model ===
        outputs = backbone(backbone.input)
        self.uses_pooler = self.uses_pooler and pooling is None
        states = outputs["pooled_output" if self.uses_pooler else "sequence_output"]
        if pooling is not None:
            pool = PoolTokens(pooling, name="pool_tokens", dtype="float32")
            states = pool(states, backbone.input["padding_mask"])
        super().__init__(inputs=backbone.input, outputs=head(output_dropout(states)), **kwargs)

    def fit(self, *args, class_weight=None, **kwargs):
        """Trains the model as `keras.Model.fit` does.

        Args:
            *args, **kwargs: as in `keras.Model.fit`.
            class_weight: dict from class indices, or names in `labels`, to the weights of their examples in the loss;
                1.0 for a class that is left out.

        Raises:
            ValueError: `class_weight` has an unknown class, or the task does not give each example one class.
        """
        if class_weight is not None:
            count = self.output_shape[-1]
            if count == 1 or len(self.output_shape) > 2 or self.multi_label:
                raise ValueError(f"`class_weight` needs one class for each example. Received: {class_weight=}")
            numbers = {name: number for names in (range(count), self.labels or ()) for number, name in enumerate(names)}
            unknown = [key for key in class_weight if key not in numbers]
            if unknown:
                raise ValueError(f"`class_weight` must name classes of {list(numbers)}. Received: {unknown[0]!r}")
            given = {numbers[key]: float(weight) for key, weight in class_weight.items()}
            class_weight = {number: given.get(number, 1.0) for number in range(count)}  # Keras looks up every class.
        return super().fit(*args, class_weight=class_weight, **kwargs)

    def preprocess_samples(self, x, y=None, sample_weight=None):
        y = read_rows("y", y)  # `train_on_batch` takes lists, too.
        if self.multi_label and y is not None and y.shape[1:] == (0,):  # No row has a label, so the lists had no type.
            y = tf.zeros([tf.shape(y)[0], self.output_shape[-1]])
        if y is not None and not self.labels and tf.as_dtype(getattr(y, "dtype", tf.int32)) == tf.string:
            raise ValueError("`labels` must name the classes, in from_preset too, where `y` has texts. Received: None")
        return super().preprocess_samples(x, y, sample_weight)

    def default_loss(self):
        head = self.get_layer(self.heads[0])
        if self.multi_label:
            is_logits = gives_logits(self, keras.activations.sigmoid)
            return keras.losses.BinaryCrossentropy(is_logits, reduction="mean_with_sample_weight")
        if head.units == 1:
            return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        return cross_entropy(from_logits=head.activation != keras.activations.softmax)

    def default_metrics(self):
        if self.multi_label:
            is_logits = gives_logits(self, keras.activations.sigmoid)
            of_each = {"multi_label": True, "num_labels": self.output_shape[-1]}
            pr_auc = keras.metrics.AUC(curve="PR", from_logits=is_logits, **of_each, name="pr_auc")
            return [MicroF1(from_logits=is_logits, name="micro_f1"), pr_auc]
        if self.output_shape[-1] == 1:
            return [keras.metrics.RootMeanSquaredError(name="root_mean_squared_error")]
        return super().default_metrics()

    @classmethod
    def _settings_of(cls, checkpoint):
        if cls.heads[0] not in checkpoint.heads:
            return {"num_classes": None, "labels": None}
        num_classes = checkpoint.tensors[f"{cls.heads[0]}/kernel"].shape[-1]
        own = {"pooling": checkpoint.pooling} if cls.uses_pooler else {}
        has_labels = num_classes > 1 or checkpoint.settings.get("task", {}).get("multi_label")
        return {"num_classes": num_classes, "labels": checkpoint.labels if has_labels else None, **own}

    @classmethod
    def _merge(cls, stored, given, source):
        if given.get("num_classes") or given.get("labels") is not None:
            # An activation such as softmax belongs to the saved outputs: with one class, its result would always be 1.
            is_same = (given.get("num_classes") or len(given["labels"])) == stored.get("num_classes")
            unfit = ("num_classes", "labels") if is_same else ("num_classes", "labels", "activation")
            stored = {name: value for name, value in stored.items() if name not in unfit}
        elif not stored.get("num_classes"):
            raise InputError(
                f"{source}: expected a fine-tuned {cls.heads[0]} head, found none. Pass `num_classes` or `labels`."
            )
        return {**stored, **given}


@keras.saving.register_keras_serializable(package="keras_bert")
class MicroF1(keras.metrics.F1Score):
    """F1 over all labels of all rows together; a label counts as predicted if its probability is above 0.5.

    Args:
        from_logits: whether predictions are logits, not probabilities.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, from_logits: bool = True, **kwargs):
        super().__init__(**{"average": "micro", "threshold": 0.5, **kwargs})
        self.from_logits = from_logits

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, keras.ops.sigmoid(y_pred) if self.from_logits else y_pred, sample_weight)

    def get_config(self):
        return {**super().get_config(), "from_logits": self.from_logits}


def cross_entropy(from_logits: bool = True) -> keras.losses.Loss:
    """Returns the cross entropy, averaged by the samples' weights, as transformers averages over labelled tokens.

    Keras's default divides by the number of all tokens, so that padding would reduce the loss.
    """
    return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits, reduction="mean_with_sample_weight")


def _check_setting(name: str, value):
    """Returns a setting of `answer`, a list of numbers as a tuple, which can be hashed.

    Raises:
        ValueError: its type is wrong.
    """
    if name not in _KINDS:
        return value
    expected, kind = _KINDS[name]
    received, value = value, value.tolist() if isinstance(value, np.ndarray) else value
    is_list = isinstance(value, list | tuple)
    values = tuple(value) if is_list else (value,)
    if is_list != (name == "thresholds") or not all(isinstance(number, kind) for number in values):
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={received!r}")
    return values if is_list else value


def _find_labels(names: tf.Tensor, labels: list[str]) -> tf.Tensor:
    """Returns the index of each label: string (...) to int32 (...)."""
    is_label = tf.equal(tf.expand_dims(names, -1), tf.constant(list(labels)))
    known = tf.reduce_any(is_label, axis=-1)
    message = f"Labels must be among {', '.join(labels)}. Received:"
    check = tf.debugging.Assert(tf.reduce_all(known), [message, tf.boolean_mask(names, ~known)])
    return tf.argmax(after(check, is_label), axis=-1, output_type=tf.int32)


def _task_of(cls: type[BertTask], saved: dict) -> dict:
    """Returns the settings of the task model that a preset was saved from; empty if it had another of our classes."""
    task = saved.get("task", {})
    return task if task.get("class_name", cls.__name__) in [parent.__name__ for parent in cls.__mro__] else {}
