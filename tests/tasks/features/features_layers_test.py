"""Which layers the flags name, and what they may not say."""

import pytest

from keras_bert.errors import InputError
from tasks.features.settings import layer_name, resolve_layers


@pytest.mark.parametrize(
    "names, numbers",
    [
        (["-1", "-2", "-3", "-4"], [12, 11, 10, 9]),
        (["embeddings"], [0]),
        (["0", "12", "1"], [0, 12, 1]),
        ([" -12 ", "-1"], [1, 12]),
        (["all"], list(range(1, 13))),
        (["embeddings", "all"], list(range(13))),
    ],
)
def test_layers_are_numbered_from_the_embeddings_up(names, numbers):
    assert resolve_layers(names, 12) == numbers


@pytest.mark.parametrize(
    "names, words",
    [
        (["13"], ["--layers=13", "'13'", "1 to 12", "-12", "embeddings"]),
        (["-1", "-13"], ["'-13'"]),
        (["last"], ["'last'"]),
        (["1.5"], ["'1.5'"]),
        ([""], ["''"]),
        (["-1", "12"], ["layer_12", "twice"]),
        (["all", "-3"], ["layer_10", "twice"]),
        (["embeddings", "0"], ["embeddings", "twice"]),
    ],
)
def test_what_is_no_layer_is_refused(names, words):
    with pytest.raises(InputError) as refused:
        resolve_layers(names, 12)
    assert all(word in str(refused.value) for word in words), refused.value


def test_names_of_layers():
    assert [layer_name(number) for number in (0, 1, 12)] == ["embeddings", "layer_1", "layer_12"]
