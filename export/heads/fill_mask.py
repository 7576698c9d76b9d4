"""Filling in masks: the most probable tokens where `[MASK]` stands; of `bert-pretrain`, or any preset with that head.

Shapes: B batch, S sequence, M masks, R masks of all texts, K tokens named, V vocabulary, H hidden.
"""

import numpy as np
import tensorflow as tf

from export import probes, serving, signatures
from export.graph import masked_texts
from export.graph.masked_texts import MaskedTexts
from export.heads.base import Head
from export.verify import Probe
from keras_bert import weights
from keras_bert.errors import InputError
from keras_bert.preprocessor import BertPreprocessor
from tasks.pretraining.model import BertPretrainer

# Masks whose logits are held at a time: 31 MB for a vocabulary of 30,522, however many masks a batch has.
_MASKS_AT_A_TIME = 256

TEXTS = (
    "The cat [MASK] on the [MASK].",
    "no mask here",
    "[MASK]",
    "",
    "[MASK][MASK]s naïve \U0001f600 [MASK]",
    b"invalid \xff\xfe UTF-8 \xe4[MASK] [MA\xffSK] \xe4\xb8",
    "ΟΔΥΣΣΕΥΣ[MASK], 今天天气[MASK]很好 [mask] [ MASK ]",
    "[MASK] " * 3000,
    "a long text " * 1000 + "[MASK]",
    "x" * 20_000 + " [MASK]",
    " " * 20_000 + "[MASK]",
)


class FillMask(Head):
    """A masked language model.

    Args:
        model: BertPretrainer.
        preprocessor: tokenizer and longest sequence.
        top_k: how many tokens are named for each mask.
    """

    task = "fill_mask"
    settings = ("top_k",)

    def __init__(self, model: BertPretrainer, preprocessor: BertPreprocessor, top_k: int = 5):
        super().__init__(model, preprocessor)
        size = preprocessor.tokenizer.vocabulary_size()
        if not 1 <= top_k <= size:
            raise InputError(f"--top_k={top_k}: expected 1 to {size}, the size of the vocabulary.")
        self.top_k = top_k

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None, top_k: int = 5) -> "FillMask":
        """See `Head.load`; `directory`: a preset, as in `BertBackbone.from_preset`, with the masked-LM head."""
        with weights.open_checkpoint(directory) as checkpoint:
            if "masked_lm" not in checkpoint.heads:
                raise InputError(
                    f"{checkpoint.source}: holds no masked-LM head. Expected what bert-pretrain wrote, or another "
                    "checkpoint that kept the heads of its pre-training."
                )
            model = BertPretrainer.from_checkpoint(checkpoint, use_next_sentence=False)
        return cls(model, BertPreprocessor.from_preset(directory, sequence_length), top_k)

    # === Graph ===

    def functions(self, model: BertPretrainer) -> dict[str, tf.types.experimental.ConcreteFunction]:
        backbone = serving.find_backbone(model)

        def from_texts(text):
            encoded, mask_positions, characters, num_masks = masked_texts.encode(self.preprocessor, text)
            answer = self._fill(model, encoded, mask_positions)
            return {**answer, "positions": characters, "num_masks": num_masks}

        def from_token_ids(mask_positions, lengths, **ids):
            encoded = serving.encoder_inputs(backbone, lengths=lengths, **ids)
            with tf.control_dependencies([_check_positions(mask_positions, lengths)]):
                return self._fill(model, encoded, tf.identity(mask_positions))

        positions = tf.TensorSpec([None, None], tf.int32, name="mask_positions")
        specs = {**signatures.token_specs(), "mask_positions": positions}
        return {
            signatures.SERVING_DEFAULT: serving.trace(from_texts, signatures.text_specs("text")),
            signatures.TOKEN_IDS: serving.trace(from_token_ids, specs),
        }

    def _fill(self, model: BertPretrainer, encoded: dict[str, tf.Tensor], mask_positions: tf.Tensor) -> dict:
        """Names the best tokens: `tokens` string [B, M, K] and `probabilities` [B, M, K], of real masks only."""
        states = serving.find_backbone(model)(encoded, training=False)["sequence_output"]
        is_mask = mask_positions >= 0  # [B, M]
        places = tf.range(tf.shape(states)[0])[:, tf.newaxis] * tf.shape(states)[1] + mask_positions
        rows = tf.boolean_mask(places, is_mask)  # [R], among the B * S positions
        ids, probabilities = self._best(model, tf.reshape(states, [1, -1, states.shape[-1]]), rows)
        tokens = tf.gather(tf.constant(self.preprocessor.tokenizer.get_vocabulary()), ids)
        # Behind the last one stands what padding gets.
        number = tf.reshape(tf.cumsum(tf.cast(tf.reshape(is_mask, [-1]), tf.int32)) - 1, tf.shape(is_mask))
        number = tf.where(is_mask, number, tf.size(rows))
        return {
            "tokens": tf.gather(tf.concat([tokens, tf.fill([1, self.top_k], "")], axis=0), number),
            "probabilities": tf.gather(tf.concat([probabilities, tf.zeros([1, self.top_k])], axis=0), number),
        }

    def _best(self, model: BertPretrainer, states: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and probabilities [R, K] of the best tokens at `rows` [R] of `states` [1, B * S, H], some at a time."""
        head, size = model.get_layer("masked_lm"), self.preprocessor.tokenizer.vocabulary_size()

        def some(start, ids, probabilities):
            logits = head(states, mask_positions=rows[tf.newaxis, start : start + _MASKS_AT_A_TIME])[0]
            # A table may have more rows than the vocabulary has tokens: they count, but have no name.
            best, best_ids = tf.math.top_k(tf.nn.softmax(logits)[:, :size], self.top_k)
            found = tf.concat([ids, best_ids], axis=0), tf.concat([probabilities, best], axis=0)
            return start + _MASKS_AT_A_TIME, *found

        state = (0, tf.zeros([0, self.top_k], tf.int32), tf.zeros([0, self.top_k]))
        shapes = (tf.TensorShape([]), *[tf.TensorShape([None, self.top_k])] * 2)
        return tf.while_loop(lambda start, *_: start < tf.size(rows), some, state, shapes)[1:]

    # === Probes ===

    def probes(self, model: BertPretrainer) -> list[Probe]:
        found = []
        for batch in probes.batches(TEXTS):
            masked = _encode_in_python(self.preprocessor, batch)
            features = {**masked.encoded, "mask_positions": np.maximum(masked.mask_positions, 0)}
            logits = probes.on_cpu(lambda tensors: model(tensors, training=False)["masked_lm"], features)
            answer, undecided = self._expected(logits, masked.mask_positions >= 0)
            right = {
                signatures.SERVING_DEFAULT: {**answer, "positions": masked.characters, "num_masks": masked.num_masks},
                signatures.TOKEN_IDS: answer,
            }
            requests = _requests(batch, masked)
            found += [Probe(name, request, right[name], undecided) for name, request in requests.items()]
        return found

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        text = probes.as_bytes(TEXTS[:1])
        return list(_requests(text, _encode_in_python(self.preprocessor, text)).items())

    def _expected(self, logits: np.ndarray, is_mask: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What `_fill` gives, and the rows that hang on rounding, of logits [B, M, V]."""
        pieces = probes.as_bytes(self.preprocessor.tokenizer.get_vocabulary())
        probabilities = probes.on_cpu(tf.nn.softmax, logits)[..., : len(pieces)]
        order = np.argsort(-probabilities, axis=-1, kind="stable")[..., : self.top_k]
        answer = {
            "tokens": np.where(is_mask[..., None], pieces[order], np.array(b"", dtype=object)),
            "probabilities": np.where(
                is_mask[..., None], np.take_along_axis(probabilities, order, axis=-1), np.float32(0)
            ),
        }
        undecided = probes.undecided(probabilities.reshape(-1, len(pieces)), self.top_k).reshape(is_mask.shape)
        return answer, (undecided & is_mask).any(axis=1)

    # === What it says of itself ===

    def description(self) -> dict:
        count, longest = self.top_k, self.preprocessor.sequence_length - 2
        outputs = {
            "tokens": f'string (masks, {count}): the most probable tokens, "##..." inside a word; "" where no mask is',
            "probabilities": f"float (masks, {count}): their probabilities",
        }
        places = {
            "positions": "int32 (masks): the character where each [MASK] begins; -1 where no mask is",
            "num_masks": f"int32: how many masks the text has in its first {longest} tokens",
        }
        text = {"text": "string: the text, with [MASK] where a token is to be named"}
        positions = {"mask_positions": "int32 (masks): which of the ids to name; -1 for none"}
        return self.describe(
            "Fill in the mask",
            f"Names the {count} most probable tokens for each [MASK] of a text, among its first {longest} tokens.",
            {
                signatures.SERVING_DEFAULT: (text, {**outputs, **places}),
                signatures.TOKEN_IDS: ({**signatures.TOKEN_INPUTS, **positions}, outputs),
            },
            ["The capital of France is [MASK].", "She [MASK] the door and [MASK] in."],
            top_k=count,
        )


def _check_positions(mask_positions: tf.Tensor, lengths: tf.Tensor) -> tf.Operation:
    """Fails, with a message for the client, unless every position is -1 or within its row's tokens."""
    lengths = tf.ensure_shape(lengths, [None])
    same_size = tf.shape(mask_positions)[0] == tf.size(lengths)
    right = tf.cond(
        same_size,
        lambda: tf.reduce_all((mask_positions >= -1) & (mask_positions < lengths[:, tf.newaxis])),
        lambda: False,
    )
    message = "`mask_positions` must be a row for each of `token_ids`, from 0 to its length - 1, or -1. Received shape:"
    return tf.debugging.Assert(right, [message, tf.shape(mask_positions), "values:", mask_positions], summarize=8)


def _requests(texts: np.ndarray, masked: MaskedTexts) -> dict[str, dict[str, np.ndarray]]:
    """Signature -> inputs: one question, asked in each way that there is."""
    ids = {
        "token_ids": masked.encoded["token_ids"],
        "segment_ids": masked.encoded["segment_ids"],
        "lengths": masked.encoded["padding_mask"].sum(axis=-1, dtype=np.int32),
        "mask_positions": masked.mask_positions,
    }
    return {signatures.SERVING_DEFAULT: {"text": texts}, signatures.TOKEN_IDS: ids}


def _encode_in_python(preprocessor: BertPreprocessor, texts: np.ndarray) -> MaskedTexts:
    """What `masked_texts.encode` gives, in Python and as arrays."""
    tokenizer, longest = preprocessor.tokenizer, preprocessor.sequence_length - 2
    rows, places, characters = [], [], []
    for text in texts:
        pieces = text.decode("utf-8", "ignore").split(masked_texts.MASK)
        ids = tokenizer.tokenize(pieces).to_list()
        joined = [number for piece in ids for number in (*piece, tokenizer.mask_token_id)][:-1][:longest]
        rows.append([tokenizer.cls_token_id, *joined, tokenizer.sep_token_id])
        places.append([place for place, number in enumerate(rows[-1]) if number == tokenizer.mask_token_id])
        ends = np.cumsum([len(piece) + len(masked_texts.MASK) for piece in pieces]) - len(masked_texts.MASK)
        characters.append(ends.tolist()[: len(places[-1])])
    token_ids = _padded(rows, 2, tokenizer.pad_token_id)
    mask = np.arange(token_ids.shape[1]) < np.array([len(row) for row in rows], np.int32).reshape(-1, 1)
    encoded = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": mask.astype(np.int32)}
    num_masks = np.array([len(row) for row in places], np.int32)
    return MaskedTexts(encoded, _padded(places, 1, -1), _padded(characters, 1, -1), num_masks)


def _padded(rows: list[list[int]], least: int, fill: int) -> np.ndarray:
    array = np.full([len(rows), max([least, *map(len, rows)])], fill, np.int32)
    for row, values in zip(array, rows, strict=True):
        row[: len(values)] = values
    return array
