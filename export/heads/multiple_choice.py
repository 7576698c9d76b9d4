"""Multiple choice, as `bert-swag` trains it: finds which of several texts goes with a text."""

import keras
import numpy as np

from export import signatures
from export.heads.base import About
from export.heads.sequence import BestOfHead
from export.verification import probes
from keras_bert.answers.sequence import ChoiceAnswers
from keras_bert.tokenization.preprocessor import BertPreprocessor

_ENDINGS = ("plays it.", "eats it.", "sleeps.", "swims away.", "sings to it.", "reads it.", "paints it.")


class MultipleChoice(ChoiceAnswers, BestOfHead):
    """A multiple-choice model; see `ChoiceAnswers`."""

    task = "multiple_choice"

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        super().__init__(model, preprocessor)
        self.token_inputs = {name: (self.num_choices, *axes) for name, axes in signatures.TOKEN_AXES.items()}

    def answer_examples(self, texts, answer):
        return {"classes": texts["choices"], "scores": answer["probabilities"]}

    def encoding(self):
        return None

    # === Probes ===

    def probe_texts(self):
        texts = probes.as_bytes(probes.TEXTS)
        places = np.arange(len(texts))[:, None] + np.arange(1, self.num_choices + 1)
        return {"text": texts, "choices": texts[places % len(texts)]}

    def expected(self, model, texts, encoded):
        right = super().expected(model, texts, encoded)
        answer, undecided = right[signatures.SERVING_DEFAULT]
        chosen = np.take_along_axis(texts["choices"], answer["choice"][:, None], axis=1)[:, 0]
        return {**right, signatures.SERVING_DEFAULT: ({**answer, "choice_text": chosen}, undecided)}

    # === Description ===

    def about(self):
        count = self.num_choices
        outputs = {
            "choice": "int32: the number of the most probable choice, from 0",
            "score": "float: its probability",
            "probabilities": "float (choices): of each choice",
        }
        choice_texts = f"string ({count}): the choices"
        choices = [f"She {_ENDINGS[number % len(_ENDINGS)]}" for number in range(count)]
        return About(
            "Multiple choice",
            f"Tells which of {count} texts goes best with a text.",
            [{"text": "A woman sits at a piano.", "choices": choices}],
            {"text": signatures.TEXT_INPUTS["text"], "choices": choice_texts},
            {**outputs, "choice_text": "string: its text"},
            token_outputs=outputs,
            example_outputs={"classes": choice_texts, "scores": f"float ({count}): their probabilities"},
            more={"num_choices": count},
        )
