"""`BertTextClassifier`: predicts a class, or a score, for each text or pair of texts (paper, section 4.1).

Shapes: B batch, S sequence, C classes.
"""

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.answers.explanations import Explanations
from keras_bert.answers.sequence import ClassAnswers, LabelSetAnswers, ScoreAnswers
from keras_bert.models.rows import read_rows
from keras_bert.models.task import LabeledTask


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTextClassifier(LabeledTask, keras_nlp.models.TextClassifier):
    """Backbone, dropout, and a linear layer on the pooled output; with one output, a regressor.

    `fit` takes texts, or pairs of texts as a tuple of two batches, with labels: int of shape (B,), str if `labels` are
    given, or float scores for a regressor. The loss is cross entropy, for a regressor the mean squared error. With
    `multi_label` a row may have any number of labels: 0.0 or 1.0 for each, float of shape (B, C), or a list of str, if
    `labels` are given; the loss is the mean of the classes' binary cross entropies.

    Inputs: the backbone's. Output: float32 logits of shape (B, C), scores of shape (B, 1) for a regressor.

    Args:
        backbone: BertBackbone.
        num_classes: int; 1 makes a regressor. None: the number of `labels`.
        preprocessor: BertPreprocessor, or None.
        activation: str, activation of the output; `"softmax"` gives probabilities.
        dropout: float, on the pooled output; None: the backbone's (google-research/bert run_classifier.py:604: 0.1).
        labels: list of str, the classes in the order of the outputs, or None.
        pooling: str, `"mean"`, `"cls"` or `"max"`: the head reads the pooled tokens, as in a `BertTextEmbedder` with
            that `pooling`; None: it reads the backbone's pooler.
        multi_label: bool, whether a row may have any number of the labels; `activation="sigmoid"` then gives
            probabilities.
        **kwargs: `name`; `compile=False` skips the default `compile()`.

    >>> from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
    >>> backbone = BertBackbone(7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=8)
    >>> model = BertTextClassifier(backbone, labels=["no", "yes"], preprocessor=preprocessor)
    >>> model.predict(["good", "bad bad"], verbose=0).shape
    (2, 2)

    `answer` returns the `label`, its probability as `score`, and the `probabilities` of all `labels`; or the `score` of
    a regressor. With `multi_label` it returns the `labels` that reach their thresholds, by default 0.5, the most
    probable first, with their probabilities as `scores`, `num_labels`, and the `probabilities` of all. Classes without
    labels are named by their indices. Its settings are `temperature`, which divides the logits of single labels;
    `thresholds`, a list of the lowest probability at which each label is given, below which a single label becomes
    `"none"`; and `long_text` and `max_tokens`, which say how much of a long text is read, as in docs/models.md. By
    default `long_text`, `temperature` and `thresholds` are those of the model's training by `bert-classify`.

    >>> sorted(model.answer("good"))
    ['label', 'probabilities', 'score']
    """

    heads = ("classification",)
    trained_settings = ("num_texts", "long_text", "temperature", "thresholds")

    def answer(self, inputs, **settings):
        return super().answer(inputs, num_texts=self._num_texts(inputs), **settings)

    def _num_texts(self, inputs) -> int:
        num_texts = len(inputs) if isinstance(inputs, tuple) else 1
        if num_texts != (trained := self.answer_settings.get("num_texts", num_texts)):
            raise ValueError(
                f"The model was trained on {('single texts', 'pairs, a tuple of two batches')[trained - 1]}. "
                f"Received: {num_texts} text(s) for each answer"
            )
        return num_texts

    def preprocess_samples(self, x, y=None, sample_weight=None):
        y = read_rows("y", y)  # Of `train_on_batch`.
        is_number = tf.as_dtype(getattr(y, "dtype", tf.string)) not in (tf.string, tf.bool) and len(y.shape) == 1
        count = self.output_shape[-1]
        if is_number and count > 1:  # The loss would round scores down, and be NaN for other numbers on a GPU.
            numbers = tf.cast(y, tf.float32)
            is_class = (numbers == tf.round(numbers)) & (numbers >= 0) & (numbers < count)
            message = f"Labels must be whole numbers from 0 to {count - 1}. For scores make a regressor: num_classes=1."
            wrong = [f"{message} Received:", tf.boolean_mask(numbers, ~is_class)]
            tf.debugging.Assert(tf.reduce_all(is_class), wrong)
        samples = super().preprocess_samples(x, y, sample_weight)
        if self.preprocessor is not None and y is not None:  # Kept for answers and exports.
            num_texts = len(x) if isinstance(x, tuple) else 1
            self.answer_settings = {**self.answer_settings, "num_texts": num_texts}
        return samples

    def explain(self, inputs, label: str | None = None):
        """Explains an answer by the share of each word, as the signature `explain` of an export does.

        A word's share is the log-odds of the label, log(p / (1 - p)), or a regressor's score, minus that of the text
        without the word; a negative share speaks against the answer. The model reads one more sequence for each word.

        Args:
            inputs: as in `answer`.
            label: str, the label to explain; None: the most probable one of each text.

        Returns:
            A list with a dict for each text, or one dict for a single text: `label` and its probability as `score`, or
            a regressor's `score`; `words`, their `shares`, and the characters where they start and end (exclusive),
            `starts` and `ends`; `num_words`. For pairs also `texts`: 0 for a word of the first text, 1 for one of the
            second. Words that are cut off are not listed: whatever `long_text`, a text's first sequence is explained.

        Raises:
            ValueError: as `answer`, or there is no such label.
        """
        return self._answers(num_texts=self._num_texts(inputs), explained=(label,)).rows(inputs)

    def _make_answers(self, preprocessor, num_texts, explained=None, **settings):
        # `task.json` has this default for every model, but only models with labels accept it.
        settings = dict(settings.items() - {("temperature", 1.0)})
        is_score = self.output_shape[-1] == 1 and not self.multi_label
        unfit = {"temperature", "thresholds"} if is_score else {"temperature"} if self.multi_label else set()
        if unknown := sorted(settings.keys() & unfit):
            answer = "a score" if is_score else "any number of labels"
            raise ValueError(f"`{unknown[0]}` must be left out where the answer is {answer}. Received: {settings}")
        if is_score:
            answers, names = ScoreAnswers(self, preprocessor, num_texts=num_texts, **settings), []
        else:
            names = self.labels or [str(number) for number in range(self.output_shape[-1])]
            make = LabelSetAnswers if self.multi_label else ClassAnswers
            answers = make(self, preprocessor, names, num_texts=num_texts, **settings)
        if explained is None:
            return answers
        (label,) = explained
        if label is not None and label not in names:
            raise ValueError(f"`label` must be one of {', '.join(names) or 'no labels'}. Received: label={label!r}")
        return Explanations(answers, None if label is None else names.index(label))
