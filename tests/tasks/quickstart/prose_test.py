"""Sentences out of docstrings: what is kept, what is dropped, how markup is taken off."""

import pytest

from tasks.quickstart import prose

GOOGLE = """Trains a model on batches of text.

    The loop stops early when the loss
    no longer falls.  It is resumed from the
    last checkpoint.

    Example:
        This sentence is inside of the example block.
        >>> train(model)

    Args:
        model: The model that is to be trained.
        steps (int): Number of steps, and it
            may be larger than one epoch.
        **kwargs: Passed on.

    Returns:
        A history of the losses by step.

    The end of the text is this sentence.
    """

NUMPY = """Compute the mean of the array.

Parameters
----------
a : array_like
    Array containing the numbers to average.
axis : int, optional
    Axis along which the means are computed.

    The default is to compute the mean of all.

See Also
--------
median : This is the description of another function.

Notes
-----
The arithmetic mean is the sum of the elements
divided by their number.

Examples
--------
This is a sentence about the example code.

>>> mean([1, 2])
1.5
"""

SPHINX = """Opens the file for the reader.

.. versionadded:: 3.1
   This was added for all of the readers.

.. note:: The file is closed at the end.

.. code-block:: python

   This is the code of the example.

The pattern is as follows in this text::

    It is a literal block of the text.

After the block the text goes on.

:param path: The path of the file to open.
:type path: str
:returns: A reader for the opened file.
"""


def sentences(docstring):
    return list(prose.sentences(docstring))


def test_google_style():
    assert sentences(GOOGLE) == [
        "Trains a model on batches of text.",
        "The loop stops early when the loss no longer falls.",
        "It is resumed from the last checkpoint.",
        "The model that is to be trained.",
        "Number of steps, and it may be larger than one epoch.",
        "A history of the losses by step.",
        "The end of the text is this sentence.",
    ]


def test_numpy_style():
    assert sentences(NUMPY) == [
        "Compute the mean of the array.",
        "Array containing the numbers to average.",
        "Axis along which the means are computed.",
        "The default is to compute the mean of all.",
        "The arithmetic mean is the sum of the elements divided by their number.",
    ]


def test_sphinx_style():
    assert sentences(SPHINX) == [
        "Opens the file for the reader.",
        "The file is closed at the end.",
        "After the block the text goes on.",
        "The path of the file to open.",
        "A reader for the opened file.",
    ]


def test_fenced_code_is_dropped():
    text = "It is called like this.\n\n```python\nThis is in a block of code.\n```\n\nThen it is at the end."
    assert sentences(text) == ["It is called like this.", "Then it is at the end."]


def test_bullets_are_paragraphs_of_their_own():
    text = "- The first of the items\n  goes over two lines.\n- The second item is short.\n1. The third has a number."
    assert sentences(text) == [
        "The first of the items goes over two lines.",
        "The second item is short.",
        "The third has a number.",
    ]


def test_a_sentence_never_spans_paragraphs():
    assert sentences("The text of the first\n\nis not of the second one.") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See :class:`~keras.layers.Dense` and :func:`open`.", "See Dense and open."),
        ("See :ref:`the guide <guide-label>` first.", "See the guide first."),
        ("See `the manual <where>`_ or [the page](where).", "See the manual or the page."),
        ("Use ``max_len`` or `None` with **great** *care*.", "Use max_len or None with great care."),
        ("As shown in [1]_ and [Knuth]_ .", "As shown in and."),
        ("A <b>bold</b> word.", "A bold word."),
        ("An open .npy file .", "An open .npy file."),
        ("Keep 2 * 3 * 4 and snake_case_names.", "Keep 2 * 3 * 4 and snake_case_names."),
    ],
)
def test_strip_markup(text, expected):
    assert prose.strip_markup(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "The sizes are given, e.g. The width of it.",
        "It was shown by J. Smith in the paper.",
        "The version is 3.11 and it is new.",
    ],
)
def test_abbreviations_and_numbers_end_no_sentence(text):
    assert sentences(text) == [text]


def test_sentences_end_at_marks_before_capitals():
    assert sentences('Is it the end of it? No, it is not yet. (It is in the brackets.) So "this is the end." Yes.') == [
        "Is it the end of it?",
        "No, it is not yet.",
        'So "this is the end."',
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short a one.",
        "no capital at the beginning of it.",
        "No full stop at the end of it",
        "Returns x = y for all of the values.",
        "This is a call of function(argument) in it.",
        "Copyright of the authors of this file.",
        "See https://a.b for the whole of it.",
        "Der Wert der Funktion wird berechnet und gespeichert.",
        "Les données de l'étudiant sont à la maison.",
        "A B1 C2 D3 E4 the F5 G6.",
        "The bracket (is not closed in this.",
        "The word " * 30 + "is repeated.",
    ],
)
def test_is_not_prose(text):
    assert not prose.is_prose(text)
