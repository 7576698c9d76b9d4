#!/usr/bin/env bash
# Table 2 of the paper (Devlin et al. 2018): SQuAD 1.1, questions whose answer is a part of the text.
#
#   DATA_DIR=squad PRESET=base OUTPUT_DIR=runs/squad_1.1 recipes/squad_1.1.sh
#   SCALE=laptop DATA_DIR=slices/squad2 PRESET=path/to/minilm OUTPUT_DIR=runs/squad_laptop recipes/squad_1.1.sh
#
# DATA_DIR: train-v1.1.json and dev-v1.1.json; for the laptop train.json and dev.json, 1.1 or 2.0 (the questions
#   without an answer are then left out, and counted).
# What: batch 32, 3 epochs, learning rate 5e-5 (section 4.2), windows of 384 tokens, 128 apart.
# Cost: about 30 minutes on one Cloud TPU for BERT-large (google-research/bert, README), a few hours on a GPU.
#   12 GB hold batch 12 of BERT-base at length 384, and none of BERT-large (README): ACCUMULATION=4 for base there.
# Expected, dev set (paper, Table 2, single model), exact match/F1:
#   base   80.8/88.5
#   large  84.1/90.9
#   google-research/bert's README, at batch 12, 3e-5, 2 epochs: base 81.2/88.4.
# Laptop: windows of 256, batch 16, 2 epochs; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need DATA_DIR "the folder with train-v1.1.json and dev-v1.1.json"
need OUTPUT_DIR "a folder to write to"
need PRESET "base, large, or a preset's path"
fine_tuning_device

if [[ "$SCALE" == laptop ]]; then
    need_path "$DATA_DIR/train.json"
    run bert-squad --train_file="$DATA_DIR/train.json" --predict_file="$DATA_DIR/dev.json" --bad_rows=skip \
        --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval --do_predict --train_batch_size=8 \
        --learning_rate=1e-4 --num_train_epochs=2 --max_seq_length=256 --doc_stride=128 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
else
    need_path "$DATA_DIR/train-v1.1.json"
    run bert-squad --train_file="$DATA_DIR/train-v1.1.json" --predict_file="$DATA_DIR/dev-v1.1.json" \
        --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval --do_predict --train_batch_size=32 \
        --learning_rate=5e-5 --num_train_epochs=3 --max_seq_length=384 --doc_stride=128 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
fi
