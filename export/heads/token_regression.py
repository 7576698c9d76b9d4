"""A number for each word of a text of any length, as `bert-score-words` trains it, such as stress or reading time.

Shapes: B texts, W windows, S sequence, N words.
"""

import numpy as np
import tensorflow as tf

from export.graph.source_text import cut_texts
from export.graph.tables import Table
from export.heads.base import About, TokenOutput
from export.heads.windowed import EXAMPLE, WordHead
from export.verification.probes import padded


class TokenRegression(WordHead):
    """A model that scores words; see `WordHead`. It gives one logit a token, [B, S, 1]."""

    task = "token_regression"
    trained_settings = ("doc_stride",)
    padding = {"count": "num_words", "values": {"words": "", "starts": -1, "ends": -1, "scores": 0.0}}
    token_outputs = {"scores": TokenOutput(("sequence",), column=0, padding=0.0)}

    def answer_words(self, source, words, logits):
        table = Table(words.rows, tf.size(source.texts, tf.int64))
        return {
            "words": table(cut_texts(source.codes, words.starts, words.ends), ""),
            "starts": table(source.offsets(words.starts, words.rows), -1),
            "ends": table(source.offsets(words.ends, words.rows), -1),
            "scores": table(logits[:, 0], 0.0),
            "num_words": table.counts,
        }

    def answer_token_ids(self, model, encoded):
        scores = self.logits_in_graph(model, encoded)[:, :, 0]
        return {"scores": tf.where(encoded["padding_mask"] == 1, scores, 0.0)}

    def expected_words(self, texts, words, logits):
        answer = {
            "words": padded([[word.text.encode() for word in found] for found in words], b"", object),
            "starts": padded([[word.start for word in found] for found in words], -1),
            "ends": padded([[word.end for word in found] for found in words], -1),
            "scores": padded([rows[:, 0] for rows in logits], 0.0, np.float32),
            "num_words": np.array([len(found) for found in words], np.int32),
        }
        return answer, None

    def expected_tokens(self, logits, is_token):
        return {"scores": np.where(is_token, logits[:, :, 0], np.float32(0.0))}, None

    def about(self):
        return About(
            "Scores of words",
            "Gives each word of a text a number, on the scale that it was trained on.",
            [EXAMPLE],
            {"text": f"string: any bytes; {self.read_part}"},
            {
                "words": 'string (words): the words of the text, then ""',
                "starts": "int32 (words): the character of the text at which each starts, then -1",
                "ends": "int32 (words): the character after its last, then -1",
                "scores": "float (words): the words' numbers, then 0.0",
                "num_words": "int32: how many there are; the others fill up to the most of the batch",
                "truncated": "bool: whether some of the text was not read",
            },
            token_outputs={"scores": "float (sequence): of each token; 0.0 beyond the lengths"},
        )
