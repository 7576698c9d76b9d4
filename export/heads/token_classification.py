"""Entities: a text of any length in, its entities out, with their places; what `bert-ner` trains.

Shapes: B texts, W windows, S sequence, T tokens, N words, C labels, E entities of the text that has most.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from export import serving, signatures
from export.graph.entities import EntityFinder
from export.graph.raw_words import WordFinder
from export.graph.source_text import BYTES_PER_TOKEN, cut_texts, read_texts
from export.graph.windows import best_cells, cut_windows, lay_out
from export.heads import entity_probes
from export.heads.base import Head
from export.verify import Probe
from keras_bert.exact_normalizer import bisect
from keras_bert.preprocessor import BertPreprocessor
from tasks.ner.model import load_tagger
from tasks.ner.windows import SPECIAL_TOKENS, check_stride

_DEFAULT_WINDOWS = 8


class TokenClassification(Head):
    """A tagger of words, read as entities.

    Words of a text are what stands between white space, less the punctuation characters at both ends, which are words
    of their own, as each CJK character is (`export.graph.raw_words`). A text that does not fit into one sequence is
    read in windows, each word tagged by its first sub-token in its window of most context, as `tasks.ner.windows`. A
    tagger that was trained with its documents' context reads a served text without.

    Args:
        model: encoder inputs to logits [B, S, C].
        preprocessor: tokenizer and longest sequence, special tokens included.
        labels: C tags, "O", B- or I- and a type, in the order of the logits.
        doc_stride: int, tokens from the start of one window to the next; default: half of what a window holds.
        max_tokens: int, how many tokens of a text are read (and at most `BYTES_PER_TOKEN` times as many bytes);
            default: 8 times the longest sequence. The entities are those of the text up to there.

    Raises:
        ValueError: the arguments do not fit together.
    """

    task = "token_classification"
    settings = ("doc_stride", "max_tokens")

    def __init__(
        self,
        model: keras.Model,
        preprocessor: BertPreprocessor,
        labels: Sequence[str],
        doc_stride: int | None = None,
        max_tokens: int | None = None,
    ):
        super().__init__(model, preprocessor)
        self.labels = list(labels)
        self.doc_stride = check_stride(preprocessor.sequence_length, doc_stride)
        self.max_tokens = _DEFAULT_WINDOWS * preprocessor.sequence_length if max_tokens is None else max_tokens
        for name in ("doc_stride", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={getattr(self, name)}")
        if model.output_shape[-1] != len(self.labels):
            raise ValueError(
                f"`labels` must name each of the model's outputs. Received: {len(self.labels)} labels, "
                f"{model.output_shape[-1]} outputs"
            )
        self._find_entities = EntityFinder(self.labels)

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None, **settings) -> "TokenClassification":
        tagger = load_tagger(directory)
        # A stride that fits the sequences of the training may be too long for shorter ones.
        own = {"doc_stride": tagger.doc_stride} if sequence_length is None else {}
        preprocessor = BertPreprocessor(tagger.tokenizer, sequence_length or tagger.sequence_length)
        return cls(tagger.model, preprocessor, tagger.labels, **{**own, **settings})

    # === The graph ===

    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        backbone = serving.find_backbone(model)

        def logits_of(encoded):
            return model(encoded, training=False)

        def from_token_ids(**ids):
            encoded = serving.encoder_inputs(backbone, **ids)
            probabilities = _softmax(logits_of(encoded))  # [B, S, C]
            is_token = encoded["padding_mask"] == 1
            tags = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=-1))
            scores = tf.reduce_max(probabilities, axis=-1)
            return {"tags": tf.where(is_token, tags, ""), "scores": tf.where(is_token, scores, 0.0)}

        return {
            signatures.SERVING_DEFAULT: serving.trace(self.tagging(logits_of), signatures.text_specs("text")),
            signatures.TOKEN_IDS: serving.trace(from_token_ids, signatures.token_specs()),
        }

    def tagging(self, logits_of: Callable) -> Callable[..., dict[str, tf.Tensor]]:
        """Returns what finds entities: `text`, string [B], to the outputs of `serving_default`.

        Args:
            logits_of: the encoder's inputs, int32 [W, S], to logits, float [W, S, C].
        """
        tokenizer = self.preprocessor.tokenizer
        find = WordFinder(tokenizer.lowercase)

        def tag(text):
            source = read_texts(text, tokenizer, self.max_tokens)
            tokens = tf.RaggedTensor.from_row_splits(source.token_ids, source.token_splits, validate=False)
            lengths = tokens.row_lengths()
            room = self.preprocessor.sequence_length - SPECIAL_TOKENS
            windows = cut_windows(lengths, tf.fill(tf.shape(lengths), tf.constant(room, tf.int64)), self.doc_stride)
            layout = lay_out(windows, tokens, tokenizer)
            words = find(source)
            cells = tf.gather(best_cells(windows, layout, tf.size(source.token_ids, tf.int64), 0.0), words.firsts)
            logits = tf.reshape(logits_of(layout.inputs), [-1, len(self.labels)])
            return self._outputs(source, self._find_entities(words, _softmax(tf.gather(logits, cells))))

        return tag

    def _outputs(self, source, entities) -> dict[str, tf.Tensor]:
        count = tf.size(source.texts, tf.int64)
        numbers = tf.math.unsorted_segment_sum(tf.ones_like(entities.types), entities.rows, count)

        width = tf.maximum(tf.reduce_max(numbers, keepdims=True), 1)
        place = tf.range(tf.size(entities.rows, tf.int64)) - bisect(entities.rows, entities.rows)
        places = tf.stack([entities.rows, place], axis=1)

        def table(values, default):
            empty = tf.fill(tf.concat([[tf.size(numbers)], width], axis=0), default)
            return tf.tensor_scatter_nd_update(empty, places, values)

        types = tf.constant(self._find_entities.types, tf.string)
        return {
            "entities": table(cut_texts(source.codes, entities.starts, entities.ends), ""),
            "types": table(tf.gather(types, entities.types), ""),
            "starts": table(source.offsets(entities.starts, entities.rows), -1),
            "ends": table(source.offsets(entities.ends, entities.rows), -1),
            "scores": table(entities.scores, 0.0),
            "num_entities": numbers,
            "truncated": source.truncated,
        }

    # === Probes and descriptions ===

    def probes(self, model: keras.Model) -> list[Probe]:
        return entity_probes.make_probes(self, model)

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        return entity_probes.small_requests(self)

    def description(self) -> dict:
        token_outputs = {
            "tags": 'string (length): of each token; "" beyond the lengths',
            "scores": "float (length): the tags' probabilities; 0.0 beyond the lengths",
        }
        return self.describe(
            "Entities",
            f"Finds entities in texts: {', '.join(filter(None, self._find_entities.types))}.",
            {
                signatures.SERVING_DEFAULT: (
                    {
                        "text": f"string: any bytes; at most {self.max_tokens} tokens, and "
                        f"{BYTES_PER_TOKEN * self.max_tokens} bytes, are read"
                    },
                    {
                        "entities": 'string (entities): parts of the text, then ""',
                        "types": 'string (entities): theirs, then ""',
                        "starts": "int32 (entities): the character of the text at which each starts, then -1",
                        "ends": "int32 (entities): the character after its last, then -1",
                        "scores": "float (entities): mean probability of the tags of its words, then 0.0",
                        "num_entities": "int32: how many there are; the others fill up to the most of the batch",
                        "truncated": "bool: whether some of the text was not read",
                    },
                ),
                signatures.TOKEN_IDS: (signatures.TOKEN_INPUTS, token_outputs),
            },
            [entity_probes.EXAMPLE],
            labels=self.labels,
        )


def _softmax(logits: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.cast(logits, tf.float32))
