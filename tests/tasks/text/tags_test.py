"""Tag schemes, and the entities that tags mark: by hand, and against seqeval."""

import itertools

import numpy as np
import pytest
from tag_schemes import write_tags

from tasks.text import tags
from tasks.text.tags import Entity

# One sentence in each scheme: entities of one, two, three tokens, one of the same type and one of another close behind.
SCHEMES = {
    "iob1": "I-a O I-a I-a B-a I-b I-b I-b O I-a-c",
    "iob2": "B-a O B-a I-a B-a B-b I-b I-b O B-a-c",
    "bilou": "U-a O B-a L-a U-a B-b I-b L-b O U-a-c",
}
ENTITIES = [("a", 0, 1), ("a", 2, 4), ("a", 4, 5), ("b", 5, 8), ("a-c", 9, 10)]


def random_tags(generator, prefixes="BI", types=("a", "b"), length=None):
    """Tags in any order: most sequences break every scheme."""
    pool = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in types)]
    return list(generator.choice(pool, generator.integers(1, 9) if length is None else length))


def random_entities(generator, length):
    limits = np.sort(generator.choice(length + 1, generator.integers(0, length + 1), replace=False)).tolist()
    pairs = list(itertools.pairwise(limits))
    return [Entity(str(generator.choice(["a", "b"])), *pair) for pair in pairs if generator.random() < 0.6]


# === Schemes ===


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_converts_to_iob2(scheme):
    assert write_tags(ENTITIES, 10, scheme) == SCHEMES[scheme].split()
    assert tags.convert_tags(SCHEMES[scheme].split(), scheme) == SCHEMES["iob2"].split()


def test_iobes_is_read_as_bilou():
    iobes = SCHEMES["bilou"].replace("L-", "E-").replace("U-", "S-")
    assert tags.guess_scheme([iobes.split()]) == "bilou"
    assert tags.convert_tags(iobes.split(), "bilou") == SCHEMES["iob2"].split()


def test_a_single_type_needs_no_name():
    assert tags.convert_tags(["B", "L", "O", "U"], "bilou") == ["B", "I", "O", "B"]
    assert tags.find_entities(["B", "I", "O", "B"]) == [("", 0, 2), ("", 3, 4)]


def test_conversion_there_and_back_keeps_any_entities():
    generator = np.random.default_rng(0)
    for _ in range(300):
        length = int(generator.integers(1, 12))
        entities = random_entities(generator, length)
        for scheme in SCHEMES:
            written = write_tags(entities, length, scheme)
            assert tags.find_fault(written, scheme) is None
            assert tags.find_entities(tags.convert_tags(written, scheme)) == entities
        assert tags.entities_to_tags(entities, length) == write_tags(entities, length, "iob2")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_is_told_by_the_content(scheme):
    assert tags.guess_scheme([["O", "O"], SCHEMES[scheme].split()]) == scheme


def test_a_few_broken_tags_do_not_change_the_scheme():
    assert tags.guess_scheme([["O"], []]) == "iob2"
    assert tags.guess_scheme([["B-a", "I-a"]] * 3 + [["I-a", "x", "B-a"]]) == "iob2"
    assert tags.guess_scheme([["I-a", "O", "I-a"]] * 3 + [["B-a"]]) == "iob1"


@pytest.mark.parametrize(
    ("scheme", "sentence", "index", "reason"),
    [
        ("iob2", "O I-a", 1, "I-a follows O; expected B-a at an entity's first token"),
        ("iob2", "I-a", 0, "I-a follows O; expected B-a at an entity's first token"),
        ("iob2", "B-a I-b", 1, "I-b follows B-a; expected B-b at an entity's first token"),
        ("iob2", "B-a U-a", 1, "'U-a' is no tag of iob2; expected O, or one of B-, I- and a type"),
        ("iob2", "O X-a", 1, "'X-a' is no tag of iob2; expected O, or one of B-, I- and a type"),
        ("iob2", "B-", 0, "'B-' is no tag of iob2; expected O, or one of B-, I- and a type"),
        ("iob2", "O o", 1, "'o' is no tag of iob2; expected O, or one of B-, I- and a type"),
        ("iob2", "O-a", 0, "'O-a' is no tag of iob2; expected O, or one of B-, I- and a type"),
        ("iob1", "O B-a", 1, "B-a follows O; expected I-a: in iob1 B- only separates two entities of one type"),
        ("iob1", "I-b B-a", 1, "B-a follows I-b; expected I-a: in iob1 B- only separates two entities of one type"),
        ("bilou", "O I-a L-a", 1, "I-a follows O; expected B-a or U-a at an entity's first token"),
        ("bilou", "U-a L-a", 1, "L-a follows U-a; expected B-a or U-a at an entity's first token"),
        ("bilou", "B-a O", 1, "O follows B-a; expected I-a or L-a, since an entity is open"),
        ("bilou", "B-a L-b", 1, "L-b follows B-a; expected I-a or L-a, since an entity is open"),
        (
            "bilou",
            "O B-a I-a",
            2,
            "I-a stands at the end of the sentence; expected I-a or L-a, since an entity is open",
        ),
        ("bilou", "O Z-a", 1, "'Z-a' is no tag of bilou; expected O, or one of B-, I-, L-, U- and a type"),
    ],
)
def test_broken_tags_are_found(scheme, sentence, index, reason):
    assert tags.find_fault(sentence.split(), scheme) == (index, reason)


def test_sound_tags_have_no_fault():
    for scheme, sentence in SCHEMES.items():
        assert tags.find_fault(sentence.split(), scheme) is None
    assert tags.find_fault(["I-a", "B-a"], "iob1") is None and tags.find_fault([], "bilou") is None


def test_split_and_join_are_inverse():
    for tag in ("O", "B-creative-work", "I-a", "U", "B"):
        assert tags.join_tag(*tags.split_tag(tag)) == tag
    assert tags.split_tag("B-creative-work") == ("B", "creative-work")
    for tag in ("", "b-a", "-a", "B-", "Ofoo", "BA-x"):
        with pytest.raises(ValueError, match="`tag` must be"):
            tags.split_tag(tag)


# === Entities ===


def test_entities_by_hand():
    assert tags.find_entities(SCHEMES["iob2"].split()) == ENTITIES
    assert tags.find_entities(SCHEMES["iob1"].split()) == ENTITIES
    assert tags.find_entities(["I-a", "I-b", "O", "I-b"]) == [("a", 0, 1), ("b", 1, 2), ("b", 3, 4)]
    with pytest.raises(ValueError, match="`tag` must be of the scheme"):
        tags.find_entities(["U-a"])


def test_counts_by_hand():
    gold = [["B-a", "I-a", "O", "B-b"], ["B-a", "O"], ["O"]]
    predicted = [["B-a", "I-a", "O", "B-a"], ["B-a", "I-a"], ["B-b"]]
    counts = tags.count_entities(gold, predicted)
    assert list(counts) == ["a", "b"]
    np.testing.assert_array_equal(counts["a"], [[1, 2, 1], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(counts["b"], [[0, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert tags.token_accuracy(gold, predicted) == 4 / 7


def test_without_entities_nothing_is_counted():
    assert tags.count_entities([["O"]], [["O"]]) == {}
    assert tags.token_accuracy([], []) == 0.0


def test_other_lengths_are_refused():
    for predicted in ([["O"]], [["O", "O"], ["O"]], [["O", "O", "O"]]):
        with pytest.raises(ValueError, match="is (longer|shorter) than"):
            tags.token_accuracy([["O", "O"]], predicted)


@pytest.mark.oracle
def test_entities_are_seqeval_s():
    from seqeval.metrics.sequence_labeling import get_entities

    generator = np.random.default_rng(1)
    for _ in range(2000):
        sentence = random_tags(generator, types=("a", "b-c"))
        ours = tags.find_entities(sentence)
        assert [(name, start, end - 1) for name, start, end in ours] == get_entities(sentence)


@pytest.mark.oracle
@pytest.mark.parametrize(("scheme", "name"), [("iob1", "IOB1"), ("bilou", "BILOU")])
def test_conversion_keeps_the_entities_that_seqeval_sees(scheme, name):
    import seqeval.scheme

    generator = np.random.default_rng(3)
    for _ in range(300):
        length = int(generator.integers(1, 12))
        written = write_tags(random_entities(generator, length), length, scheme)
        theirs = seqeval.scheme.Tokens(written, getattr(seqeval.scheme, name)).entities
        ours = tags.find_entities(tags.convert_tags(written, scheme))
        assert ours == [(entity.tag, entity.start, entity.end) for entity in theirs]
