"""Answers of models that read each text, pair of texts, or text with a choice as one sequence.

Shapes: B batch, S sequence, C classes, K choices.
"""

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from keras_bert.answers import text_bounds
from keras_bert.answers.base import Answers, TokenOutput, gives_logits
from keras_bert.answers.pieces import in_pieces, outputs_in_pieces
from keras_bert.answers.rules import LONG_TEXTS, NO_LABEL, POOLED
from keras_bert.answers.windows import LongTexts, pool_windows
from keras_bert.tokenization.preprocessor import BertPreprocessor, after


class SequenceAnswers(Answers):
    """One answer for each row of texts; see `Answers`.

    Args:
        model, preprocessor: see `Answers`.
        num_texts: 1, or 2 for a model of text pairs.
        long_text: str, one of `LONG_TEXTS`: how a text that is too long is read. Pairs are always truncated.
        max_tokens: int, number of tokens of a text that are read if it is not truncated; None: `MOST_TOKENS`.

    Raises:
        ValueError: the settings do not fit together.
    """

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        num_texts: int = 1,
        long_text: str = LONG_TEXTS[0],
        max_tokens: int | None = None,
    ):
        super().__init__(model, preprocessor)
        if num_texts not in (1, 2):
            raise ValueError(f"`num_texts` must be 1 or 2. Received: num_texts={num_texts}")
        self.num_texts = num_texts
        self.text_inputs = dict.fromkeys(("text", "text_pair")[:num_texts], ())
        self.long_text, self.long_texts = long_text, None
        if long_text != LONG_TEXTS[0]:
            self.long_texts = LongTexts(preprocessor.tokenizer, preprocessor.sequence_length, long_text, max_tokens)
        if num_texts == 2 and long_text != LONG_TEXTS[0]:
            raise ValueError(f"`long_text` is for single texts, pairs are truncated. Received: {long_text=}")
        if max_tokens is not None and self.long_texts is None:
            raise ValueError(f"`max_tokens` is for texts that are not truncated. Received: {max_tokens=}, {long_text=}")
        self._to_longest = BertPreprocessor(preprocessor.tokenizer, preprocessor.sequence_length, pad_to_longest=True)

    def answer_texts(self, model, texts):
        if self.long_texts is None:
            return self.complete(in_pieces(model, self.encode_in_graph(texts), self.answer))
        encoded, rows = self.read_windows(texts["text"])
        outputs = outputs_in_pieces(model, encoded)
        return self.complete(self.answer(self.pool(outputs, rows, tf.shape(texts["text"])), encoded))

    def complete(self, answer: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds to the answers of all rows what can only be computed for all of them."""
        return answer

    def read_windows(self, text: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Encodes texts, string [B], that are not truncated; returns what `long_texts` does."""
        return self.long_texts(text)

    def pool(self, outputs: tf.Tensor, rows: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        """Pools the outputs for each text's windows into one, [B, C]; see `pool_windows`."""
        return pool_windows(self.model, outputs, rows, shape, self.long_text) if self.long_text in POOLED else outputs

    def encode_in_graph(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes texts, `text_inputs` by name, to the model's inputs, int32 [B, S], padded to the longest."""
        tokenizer, length = self.preprocessor.tokenizer, self.preprocessor.sequence_length
        flat = {name: tf.reshape(text, [-1]) for name, text in texts.items()}
        return self.pack({name: text_bounds.bound_texts(text, tokenizer, length) for name, text in flat.items()})

    def pack(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes flat columns of texts, truncated to the preprocessor's length, to the model's inputs."""
        return self._to_longest(tuple(texts.values()))


class BestOfAnswers(SequenceAnswers):
    """The most probable of C classes or choices; the model gives logits [B, C].

    Its `token_outputs` are the `probabilities`.
    """

    def answer(self, outputs, encoded):
        answer = super().answer(outputs, encoded)
        choice = tf.argmax(answer["probabilities"], axis=-1, output_type=tf.int32)
        return {"choice": choice, "score": tf.reduce_max(answer["probabilities"], axis=-1), **answer}


class ClassAnswers(BestOfAnswers):
    """The label of each text, or `NO_LABEL` where its probability is below its threshold.

    Args:
        model: encoder inputs to logits or probabilities [B, C].
        preprocessor: gives the tokenizer and the longest sequence.
        labels: names of the C classes, in the order of the outputs.
        temperature: divides the logits before the softmax.
        thresholds: the lowest probability at which each label is given; None: no thresholds.
        **settings: of `SequenceAnswers`.

    Raises:
        ValueError: the arguments do not fit together.
    """

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        labels: list[str],
        temperature: float = 1.0,
        thresholds: Sequence[float] | None = None,
        **settings,
    ):
        super().__init__(model, preprocessor, **settings)
        if len(set(labels)) != len(labels) or len(labels) < 2:
            raise ValueError(f"`labels` must be at least two different names. Received: labels={labels}")
        self.check_labels(labels, thresholds)
        if not temperature > 0.0 or (temperature != 1.0 and not gives_logits(model)):
            raise ValueError(f"`temperature` must be above 0, and 1.0 without logits. Received: {temperature=}")
        if thresholds is not None and NO_LABEL in labels:
            raise ValueError(f"With `thresholds` no label may be {NO_LABEL!r}: that is the answer in doubt.")
        self.labels, self.temperature, self.thresholds = labels, temperature, thresholds
        probabilities = TokenOutput(("classes",), softmax=gives_logits(model), temperature=temperature)
        self.token_outputs = {"probabilities": probabilities}

    def answer(self, outputs, encoded):
        answer = super().answer(outputs, encoded)
        choice = answer.pop("choice")
        label = tf.gather(tf.constant(self.labels), choice)
        if self.thresholds is not None:
            is_sure = answer["score"] >= tf.gather(tf.constant(self.thresholds, tf.float32), choice)
            label = tf.where(is_sure, label, NO_LABEL)
        return {"label": label, **answer}


class LabelSetAnswers(SequenceAnswers):
    """The labels of each text, any number of them: those that reach their thresholds, the most probable first.

    `token_outputs`, which are also the answer to token ids, are the `probabilities` of all labels.

    Args:
        model: encoder inputs to logits or probabilities [B, C].
        preprocessor: gives the tokenizer and the longest sequence.
        labels: names of the C classes, in the order of the outputs.
        thresholds: the lowest probability at which each label is given; None: 0.5 for all.
        **settings: of `SequenceAnswers`.

    Raises:
        ValueError: the arguments do not fit together.
    """

    padding = {"count": "num_labels", "values": {"labels": "", "scores": 0.0}}

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        labels: list[str],
        thresholds: Sequence[float] | None = None,
        **settings,
    ):
        super().__init__(model, preprocessor, **settings)
        self.check_labels(labels, thresholds)
        self.labels, self.thresholds = labels, thresholds or [0.5] * len(labels)
        is_logits = gives_logits(model, keras.activations.sigmoid)
        self.token_outputs = {"probabilities": TokenOutput(("classes",), sigmoid=is_logits)}

    def complete(self, answer):
        """Adds the labels that reach their thresholds to the `probabilities`, padded to the row with most labels."""
        probabilities = answer["probabilities"]  # [B, C]
        is_chosen = probabilities >= tf.constant(self.thresholds, tf.float32)
        scores, order = tf.math.top_k(tf.where(is_chosen, probabilities, -1.0), len(self.labels))
        counts = tf.math.count_nonzero(is_chosen, axis=-1, dtype=tf.int32)
        most = tf.maximum(tf.reduce_max(counts), 1)
        is_listed = tf.range(most) < counts[:, tf.newaxis]  # [B, most]
        labels = tf.gather(tf.constant(self.labels), order[:, :most])
        return {
            "labels": tf.where(is_listed, labels, ""),
            "scores": tf.where(is_listed, scores[:, :most], 0.0),
            "num_labels": counts,
            **answer,
        }


class ScoreAnswers(SequenceAnswers):
    """A number for each text.

    Args:
        model: encoder inputs to scores [B, 1].
        preprocessor: tokenizer and longest sequence.
        **settings: of `SequenceAnswers`.

    Raises:
        ValueError: the model has more than one output.
    """

    token_outputs = {"score": TokenOutput((), column=0)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, **settings):
        super().__init__(model, preprocessor, **settings)
        if model.output_shape[-1] != 1:
            raise ValueError(f"`model` must have one output. Received: {model.output_shape[-1]} outputs")


class ChoiceAnswers(BestOfAnswers):
    """Which of K choices goes with each text.

    Each choice becomes the sequence `[CLS] text [SEP] choice [SEP]`, packed as `tasks/swag/data.py` packs it.

    Args:
        model: encoder inputs of shape (B, K, S) to logits [B, K]; it determines K.
        preprocessor: tokenizer and longest sequence.
    """

    token_outputs = {"probabilities": TokenOutput(("choices",), softmax=True)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        super().__init__(model, preprocessor)
        self.num_choices = model.output_shape[-1]
        self.text_inputs = {"text": (), "choices": (self.num_choices,)}

    def answer_texts(self, model, texts):
        text, choices = texts.values()
        choices = after(self.check(tf.shape(choices), tf.shape(text)), choices)
        answer = super().answer_texts(model, {"text": text, "choices": choices})
        return {**answer, "choice_text": tf.gather(choices, answer["choice"], batch_dims=1)}

    def answer_token_ids(self, model, encoded):
        shape = tf.shape(encoded["token_ids"])
        check = self.check(shape, shape[:1])
        return super().answer_token_ids(model, {name: after(check, ids) for name, ids in encoded.items()})

    def check(self, shape: tf.Tensor, batch: tf.Tensor) -> tf.Operation:
        """Returns an op that fails unless each text has K choices; reshaping would mix those of several texts."""
        message = f"Expected {self.num_choices} choices for each text. Received shapes:"
        right = tf.reduce_all(shape[:2] == tf.concat([batch, [self.num_choices]], axis=0))
        return tf.debugging.Assert(right, [message, shape, batch])

    def pack(self, texts):
        """Encodes texts [B] with their choices [B * K], text after text, to int32 [B, K, S]."""
        text, choices = texts["text"], texts["choices"]
        encoded = super().pack({"text": tf.repeat(text, self.num_choices), "choices": choices})
        shape = [tf.size(text), self.num_choices]
        return {name: tf.reshape(ids, [*shape, tf.shape(ids)[1]]) for name, ids in encoded.items()}


class EmbeddingAnswers(SequenceAnswers):
    """The embedding of each text, with a prompt before it; the model returns embeddings [B, D].

    Args:
        model: BertTextEmbedder.
        preprocessor: tokenizer and longest sequence.
        prompt: name of one of the model's prompts; "": no prompt; None: the model's default.
        **settings: `long_text` and `max_tokens` of `SequenceAnswers`.

    Attributes:
        prompt: str, the text of the prompt.
        num_left_out: int, number of tokens, [CLS] among them, that the pooling leaves out.

    Raises:
        ValueError: the model has no such prompt.
    """

    token_outputs = {"embedding": TokenOutput(("components",))}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, prompt: str | None = None, **settings):
        super().__init__(model, preprocessor, **settings)
        prompts = model.prompts or {}
        name = model.default_prompt if prompt is None else prompt
        if name and name not in prompts:
            raise ValueError(f"`prompt` must be one of {', '.join(prompts) or 'none'}. Received: prompt={name!r}")
        self.prompt = prompts[name] if name else ""
        self.num_left_out = 0
        if self.prompt and not model.include_prompt:
            (length,) = preprocessor.tokenizer.tokenize([self.prompt]).row_lengths()
            self.num_left_out = min(int(length) + 1, preprocessor.sequence_length - 1)

    def pack(self, texts):
        return self._mark(super().pack({name: self._with_prompt(text) for name, text in texts.items()}))

    def read_windows(self, text):
        encoded, rows = super().read_windows(self._with_prompt(text))
        return self._mark(encoded, tf.concat([tf.ones_like(rows[:1], tf.bool), rows[1:] != rows[:-1]], 0)), rows

    def _with_prompt(self, texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.join([self.prompt, texts]) if self.prompt else texts

    def _mark(self, encoded: dict[str, tf.Tensor], has_prompt: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Marks the tokens that `PoolTokens` leaves out in `padding_mask`; `has_prompt` is bool [W], None for all."""
        if not self.num_left_out:
            return encoded
        mask = encoded["padding_mask"]
        is_prompt = (tf.range(tf.shape(mask)[1]) < self.num_left_out)[tf.newaxis]
        is_prompt = is_prompt if has_prompt is None else is_prompt & has_prompt[:, tf.newaxis]
        return {**encoded, "padding_mask": mask + mask * tf.cast(is_prompt, tf.int32)}
