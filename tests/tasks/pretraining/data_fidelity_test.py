"""5,000 instances of real text, or 10,000, against google-research/bert's rules, written anew on lists of tokens.

The rules are those of create_pretraining_data.py:223-433. Each side draws from its own generators, so distributions are
compared, by chi-square tests at p > 0.01 with fixed seeds, and what must always hold is checked for each instance.
"""

import collections
import glob
import os
import random

import fuzzing
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from repository import SHARED, needs_data

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.data.settings import DataSettings

VOCABULARY = os.path.join(SHARED, "vocab", "uncased_en.txt")
CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"
NUM_INSTANCES = 10_000 if fuzzing.FULL else 5_000  # of all texts, and of every second one
S, P = 128, 15  # 15 is less than 15% of 128, so that both bounds of the count are met
# The target length is drawn once a document, so that instances of one document are alike, and a test that takes them
# for independent would see differences where there are none: many short documents, gone through several times, of
# which few instances each are looked at.
SENTENCES_PER_DOCUMENT, DUPLICATES = 12, 8

pytestmark = needs_data


class Instance(collections.namedtuple("Instance", "shown segment_b positions answers is_random")):
    """One instance as lists, [CLS] and [SEP] included; `segment_b` is where the second segment begins."""

    @property
    def restored(self):
        tokens = list(self.shown)
        for position, answer in zip(self.positions, self.answers, strict=True):
            tokens[position] = answer
        return tokens


# === The rules, derived anew ===


def derive_instances(documents, vocabulary, rng):
    pairs = []
    for _ in range(DUPLICATES):
        for document in range(len(documents)):
            pairs.extend(derive_pairs(documents, document, rng))
    for tokens_a, tokens_b, is_random in rng.sample(pairs, NUM_INSTANCES):
        tokens = [CLS, *tokens_a, SEP, *tokens_b, SEP]
        yield derive_masks(tokens, len(tokens_a) + 2, is_random, vocabulary, rng)


def derive_pairs(documents, index, rng):
    most = S - 3
    target = most
    if rng.random() < 0.1:
        target = rng.randint(2, most)
    document, chunk, i = documents[index], [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(len(sentence) for sentence in chunk) >= target:
            a_end = 1 if len(chunk) < 2 else rng.randint(1, len(chunk) - 1)
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            tokens_b = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    tokens_b.extend(sentence)
                    if len(tokens_b) >= target - len(tokens_a):
                        break
                i -= len(chunk) - a_end
            else:
                tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(tokens_a) + len(tokens_b) > most:
                longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
                del longer[0 if rng.random() < 0.5 else -1]
            yield tokens_a, tokens_b, is_random
            chunk = []
        i += 1


def derive_masks(tokens, segment_b, is_random, vocabulary, rng):
    candidates = [i for i, token in enumerate(tokens) if token not in (CLS, SEP)]
    rng.shuffle(candidates)
    positions = sorted(candidates[: min(P, max(1, round(len(tokens) * 0.15)))])
    shown = list(tokens)
    for position in positions:
        if rng.random() < 0.8:
            shown[position] = MASK
        elif rng.random() >= 0.5:
            shown[position] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
    return Instance(shown, segment_b, positions, [tokens[i] for i in positions], is_random)


# === Both sides ===


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """The corpus as short documents of sentences of tokens, and as a file: addresses, and the articles of WikiText."""
    texts = []
    for path in sorted(glob.glob(os.path.join(SHARED, "corpus", "*", "*.txt"))):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read().replace(". ", ".\n").replace("\n\n", "\n"))
    with open(os.path.join(SHARED, "corpus", "wikitext2-valid.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(" = ") and not line.startswith(" = = "):
                texts.append("")
            elif not line.startswith(" = "):
                texts[-1] += line.replace(" . ", " .\n")
    tokenizer = PythonBertTokenizer(VOCABULARY)
    pieces = tokenizer.get_vocabulary()
    tokenized, kept = [], []
    for text in texts if fuzzing.FULL else texts[::2]:
        sentences = [line.strip() for line in text.split("\n") if line.strip()]
        for start in range(0, len(sentences), SENTENCES_PER_DOCUMENT):
            part = sentences[start : start + SENTENCES_PER_DOCUMENT]
            kept.append("\n".join(part))
            tokenized.append([[pieces[number] for number in tokenizer.tokenize(sentence)] for sentence in part])
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(kept) + "\n")
    return path, tokenized


@pytest.fixture(scope="module")
def ours(documents):
    path, _ = documents
    output_file = str(path.parent / "train.tfrecord")
    report = create_pretraining_data(
        DataSettings(
            input_file=str(path),
            output_file=output_file,
            vocab_file=VOCABULARY,
            max_seq_length=S,
            max_predictions_per_seq=P,
            masked_lm_prob=0.15,
            short_seq_prob=0.1,
            dupe_factor=DUPLICATES,
            random_seed=20181011,
            do_whole_word_mask=False,
        )
    )
    assert report["instances"] > NUM_INSTANCES
    serialized = list(tf.data.TFRecordDataset(output_file).as_numpy_iterator())  # Block by block.
    serialized = random.Random(0).sample(serialized, NUM_INSTANCES)
    features, labels = parse_records(serialized, max_seq_length=S, max_predictions_per_seq=P)
    records = {name: value.numpy() for name, value in {**features, **labels}.items()}
    pieces = PythonBertTokenizer(VOCABULARY).get_vocabulary()
    instances = []
    for row in range(NUM_INSTANCES):
        length, masked = int(records["padding_mask"][row].sum()), int(records["mask_weights"][row].sum())
        instances.append(
            Instance(
                [pieces[number] for number in records["token_ids"][row][:length]],
                length - int(records["segment_ids"][row].sum()),
                records["mask_positions"][row][:masked].tolist(),
                [pieces[number] for number in records["mask_ids"][row][:masked]],
                bool(records["next_sentence_labels"][row]),
            )
        )
    return instances


@pytest.fixture(scope="module")
def derived(documents):
    _, tokenized = documents
    return list(derive_instances(tokenized, PythonBertTokenizer(VOCABULARY).get_vocabulary(), random.Random(2)))


# === Distributions ===


def side_of_cut(instance, starts):
    """Where a segment lost tokens: not at its front if it begins as a sentence of the text does."""
    restored = instance.restored
    begins = [tuple(restored[first : first + 4]) in starts for first in (1, instance.segment_b)]
    return (len(restored) == S, *begins)


def shown_as(instance):
    for position, answer in zip(instance.positions, instance.answers, strict=True):
        shown = instance.shown[position]
        yield "mask" if shown == MASK else "kept" if shown == answer else "random"


MEASURES = {
    "length": lambda instance, _: [len(instance.shown) // 3],
    "length of the first segment": lambda instance, _: [(instance.segment_b - 2) // 3],
    "masked count": lambda instance, _: [len(instance.positions)],
    "masked count by length": lambda instance, _: [(len(instance.positions), len(instance.shown))],
    "position of masks": lambda instance, _: instance.positions,
    "masks in the first segment": lambda instance, _: [sum(p < instance.segment_b for p in instance.positions)],
    "80/10/10": lambda instance, _: shown_as(instance),
    "random next": lambda instance, _: [instance.is_random],
    "random next by length": lambda instance, _: [(instance.is_random, len(instance.shown) // 8)],
    "truncation side": lambda instance, starts: [side_of_cut(instance, starts)],
}


@pytest.mark.parametrize("measure", MEASURES)
def test_distribution_is_that_of_the_rules(documents, ours, derived, measure):
    starts = {
        tuple((sentence + following)[:4])
        for document in documents[1]
        for sentence, following in zip(document, [*document[1:], []], strict=True)
    }
    counts = [
        collections.Counter(value for instance in instances for value in MEASURES[measure](instance, starts))
        for instances in (ours, derived)
    ]
    table = np.array([[count[value] for count in counts] for value in sorted(set().union(*counts))])
    # Rare values together: the test wants an expectation of five.
    rare = table.sum(axis=1) < 25
    if table[rare].sum() >= 25:
        table = np.vstack([table[~rare], table[rare].sum(axis=0)])
    else:
        table = table[~rare]
    assert len(table) > 1
    assert scipy.stats.chi2_contingency(table).pvalue > 0.01


def test_the_comparison_notices_a_rule_that_is_off(ours):
    # A masked count that leaves out [CLS] and [SEP], as other implementations have it.
    counts = collections.Counter((len(instance.positions), len(instance.shown)) for instance in ours)
    other = collections.Counter(
        (min(P, max(1, round((len(instance.shown) - 3) * 0.15))), len(instance.shown)) for instance in ours
    )
    table = np.array([[counts[value], other[value]] for value in sorted(counts | other)])
    # The comparison asks for 0.01.
    assert scipy.stats.chi2_contingency(table[table.sum(axis=1) >= 25]).pvalue < 1e-3


def test_random_replacements_come_from_the_whole_vocabulary(ours):
    numbers = {piece: number for number, piece in enumerate(PythonBertTokenizer(VOCABULARY).get_vocabulary())}
    replacements = [
        numbers[instance.shown[position]]
        for instance in ours
        for position, answer in zip(instance.positions, instance.answers, strict=True)
        if instance.shown[position] not in (MASK, answer)
    ]
    counts, _ = np.histogram(replacements, bins=np.linspace(0, len(numbers), 21))
    assert len(replacements) > NUM_INSTANCES / 2
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_every_mask_restores_to_the_text_and_no_segment_mixes_documents(documents, ours):
    tokens, places = [], collections.defaultdict(list)
    for document in documents[1]:
        tokens.extend(["end of document", *(token for sentence in document for token in sentence)])
    for place in range(len(tokens)):
        for length in (1, 2, 3):
            places[tuple(tokens[place : place + length])].append(place)
    for instance in ours:
        restored = instance.restored
        assert restored[0] == CLS and restored[instance.segment_b - 1] == SEP and restored[-1] == SEP
        assert not {0, instance.segment_b - 1, len(restored) - 1} & set(instance.positions)
        assert len(set(instance.positions)) == len(instance.positions)
        for segment in (restored[1 : instance.segment_b - 1], restored[instance.segment_b : -1]):
            assert any(segment == tokens[place : place + len(segment)] for place in places[tuple(segment[:3])])
