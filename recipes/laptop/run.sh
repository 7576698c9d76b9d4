#!/usr/bin/env bash
# Pre-trains a small BERT, 4 layers of 256, on 4 MB of text, while you wait.
#
#   CORPUS_DIR=corpus OUTPUT_DIR=runs/laptop recipes/laptop/run.sh
#   RANDOM_SEED=1 CORPUS_DIR=corpus OUTPUT_DIR=runs/laptop1 recipes/laptop/run.sh
#
# What: 2,000 steps of 64 sequences of 32 tokens, masks drawn afresh each epoch, AdamW at 5e-4. CORPUS_DIR holds
#   wikitext2-valid.txt (the validation part of WikiText-2, 60 articles) and the folders inaugural and state_union (the
#   presidents' addresses, a file each, as in NLTK's corpora of these names). Held out are the articles whose number ends
#   in 5, and the addresses of years that end in 5.
# Cost and scores: README.md of recipes/, "Laptop": measured, in three seeds.
# Why these settings: short sequences, a small vocabulary and a low rate leave the plateau of word frequencies within 500
#   steps. With 64 tokens, 8,000 pieces and 1e-3 the model still rests on it after 2,000 steps (held-out accuracy 13.6%),
#   with 32 tokens, 4,000 pieces and 2e-3 too (4.7% after 1,000). Kernels start at a deviation of 1 / sqrt(256).
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

need CORPUS_DIR "a folder with wikitext2-valid.txt, inaugural/ and state_union/"
need OUTPUT_DIR "a folder to write to"
RANDOM_SEED="${RANDOM_SEED:-12345}"
for part in wikitext2-valid.txt inaugural state_union; do need_path "$CORPUS_DIR/$part" "Check CORPUS_DIR."; done
TEXT="$OUTPUT_DIR/text" DATA="$OUTPUT_DIR/data"

# Articles begin with a line " = Title = "; the file of an address begins with its year.
split_text() {
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
}

make_records() { # train|held_out DUPE_FACTOR
    local settings=(--vocab_file="$DATA/vocab.txt" --sentence_splitter=sentencex --max_seq_length=32
        --max_predictions_per_seq=5 --dupe_factor="$2" --random_seed="$RANDOM_SEED")
    run bert-create-pretraining-data --input_file="$TEXT/$1_articles.txt" --input_format=wikitext \
        --output_file="$DATA/$1_articles.tfrecord" "${settings[@]}"
    run bert-create-pretraining-data --input_file="$TEXT/$1/*.txt" --input_format=document_per_file \
        --output_file="$DATA/$1_addresses.tfrecord" "${settings[@]}"
}

[[ -n "$DRY_RUN" ]] || split_text
run bert-train-vocab --input_file="$TEXT/train_articles.txt,$TEXT/train/*.txt" --vocab_file="$DATA/vocab.txt" \
    --vocab_size=4000
make_records train 4
make_records held_out 1
run bert-pretrain --input_file="$DATA/train_*.tfrecord" --eval_input_file="$DATA/held_out_*.tfrecord" \
    --vocab_file="$DATA/vocab.txt" --bert_config_file="$(dirname "${BASH_SOURCE[0]}")/bert_config.json" \
    --output_dir="$OUTPUT_DIR/pretrained" --do_train --do_eval --dynamic_masking --max_seq_length=32 \
    --max_predictions_per_seq=5 --train_batch_size=64 --eval_batch_size=64 --optimizer=adamw --learning_rate=5e-4 \
    --num_train_steps=2000 --num_warmup_steps=200 --save_checkpoints_steps=500 --random_seed="$RANDOM_SEED" "$@"
