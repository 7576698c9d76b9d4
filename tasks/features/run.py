"""bert-features: extracts contextual embeddings from chosen layers of an encoder.

    bert-features --preset=base --input_file=texts.txt --layers=-1,-2,-3,-4 --output_file=features.npz
    bert-features --preset=hf://sentence-transformers/all-MiniLM-L6-v2 --input_file=texts.txt --pooling=mean \\
        --normalize --output_file=sentences.parquet
    bert-features --preset=base --input_file=train.conll --input_format=conll --output_file=words.jsonl

--input_file holds one text per line, with `a ||| b` for a pair; or, with --input_format=conll, one word per line and a
blank line between sentences. The extension of --output_file selects the format: .npz, .parquet (needs pyarrow) or
.jsonl (google-research/bert's). Besides the features, the file holds the string, id and character span of each token
and, for CoNLL input, the index of each word's first token. --pooling=mean averages over all real tokens, [CLS] and
[SEP] included, as in sentence-transformers. --output_dir, if given, receives metrics.json and flags.json.
"""

import dataclasses

from tasks import flags
from tasks.features.extraction import extract, output_path
from tasks.features.settings import FeatureSettings


def main(settings: FeatureSettings) -> None:
    results = extract(settings)
    if settings.output_dir:
        flags.write_flags(dataclasses.asdict(settings), settings.output_dir)
    if results["cut_rows"]:
        print(f"{results['cut_rows']} of {results['rows']} texts were cut to --max_seq_length tokens.")
    rows, tokens, speed = (results[name] for name in ("rows", "tokens", "tokens_per_second"))
    print(f"{rows} rows, {tokens} tokens, {speed:.0f} tokens/s: {output_path(settings)}")


console_main = flags.console_main(main, FeatureSettings)

if __name__ == "__main__":
    console_main()
