"""google-research/bert's run_squad.py derived a second time for tests: character by character, list by list, slow.

It shares nothing with `tasks.squad`, nor with our tokenizers.
"""

import math
from typing import NamedTuple

from tokenizer_reference import reference_ids, reference_words


class Window(NamedTuple):
    """Token ids of one window; what is said of positions has a key for each position in the context."""

    ids: list[int]
    segments: list[int]
    word_at: dict[int, int]
    is_best_at: dict[int, bool]
    answer: tuple[int, int]


def words_of(context):
    """The words of a context, and for each character how many words have started up to it."""
    words, counts, was_blank = [], [], True
    for char in context:
        is_blank = char in (" ", "\t", "\r", "\n") or ord(char) == 0x202F
        if not is_blank and was_blank:
            words.append("")
        if not is_blank:
            words[-1] += char
        was_blank = is_blank
        counts.append(len(words))
    return words, counts


def windows_of(question, ids, lowercase, sequence_length, doc_stride, max_query_length, gold=None):
    """The windows of one question. `ids`: piece -> id. `gold`: (text, first character) of the answer."""

    def tokenize(text):
        return reference_ids(text, ids, lowercase)

    words, counts = words_of(question.context)
    tokens, token_words = [], []
    for number, word in enumerate(words):
        for token in tokenize(word):
            tokens.append(token)
            token_words.append(number)
    query = tokenize(question.question)[:max_query_length]
    room = sequence_length - len(query) - 3
    pieces = []
    start = 0
    while tokens:
        pieces.append((start, min(start + room, len(tokens))))
        if pieces[-1][1] == len(tokens):
            break
        start += min(room, doc_stride)
    span = gold_span(tokens, token_words, counts, tokenize, *gold) if gold else None
    return [window_of(ids, query, tokens, token_words, pieces, number, span) for number in range(len(pieces))]


def gold_span(tokens, token_words, counts, tokenize, text, start):
    """First and last token of the answer: those of its words, or of the answer itself if it is among them."""
    first_word, last_word = counts[start] - 1, counts[start + len(text) - 1] - 1
    inside = [place for place, word in enumerate(token_words) if first_word <= word <= last_word]
    first, last = inside[0], inside[-1]
    wanted = tokenize(text)
    for begin in range(first, last + 1):
        for end in range(last, begin - 1, -1):
            if tokens[begin : end + 1] == wanted:
                return begin, end
    return first, last


def window_of(ids, query, tokens, token_words, pieces, number, span):
    start, end = pieces[number]
    row = [ids["[CLS]"], *query, ids["[SEP]"]]
    shift = len(row) - start
    row += [*tokens[start:end], ids["[SEP]"]]
    segments = [0] * (len(query) + 2) + [1] * (end - start + 1)
    word_at = {place + shift: token_words[place] for place in range(start, end)}
    is_best_at = {place + shift: best_piece(pieces, place) == number for place in range(start, end)}
    answer = (0, 0)
    if span and start <= span[0] and span[1] < end:
        answer = (span[0] + shift, span[1] + shift)
    return Window(row, segments, word_at, is_best_at, answer)


def best_piece(pieces, place):
    scores = {}
    for number, (start, end) in enumerate(pieces):
        if start <= place < end:
            scores[number] = min(place - start, end - 1 - place) + 0.01 * (end - start)
    return next(number for number in scores if scores[number] == max(scores.values()))


def original_part(predicted, original, lowercase):
    """The part of `original` that became `predicted`; all of it where that cannot be told."""
    normalized = " ".join(reference_words(original, lowercase))
    if predicted not in normalized or not predicted:
        return original
    start = normalized.index(predicted)
    from_normalized = [place for place in range(len(normalized)) if normalized[place] != " "]
    to_original = [place for place in range(len(original)) if original[place] != " "]
    if len(from_normalized) != len(to_original):
        return original
    aligned = dict(zip(from_normalized, to_original, strict=True))
    return original[aligned[start] : aligned[start + len(predicted) - 1] + 1]


def answers_of(context, windows, logits, vocabulary, lowercase, n_best_size, max_answer_length, may_be_null, threshold):
    """(prediction, n-best as (text, probability, start logit, end logit), null odds) of one question.

    `logits`: (start logits, end logits) of each window, lists of float.
    """
    words, _ = words_of(context)
    spans = []
    for window, (starts, ends) in zip(windows, logits, strict=True):
        for start in sorted(highest(starts, n_best_size)):
            for end in sorted(highest(ends, n_best_size)):
                if (
                    window.is_best_at.get(start, False)
                    and end in window.word_at
                    and 0 <= end - start < max_answer_length
                ):
                    spans.append((starts[start], ends[end], window, start, end))
    null = None
    if may_be_null:
        null = min(((starts[0], ends[0]) for starts, ends in logits), key=sum)
        spans.append((*null, None, 0, 0))
    spans = settled(spans)
    best = []
    for start_logit, end_logit, window, start, end in spans:
        text = ""
        if window is not None:
            pieces = " ".join(vocabulary[number] for number in window.ids[start : end + 1])
            original = " ".join(words[window.word_at[start] : window.word_at[end] + 1])
            predicted = " ".join(pieces.replace(" ##", "").replace("##", "").split())
            text = original_part(predicted, original, lowercase)
        if len(best) < n_best_size and text not in [entry[0] for entry in best]:
            best.append((text, start_logit, end_logit))
    if may_be_null and "" not in [entry[0] for entry in best]:
        best.append(("", *null))
    weights = [math.exp(entry[1] + entry[2] - best[0][1] - best[0][2]) for entry in best]
    listed = [(text, weight / sum(weights), *pair) for (text, *pair), weight in zip(best, weights, strict=True)]
    if not may_be_null:
        return best[0][0], listed, None
    text, start_logit, end_logit = next(entry for entry in best if entry[0])
    odds = sum(null) - start_logit - end_logit
    return ("" if odds > threshold else text), listed, odds


def settled(spans):
    """The spans, the best first. Not Google's: a run of sums that differ by 1e-4 at most keeps the windows' order."""
    ordered = sorted(range(len(spans)), key=lambda number: -(spans[number][0] + spans[number][1]))
    runs, previous = [], None
    for number in ordered:
        total = spans[number][0] + spans[number][1]
        if previous is None or previous - total > 1e-4:
            runs.append([])
        runs[-1].append(number)
        previous = total
    return [spans[number] for run in runs for number in sorted(run)]


def highest(values, count):
    return sorted(range(len(values)), key=lambda place: -values[place])[:count]
