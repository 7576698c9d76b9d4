"""Pairs of segments: where they come from, how long they are, how they are labelled and cut."""

import collections
import random

import numpy as np

from tasks.pretraining.data.token_store import Corpus
from tasks.pretraining.data.writing import Pair, build_tokens, document_generator, draw_pairs, truncate_pair

CLS, SEP = 1, 2


def make_corpus(documents):
    """A corpus of sentence lengths; every token's id is its own offset plus 100."""
    lengths = [length for document in documents for length in document]
    return Corpus(
        np.arange(sum(lengths), dtype=np.int32) + 100,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([[0], np.cumsum([len(document) for document in documents])]),
    )


def random_corpus(num_documents=40, seed=0):
    rng = random.Random(seed)
    return make_corpus([[rng.randint(1, 30) for _ in range(rng.randint(1, 25))] for _ in range(num_documents)])


def draw(corpus, seeds=range(5), max_seq_length=64, short_seq_prob=0.1):
    """(document, pair) of every document in several duplicates."""
    lengths = {"max_seq_length": max_seq_length, "short_seq_prob": short_seq_prob}
    everything = range(corpus.num_documents)
    for duplicate in seeds:
        for document in range(corpus.num_documents):
            rng = document_generator(7, duplicate, document)
            for pair in draw_pairs(corpus, document, everything, rng, **lengths):
                yield document, pair


def document_of(corpus, token):
    sentence = np.searchsorted(corpus.sentence_starts, token, side="right") - 1
    return int(np.searchsorted(corpus.document_starts, sentence, side="right") - 1)


def google_truncate(a, b, max_tokens, front):
    """google-research/bert's loop as the FIDELITY notes describe it, on lists; `front()` is the coin."""
    a, b = list(a), list(b)
    while len(a) + len(b) > max_tokens:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if front() else -1)
    return a, b


def google_pairs(document, documents, rng, max_tokens, target):
    """An independent re-derivation on lists of sentences: yields (a, b, is_random) before truncation."""
    sentences, chunk, position = documents[document], [], 0
    while position < len(sentences):
        chunk.append(sentences[position])
        if position == len(sentences) - 1 or sum(map(len, chunk)) >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = sum(chunk[:a_end], [])
            if len(chunk) == 1 or rng.random() < 0.5:
                other = document
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != document:
                        break
                b, start = [], rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                position -= len(chunk) - a_end
                yield a, b, True
            else:
                yield a, sum(chunk[a_end:], []), False
            chunk = []
        position += 1


def test_pairs_equal_an_independent_derivation_draw_by_draw():
    # Without truncation's coins and mask seeds both consume the same draws in the same order, per document.
    class NoCoins(random.Random):
        def getrandbits(self, n):
            return 0 if n in (0, 63) else super().getrandbits(n)

    lengths = [[random.Random(n).randint(1, 9) for n in range(k, k + 1 + k % 13)] for k in range(30)]
    corpus = make_corpus(lengths)
    documents, offset = [], 0
    for document in lengths:
        sentences = []
        for length in document:
            sentences.append(list(range(offset, offset + length)))
            offset += length
        documents.append(sentences)
    longest = 400  # no pair is longer: nothing is truncated
    for document in range(len(lengths)):
        for seed in range(10):
            ours, theirs = NoCoins(seed), NoCoins(seed)
            pairs = draw_pairs(
                corpus, document, range(len(lengths)), ours, max_seq_length=longest + 3, short_seq_prob=1.0
            )
            theirs.random()
            target = theirs.randint(2, longest)
            expected = list(google_pairs(document, documents, theirs, longest, target))
            drawn_pairs = [
                (list(range(p.a_start, p.a_stop)), list(range(p.b_start, p.b_stop)), p.is_random_next) for p in pairs
            ]
            assert drawn_pairs == expected


def test_truncation_keeps_what_the_loop_keeps():
    for len_a in range(1, 14):
        for len_b in range(1, 14):
            for max_tokens in range(2, 20):
                a, b = google_truncate(range(len_a), range(len_b), max_tokens, lambda: False)
                cut = truncate_pair(0, len_a, 50, 50 + len_b, max_tokens, random.Random(len_a))
                assert (cut[1] - cut[0], cut[3] - cut[2]) == (len(a), len(b))
                assert 0 <= cut[0] and cut[1] <= len_a and 50 <= cut[2] and cut[3] <= 50 + len_b


def test_truncation_cuts_front_or_back_by_a_fair_coin():
    rng = random.Random(0)
    fronts = collections.Counter(truncate_pair(0, 24, 50, 54, 24, rng)[0] for _ in range(8000))
    # Four tokens go from the first segment: Binomial(4, 1/2) at its front; bounds of 5 standard deviations.
    for front, share in enumerate([1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16]):
        assert abs(fronts[front] - 8000 * share) < 5 * (8000 * share * (1 - share)) ** 0.5


def test_segments_stay_in_one_document_and_labels_say_what_follows():
    corpus = random_corpus()
    for document, pair in draw(corpus):
        assert document_of(corpus, pair.a_start) == document_of(corpus, pair.a_stop - 1) == document
        other = document_of(corpus, pair.b_start)
        assert other == document_of(corpus, pair.b_stop - 1)
        assert (other != document) == pair.is_random_next
        assert pair.a_stop > pair.a_start and pair.b_stop > pair.b_start
        assert pair.a_stop - pair.a_start + pair.b_stop - pair.b_start <= 61
        if not pair.is_random_next:
            assert pair.a_stop <= pair.b_start


def test_random_segments_come_from_the_documents_given():
    corpus = random_corpus()
    counts = collections.Counter()
    for document in range(20):
        rng = document_generator(7, 0, document)
        for pair in draw_pairs(corpus, document, range(30, 40), rng, max_seq_length=32, short_seq_prob=0.1):
            if pair.is_random_next:
                counts[document_of(corpus, pair.b_start)] += 1
    assert set(counts) == set(range(30, 40))


def test_every_sentence_of_a_document_is_used_once_per_duplicate():
    # Longer than any document plus a random segment, so that nothing is truncated away.
    corpus = random_corpus()
    seen = collections.Counter()
    for _, pair in draw(corpus, seeds=[0], max_seq_length=2000, short_seq_prob=0.5):
        seen.update(range(pair.a_start, pair.a_stop))
        if not pair.is_random_next:
            seen.update(range(pair.b_start, pair.b_stop))
    assert seen == collections.Counter(range(len(corpus.token_ids)))


def test_half_of_the_choices_are_random():
    # Documents of exactly two sentences, both needed to reach the target: a free choice, then the put-back sentence.
    corpus = make_corpus([[30, 31]] * 400)
    pairs = collections.defaultdict(list)
    for document, pair in draw(corpus, seeds=[3], short_seq_prob=0.0):
        pairs[document].append(pair.is_random_next)
    first = sum(labels[0] for labels in pairs.values())
    assert 150 < first < 250  # 5 standard deviations around 200
    assert all(labels in ([False], [True, True]) for labels in pairs.values())


def test_target_length_is_drawn_once_a_document():
    corpus = make_corpus([[1] * 600] * 60)
    lengths = collections.defaultdict(set)
    num_short = 0
    for document, pair in draw(corpus, seeds=[0], max_seq_length=33, short_seq_prob=0.5):
        if not pair.is_random_next and pair.b_stop % 600:  # not a document's last chunk
            lengths[document].add(pair.b_stop - pair.a_start)
    for document_lengths in lengths.values():
        assert len(document_lengths) == 1
        num_short += document_lengths != {30}
    assert 12 < num_short < 48
    assert all(2 <= length <= 30 for document_lengths in lengths.values() for length in document_lengths)


def test_a_single_document_pairs_with_itself():
    corpus = make_corpus([[5, 6, 7, 8]])
    pairs = [pair for _, pair in draw(corpus, seeds=range(20))]
    assert any(pair.is_random_next for pair in pairs)
    assert all(0 <= pair.b_start < pair.b_stop <= 26 for pair in pairs)


def test_draws_depend_on_seed_duplicate_and_document_alone():
    corpus = random_corpus()

    def drawn(seed, duplicate, document):
        rng = document_generator(seed, duplicate, document)
        return list(draw_pairs(corpus, document, range(40), rng, max_seq_length=32, short_seq_prob=0.1))

    assert drawn(1, 0, 5) == drawn(1, 0, 5)
    assert len({str(drawn(*key)) for key in [(1, 0, 5), (2, 0, 5), (1, 1, 5), (11, 0, 5)]}) == 4


def test_tokens_are_cls_a_sep_b_sep_and_padding():
    corpus = make_corpus([[8], [8]])
    pairs = [Pair(0, 4, 10, 12, True, 0), Pair(3, 4, 4, 5, False, 0), Pair(0, 5, 12, 16, True, 0)]
    token_ids, lengths, first_lengths = build_tokens(corpus, np.array(pairs, np.int64), CLS, SEP, 12)
    assert token_ids.dtype == np.int32
    for row, pair in enumerate(pairs):
        a = list(range(100 + pair.a_start, 100 + pair.a_stop))
        b = list(range(100 + pair.b_start, 100 + pair.b_stop))
        expected = [CLS, *a, SEP, *b, SEP]
        assert token_ids[row].tolist() == expected + [0] * (12 - len(expected))
        assert (lengths[row], first_lengths[row]) == (len(expected), len(a) + 2)


def test_a_random_segment_costs_a_look_up():
    # Only what the search touches of a long document is read: no list of its sentences is made.
    corpus = make_corpus([[3], [1] * 100_000])
    touched = []

    class Watched(np.ndarray):
        def __getitem__(self, key):
            touched.append(key)
            return super().__getitem__(key)

    watched = Corpus(corpus.token_ids, corpus.sentence_starts.view(Watched), corpus.document_starts)
    (pair,) = draw_pairs(watched, 0, range(2), random.Random(0), max_seq_length=64, short_seq_prob=0.0)
    assert pair.b_stop - pair.b_start == 58
    assert len(touched) < 60
