// How each kind of answer is shown: `(instance, prediction, description) -> nodes`. An instance is what was asked, a
// prediction what the model gave for it.
"use strict";

const SHOW = {
  labels(instance, prediction, description) {
    const values = prediction.probabilities;
    return [
      headline(textOf(prediction.label), percent(prediction.score)),
      ...bars(classesOf(prediction, description), {best: values.indexOf(Math.max(...values)), sorted: true}),
    ];
  },

  labelSet(instance, prediction, description) {
    const given = prediction.labels.slice(0, prediction.num_labels).map(textOf);
    return [headline(given.join(", ") || "No label"), ...bars(classesOf(prediction, description), {sorted: true})];
  },

  number(instance, prediction) {
    return [headline(decimal(typeof prediction === "number" ? prediction : prediction.score))];
  },

  choices(instance, prediction) {
    const entries = instance.choices.map((choice, index) => [choice, prediction.probabilities[index]]);
    return [headline(textOf(prediction.choice_text), percent(prediction.score)), ...bars(entries, {best: prediction.choice})];
  },

  entities(instance, prediction) {
    const count = prediction.num_entities;
    const types = [...new Set(prediction.types.slice(0, count).map(textOf))].sort();
    const found = Array.from({length: count}, (_, index) => ({
      start: prediction.starts[index], end: prediction.ends[index], score: prediction.scores[index],
      type: textOf(prediction.types[index]), text: textOf(prediction.entities[index]),
    }));
    for (const entity of found) entity.className = `type-${types.indexOf(entity.type) % 6}`;
    const parts = [headline(count === 1 ? "1 entity" : `${count} entities`), passage(instance.text, found)];
    if (prediction.truncated) parts.push(paragraph("error", "The text is longer than the model reads: its end was cut off."));
    if (count) {
      const rows = found.map(one => [one.text, one.type, percent(one.score), `${one.start}–${one.end}`]);
      parts.push(table(["Entity", "Type", "Score", "Characters"], rows));
    }
    return parts;
  },

  words(instance, prediction) {
    const count = prediction.num_words;
    const rows = Array.from({length: count}, (_, index) => [textOf(prediction.words[index]), prediction.scores[index]]);
    const parts = [headline(count === 1 ? "1 word" : `${count} words`), table(["Word", "Number"], rows)];
    if (prediction.truncated) parts.push(paragraph("error", "The text is longer than the model reads: its end was cut off."));
    return parts;
  },

  shares(instance, prediction) {
    const shares = prediction.shares.slice(0, prediction.num_words), most = Math.max(...shares.map(Math.abs), 1e-12);
    const spans = shares.map((share, index) => ({
      start: prediction.starts[index], end: prediction.ends[index], text: (prediction.texts || [])[index] || 0, share,
      className: (share > 0 ? "for" : "against") + (Math.abs(share) < most / 3 ? " weak" : ""),
      title: (share > 0 ? "+" : "−") + decimal(Math.abs(share)),
    })).filter(({share}) => Math.abs(share) > most / 10);
    const texts = [instance.text, instance.text_pair].filter(text => text !== undefined);
    const explained = prediction.label === undefined ? "a higher number" : textOf(prediction.label);
    return [
      paragraph("", make("mark", {className: "for"}, "These words"), ` speak for ${explained}, `,
        make("mark", {className: "against"}, "these"), " against it, underlined ones less. Point at a word for its share."),
      ...texts.map((text, number) => passage(text, spans.filter(span => span.text === number))),
    ];
  },

  answer(instance, prediction) {
    const answer = textOf(prediction.answer);
    const none = answer === "";
    const span = {start: prediction.start, end: prediction.end};
    const parts = [headline(none ? "No answer in the context" : answer), passage(instance.context, none ? [] : [span])];
    const answers = (prediction.nbest_answers || []).map(textOf);
    const entries = answers.map((text, index) => [text || "(no answer)", prediction.nbest_probabilities[index]]);
    const shown = entries.filter(([, probability]) => probability > 0);
    if (shown.length) {
      const best = shown.findIndex(([text]) => text === (answer || "(no answer)"));
      parts.push(make("h2", {}, "Best answers"), ...bars(shown, {best, limit: 5, label: "Best answers"}));
    }
    const scores = [["score", prediction.score], ["null score", prediction.null_score]];
    const known = scores.filter(([, value]) => value !== undefined);
    parts.push(paragraph("soft", known.map(([name, value]) => `${name} ${decimal(value)}`).join(", ")));
    return parts;
  },

  masks(instance, prediction) {
    const count = prediction.num_masks ?? prediction.positions.length;
    const pieces = Array.from(instance.text);
    const size = "[MASK]".length;
    const box = make("div", {className: "passage", dir: "auto", tabIndex: 0, role: "group", "aria-label": "Text, filled in"});
    const parts = [];
    let position = 0;
    for (let mask = 0; mask < count; mask++) {
      const tokens = prediction.tokens[mask].map(textOf);
      const start = prediction.positions[mask];
      box.append(slice(pieces, position, start), make("mark", {className: `type-${mask % 6}`}, tokens[0]));
      position = start + size;
      const entries = tokens.map((token, index) => [token, prediction.probabilities[mask][index]]);
      parts.push(make("h2", {}, count === 1 ? "Candidates" : `Candidates for mask ${mask + 1}`));
      parts.push(...bars(entries, {best: 0, label: `Candidates for mask ${mask + 1}`}));
    }
    box.append(slice(pieces, position));
    if (!count) return [paragraph("error", "There is no [MASK] in the text: write it where a word is to be found.")];
    return [headline("Filled in"), box, ...parts];
  },

  passages(instance, prediction) {
    const found = prediction.passages.map((text, index) => [textOf(text), prediction.scores[index]]);
    // Short words, such as "is" and "a", are everywhere.
    const longer = wordsOf(instance.text ?? instance).filter(word => word.length > 2 || /[^\x00-\x7f]/.test(word));
    const asked = new Set(longer.map(word => word.toLowerCase()));
    const parts = [headline(found.length === 1 ? "1 passage" : `${found.length} passages`)];
    found.forEach(([text, score], index) => {
      parts.push(make("h2", {}, `${index + 1}. `, make("span", {className: "soft"}, decimal(score))));
      parts.push(passage(text, spansOf(text, asked)));
    });
    return parts;
  },

  vectors(instance, prediction) {
    const vectors = Object.entries(prediction).filter(([, value]) => Array.isArray(value) && value.length);
    const named = Array.isArray(prediction) ? [["embedding", prediction]] : vectors;
    const rows = named.map(([name, values]) =>
      [name, values.length, Math.hypot(...values), Math.min(...values), Math.max(...values)]);
    const parts = [headline(named.length === 1 ? "1 vector of the text" : `${named.length} vectors of the text`)];
    parts.push(table(["Vector", "Size", "Norm", "Least", "Greatest"], rows));
    for (const [name, values] of named) {
      parts.push(make("h2", {}, name), drawing(values, `The ${values.length} values of ${name}`));
      parts.push(paragraph("soft", values.slice(0, 6).map(decimal).join(", ") + (values.length > 6 ? ", …" : "")));
    }
    return parts;
  },
};

// The name and the probability of each class.
function classesOf(prediction, description) {
  const labels = Array.isArray(description.labels) ? description.labels : [];
  return prediction.probabilities.map((value, index) => [String(labels[index] ?? `class ${index}`), value]);
}

function headline(text, note) {
  const parts = [make("span", {dir: "auto"}, text)];
  if (note) parts.push(" ", make("span", {className: "soft"}, note));
  return paragraph("headline", ...parts);
}

function wordsOf(text) {
  return String(text).match(/[\p{L}\p{N}]+/gu) || [];
}

// The places, in characters, of a text's words that are among those asked for.
function spansOf(text, asked) {
  const found = [];
  for (const match of text.matchAll(/[\p{L}\p{N}]+/gu)) {
    if (!asked.has(match[0].toLowerCase())) continue;
    const start = Array.from(text.slice(0, match.index)).length;
    found.push({start, end: start + Array.from(match[0]).length});
  }
  return found;
}

// The kind of answer that a signature gives, told by its names; null for one of another kind.
function kindOf(signature) {
  const inputs = Object.keys(signature.inputs), outputs = Object.keys(signature.outputs);
  const has = (...names) => names.every(name => inputs.includes(name) || outputs.includes(name));
  if (has("question", "context", "answer")) return "answer";
  if (has("text", "choices", "choice")) return "choices";
  if (has("text", "entities", "starts", "num_entities")) return "entities";
  if (has("text", "words", "scores", "num_words")) return "words";
  if (has("text", "words", "shares", "num_words")) return "shares";
  if (has("text", "tokens", "positions")) return "masks";
  if (has("text", "label", "probabilities")) return "labels";
  if (has("text", "labels", "num_labels", "probabilities")) return "labelSet";
  if (has("text", "passages", "scores")) return "passages";
  if (has("text", "embedding")) return "vectors";
  if (has("text", "mean") || has("text", "cls") || has("text", "pooled")) return "vectors";
  return has("text", "score") && outputs.length === 1 ? "number" : null;
}

// The nodes that show an answer; one of an unknown or unexpected form is shown as it came.
function answerNodes(kind, instance, prediction, description) {
  if (kind !== null) {
    try {
      return SHOW[kind](instance, prediction, description);
    } catch (error) {
      console.warn("An answer of an unexpected form:", error.message);
    }
  }
  return [headline("Answer"), make("pre", {tabIndex: 0}, JSON.stringify(prediction, null, 2))];
}
