"""Entities, as `bert-ner` trains them, from a text of any length to its entities with their places."""

import numpy as np

from export.heads.base import About
from export.heads.windowed import EXAMPLE, WordHead
from keras_bert.answers.windowed import EntityAnswers


class TokenClassification(EntityAnswers, WordHead):
    """A tagger of words, read as entities; see `EntityAnswers`."""

    task = "token_classification"
    trained_settings = ("labels", "doc_stride")

    # === Other targets ===

    def comparable(self, request, outputs):
        is_real = np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]
        return {"scores": np.where(is_real, outputs["probabilities"].max(axis=-1), np.float32(0))}

    # === Description ===

    def about(self):
        return About(
            "Entities",
            f"Finds entities in texts: {', '.join(filter(None, self.find_entities.types))}.",
            [EXAMPLE],
            {"text": f"string: any bytes; {self.read_part}"},
            {
                "entities": 'string (entities): parts of the text, then ""',
                "types": 'string (entities): theirs, then ""',
                "starts": "int32 (entities): the character of the text at which each starts, then -1",
                "ends": "int32 (entities): the character after its last, then -1",
                "scores": "float (entities): mean probability of the tags of its words, then 0.0",
                "num_entities": "int32: how many there are; lists are padded to the longest of the batch",
                "truncated": "bool: whether some of the text was not read",
            },
            token_outputs={
                "tags": 'string (sequence): of each token; "" beyond the lengths',
                "scores": "float (sequence): the tags' probabilities; 0.0 beyond the lengths",
            },
            more={"labels": self.labels},
        )
