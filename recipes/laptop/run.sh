#!/usr/bin/env bash
# Pre-trains a small BERT, 4 layers of 256, in an hour or two on 2 cores, on text that is at hand.
#
#   CORPUS_DIR=corpus OUTPUT_DIR=runs/laptop recipes/laptop/run.sh
#   RANDOM_SEED=1 CORPUS_DIR=corpus OUTPUT_DIR=runs/laptop1 recipes/laptop/run.sh
#
# What: 12,000 steps of 32 sequences of 64 tokens with the quickstart's recipe: Muon, heads that begin by attending to
#   neighbors, a fifth of the tokens masked. The recorded run decayed the rate in one cycle, and sifted docstrings by other
#   rules; both are gone since.
#   CORPUS_DIR holds wikitext2-valid.txt (the validation part of WikiText-2, 60 articles) and the folders inaugural and
#   state_union (the presidents' addresses, a file each, as in NLTK's corpora of these names); the docstrings of all
#   installed packages are added. Held out are the articles whose number ends in 5, the addresses of years that end in 5,
#   and a tenth of the modules.
# Cost and scores, also of fine-tunings from it: README.md of recipes/, "Laptop".
# Why these settings: docs/benchmarks.md, "A small pre-training". Kernels start at a deviation of 1 / sqrt(256).
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

need CORPUS_DIR "a folder with wikitext2-valid.txt, inaugural/ and state_union/"
need OUTPUT_DIR "a folder to write to"
RANDOM_SEED="${RANDOM_SEED:-12345}"
for part in wikitext2-valid.txt inaugural state_union; do need_path "$CORPUS_DIR/$part" "Check CORPUS_DIR."; done
TEXT="$OUTPUT_DIR/text" DATA="$OUTPUT_DIR/data"

# Articles begin with a line " = Title = "; the file of an address begins with its year.
write_text() {
    rm -rf "$TEXT"
    mkdir -p "$TEXT/train" "$TEXT/held_out"
    awk -v train="$TEXT/train_articles.txt" -v held_out="$TEXT/held_out_articles.txt" \
        '/^ = [^=].* = *$/ { number++ } { print > (number % 10 == 5 ? held_out : train) }' \
        "$CORPUS_DIR/wikitext2-valid.txt"
    for file in "$CORPUS_DIR"/inaugural/*.txt "$CORPUS_DIR"/state_union/*.txt; do
        name="$(basename "$file")"
        part=train
        [[ "${name:3:1}" != 5 ]] || part=held_out
        cp "$file" "$TEXT/$part/$(basename "$(dirname "$file")")-$name"
    done
    python "$(dirname "${BASH_SOURCE[0]}")/docstrings.py" "$TEXT"
}

LENGTHS=(--max_seq_length=64 --max_predictions_per_seq=13)

make_records() { # train|held_out DUPE_FACTOR
    local settings=(--vocab_file="$DATA/vocab.txt" --dupe_factor="$2" --random_seed="$RANDOM_SEED" "${LENGTHS[@]}")
    run bert-create-pretraining-data --input_file="$TEXT/$1_docstrings.txt" \
        --output_file="$DATA/$1_docstrings.tfrecord" "${settings[@]}"
    settings+=(--sentence_splitter=sentencex)
    run bert-create-pretraining-data --input_file="$TEXT/$1_articles.txt" --input_format=wikitext \
        --output_file="$DATA/$1_articles.tfrecord" "${settings[@]}"
    run bert-create-pretraining-data --input_file="$TEXT/$1/*.txt" --input_format=document_per_file \
        --output_file="$DATA/$1_addresses.tfrecord" "${settings[@]}"
}

[[ -n "$DRY_RUN" || -e "$TEXT/held_out_docstrings.txt" ]] || write_text
run bert-train-vocab --input_file="$TEXT/train_*.txt,$TEXT/train/*.txt" --vocab_file="$DATA/vocab.txt" --vocab_size=8000
make_records train 2
make_records held_out 1
run bert-pretrain --input_file="$DATA/train_*.tfrecord" --eval_input_file="$DATA/held_out_*.tfrecord" \
    --vocab_file="$DATA/vocab.txt" --bert_config_file="$(dirname "${BASH_SOURCE[0]}")/bert_config.json" \
    --output_dir="$OUTPUT_DIR/pretrained" --do_train --do_eval "${LENGTHS[@]}" --train_batch_size=32 \
    --eval_batch_size=64 --optimizer=muon --learning_rate=3e-3 --adam_lr_ratio=0.75 \
    --initial_attention=neighbors --next_sentence_weight=0.3 --dynamic_masking --masked_lm_prob=0.2 \
    --num_train_steps=12000 --num_warmup_steps=1200 --save_checkpoints_steps=1000 --random_seed="$RANDOM_SEED" "$@"
