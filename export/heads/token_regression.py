"""A number for each word of a text of any length, as `bert-score-words` trains it, such as stress or reading time."""

from export.heads.base import About
from export.heads.windowed import EXAMPLE, WordHead
from keras_bert.answers.windowed import WordScoreAnswers


class TokenRegression(WordScoreAnswers, WordHead):
    """A model that scores words; see `WordScoreAnswers`."""

    task = "token_regression"
    trained_settings = ("doc_stride",)

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
                "num_words": "int32: how many there are; lists are padded to the longest of the batch",
                "truncated": "bool: whether some of the text was not read",
            },
            token_outputs={"scores": "float (sequence): of each token; 0.0 beyond the lengths"},
        )
