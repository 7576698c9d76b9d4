#!/usr/bin/env bash
# Chinese restaurant reviews, good or bad: vocabulary, encoder and classifier all from the same 8,000 rows.
#
#   DATA_DIR=waimai OUTPUT_DIR=runs/chinese recipes/chinese/run.sh
#   RANDOM_SEED=1 DATA_DIR=waimai OUTPUT_DIR=runs/chinese1 recipes/chinese/run.sh
#
# DATA_DIR: train.csv and dev.csv, columns label and review (waimai_10k, split 8,000 to 2,000).
# What: BERT's rules set every Chinese character apart, so that the vocabulary is the characters. Each review is a
#   document and each clause of it a sentence; half or more of the pairs join two reviews, and the masked-LM is trained
#   alone, on rows packed to 128 tokens, with masks drawn afresh each epoch. Then the encoder is fine-tuned on the rows.
# Held against: characters' n-grams and logistic regression on the same rows, benchmarks/n_gram_baseline.py.
# Cost and scores: README.md of recipes/.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

need DATA_DIR "the folder with train.csv and dev.csv"
need OUTPUT_DIR "a folder to write to"
RANDOM_SEED="${RANDOM_SEED:-12345}"
for part in train dev; do need_path "$DATA_DIR/$part.csv"; done
DATA="$OUTPUT_DIR/data"

# A sentence a line, cut after punctuation; a blank line after each review.
split_reviews() {
    mkdir -p "$DATA"
    python3 - "$DATA_DIR/train.csv" "$DATA/reviews.txt" << 'PYTHON'
import csv, re, sys

with open(sys.argv[1], encoding="utf-8", newline="") as table, open(sys.argv[2], "w", encoding="utf-8") as text:
    for row in csv.DictReader(table):
        clauses = re.findall(r"[^，。！？；,!?;～~…\s]+[，。！？；,!?;～~…\s]*", row["review"])
        text.write("".join(clause.strip() + "\n" for clause in clauses) + "\n")
PYTHON
}

[[ -n "$DRY_RUN" ]] || split_reviews
run bert-train-vocab --input_file="$DATA/reviews.txt" --vocab_file="$DATA/vocab.txt" --vocab_size=2048
run bert-create-pretraining-data --input_file="$DATA/reviews.txt" --output_file="$DATA/train.tfrecord" \
    --vocab_file="$DATA/vocab.txt" --max_seq_length=128 --dupe_factor=2 --random_seed="$RANDOM_SEED"
run bert-pretrain --input_file="$DATA/train.tfrecord" --vocab_file="$DATA/vocab.txt" \
    --bert_config_file="$(dirname "${BASH_SOURCE[0]}")/bert_config.json" --output_dir="$OUTPUT_DIR/pretrained" --do_train \
    --nouse_next_sentence --dynamic_masking --packing --max_seq_length=128 --train_batch_size=16 --optimizer=adamw \
    --learning_rate=1e-3 --num_train_steps=5000 --num_warmup_steps=250 --random_seed="$RANDOM_SEED"
run bert-classify --train_file="$DATA_DIR/train.csv" --dev_file="$DATA_DIR/dev.csv" --text_column=review \
    --label_column=label --preset="$OUTPUT_DIR/pretrained/preset" --output_dir="$OUTPUT_DIR/classifier" --do_train \
    --do_eval --max_seq_length=128 --optimizer=adamw --train_batch_size=32 --learning_rate=5e-4 --num_train_epochs=4 \
    --random_seed="$RANDOM_SEED" "$@"
