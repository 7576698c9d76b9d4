"""Served models that give answers of every head's form without a network: names, types and shapes are bert-export's."""

import json
import os

import tensorflow as tf

STRINGS = tf.TensorSpec([None], tf.string)


def _length(text):
    return tf.strings.length(text, unit="UTF8_CHAR")


def _part(text, start, size):
    starts = tf.minimum(start, _length(text))
    return tf.strings.substr(text, starts, tf.fill(tf.shape(starts), size), unit="UTF8_CHAR")


def _rows(values, text):
    """The same values for each text."""
    values = tf.constant([values])
    return tf.tile(values, tf.concat([[tf.size(text)], tf.ones([values.shape.rank - 1], tf.int32)], axis=0))


def classification(text):
    probabilities = _rows([0.07, 0.9, 0.03], text)
    return {"label": _rows(b"good", text), "score": probabilities[:, 1], "probabilities": probabilities}


def explain(text):
    """The first two characters speak for the label, a third against it, and the fourth less."""
    numbers = [0, 2, 3, 4]
    answer = {name: values for name, values in classification(text).items() if name != "probabilities"}
    return {
        **answer,
        "words": tf.stack([_part(text, start, 1) for start in numbers], axis=1),
        "starts": _rows([*numbers[:3], -1], text),
        "ends": _rows([*numbers[1:], -1], text),
        "shares": _rows([2.0, -1.5, 0.5, 0.0], text),
        "num_words": _rows(3, text),
    }


def regression(text, text_pair):
    return {"score": tf.cast(_length(text) - _length(text_pair), tf.float32) / 3.0}


def multiple_choice(text, choices):
    probabilities = tf.nn.softmax(tf.cast(_length(choices), tf.float32) / 10.0)
    choice = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    return {
        "choice": choice + 0 * tf.size(text),
        "choice_text": tf.gather(choices, choice, batch_dims=1),
        "score": tf.reduce_max(probabilities, axis=1),
        "probabilities": probabilities,
    }


def token_classification(text):
    """The first four characters, and two from the sixth on, are entities, in a text of eight at least."""
    is_long = tf.cast(_length(text) >= 8, tf.int32)
    pad = tf.where(is_long[:, None] > 0, _rows([0, 0], text), -1)
    return {
        "entities": tf.stack([_part(text, 0, 4), _part(text, 5, 2)], axis=1),
        "types": _rows([b"person", b"location"], text),
        "starts": pad + is_long[:, None] * [[0, 5]],
        "ends": pad + is_long[:, None] * [[4, 7]],
        "scores": _rows([0.98, 0.55], text),
        "num_entities": 2 * is_long,
        "truncated": _length(text) > 2000,
    }


def question_answering(question, context):
    """Characters 4 to 10 of the context; nothing where the question is empty."""
    has_answer = _length(question) > 0
    answer = tf.where(has_answer, _part(context, 4, 6), b"")
    return {
        "answer": answer,
        "start": tf.where(has_answer, 4, -1),
        "end": tf.where(has_answer, 10, -1),
        "score": _rows(7.25, context),
        "null_score": _rows(-3.5, context),
        "nbest_answers": tf.stack(
            [_part(context, 4, 6), _part(context, 0, 10), tf.fill(tf.shape(answer), b"")], axis=1
        ),
        "nbest_probabilities": _rows([0.8, 0.15, 0.05], context),
        "nbest_starts": _rows([4, 0, -1], context),
        "nbest_ends": _rows([10, 10, -1], context),
    }


def fill_mask(text):
    """One mask: the first."""
    before = tf.strings.regex_replace(text, r"(?s)\[MASK\].*", "")
    has_mask = before != text
    return {
        "tokens": _rows([[b"Paris", b"London", "Zürich".encode()]], text),
        "probabilities": _rows([[0.61, 0.2, 0.04]], text),
        "positions": tf.where(has_mask, _length(before), -1)[:, None],
        "num_masks": tf.cast(has_mask, tf.int32),
    }


def search(text):
    """Two passages; the first has two words of an ordinary question."""
    passages = [b"An apple a day is read of in many a book.", b"A stone."]
    return {
        "passages": _rows(passages, text),
        "scores": _rows([0.75, 0.5], text),
        "indices": _rows([7, 3], text),
    }


def embeddings(text):
    wave = tf.sin(tf.range(48.0)[None] * tf.cast(_length(text), tf.float32)[:, None] / 50.0)
    return {"pooled": tf.tanh(2.0 * wave), "mean": wave / 3.0, "cls": wave[:, ::-1]}


DESCRIPTIONS = {
    search: {
        "title": "Search",
        "summary": "Finds the 2 of 8 passages that are nearest to a text.",
        "example": {"instances": ["Where do I read of an apple?"]},
    },
    classification: {
        "title": "Mood of a review",
        "summary": "A text classifier.",
        "labels": ["bad", "good", "<img src=x onerror=\"document.title='taken'\">"],
        "example": {"instances": ["What a wonderful film, from the first minute to the last."]},
    },
    regression: {
        "title": "Similarity of two sentences",
        "summary": "A number from 0 to 5.",
        "example": {"instances": [{"text": "A man plays the guitar.", "text_pair": "Someone is playing music."}]},
    },
    multiple_choice: {
        "title": "How does it go on?",
        "summary": "One of several endings.",
        "example": {
            "instances": [
                {
                    "text": "She opens the door and",
                    "choices": [
                        "steps out into the rain.",
                        "is a piano.",
                        "the door opens her, and she goes on to sing.",
                    ],
                }
            ]
        },
    },
    token_classification: {
        "title": "Names in a text",
        "summary": "People, places and more, with where they stand.",
        "example": {"instances": ["🦊Zoë, in Paris since 2019, plays for a club that nobody at home has heard of."]},
    },
    question_answering: {
        "title": "Questions about a text",
        "summary": "The answer is a piece of the context.",
        "example": {
            "instances": [
                {
                    "question": "Which city?",
                    "context": "The 🏙 Zürich tram network is older than most, and "
                    + "runs on and on, " * 40
                    + "so they say.",
                }
            ]
        },
    },
    fill_mask: {
        "title": "A word that is missing",
        "summary": "The most likely words in the place of [MASK].",
        "example": {"instances": ["The 🦊 lives in [MASK], they say."]},
    },
    embeddings: {
        "title": "A text as vectors",
        "summary": "For search and clustering.",
        "example": {"instances": ["The quick brown fox."]},
    },
}


def _save(function, directory: str, description: dict | None) -> None:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    specs = {name: tf.TensorSpec([None] * (1 + (name == "choices")), tf.string, name=name) for name in names}
    traced = tf.function(function).get_concrete_function(**specs)
    signatures = {"serving_default": traced}
    if function is classification:
        signatures["explain"] = tf.function(explain).get_concrete_function(**specs)
    tf.saved_model.save(tf.Module(), directory, signatures=signatures)
    if description:
        os.makedirs(os.path.join(directory, "assets.extra"))
        with open(os.path.join(directory, "assets.extra", "model.json"), "w", encoding="utf-8") as file:
            json.dump(description, file)


def save_all(directory: str) -> dict[str, str]:
    """Writes a model for each head, and one that is none, below a directory; returns name -> base path."""
    paths = {}
    for function, description in DESCRIPTIONS.items():
        paths[function.__name__] = os.path.join(directory, function.__name__)
        _save(function, os.path.join(paths[function.__name__], "1"), {"task": function.__name__, **description})
    paths["half_plus_two"] = os.path.join(directory, "half_plus_two")
    traced = tf.function(lambda x: {"y": x / 2.0 + 2.0}).get_concrete_function(tf.TensorSpec([None], tf.float32, "x"))
    tf.saved_model.save(tf.Module(), os.path.join(paths["half_plus_two"], "1"), signatures=traced)
    return paths
