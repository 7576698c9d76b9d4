#!/usr/bin/env bash
# Table 3 of the paper (Devlin et al. 2018): SQuAD 2.0, where some questions have no answer in the text.
#
#   DATA_DIR=squad PRESET=large OUTPUT_DIR=runs/squad_2.0 recipes/squad_2.0.sh
#   SCALE=laptop DATA_DIR=slices/squad2 PRESET=path/to/minilm OUTPUT_DIR=runs/squad2_laptop recipes/squad_2.0.sh
#
# DATA_DIR: train-v2.0.json and dev-v2.0.json; for the laptop train.json and dev.json.
# What: batch 48, 2 epochs, learning rate 5e-5 (section 4.3), windows of 384 tokens, 128 apart; the threshold of giving
#   no answer is searched on the dev set, as the paper does.
# Cost: not told for this table; SQuAD 1.1 took BERT-large about 30 minutes on one Cloud TPU (google-research/bert,
#   README). Estimate: the same, as 130,000 questions x 2 epochs stand against 88,000 x 3. ACCUMULATION=8 and more for
#   BERT-large on one GPU.
# Expected, dev set (paper, Table 3), exact match/F1:
#   large  78.7/81.9
# Laptop: windows of 256, batch 16, 2 epochs; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need DATA_DIR "the folder with train-v2.0.json and dev-v2.0.json"
need OUTPUT_DIR "a folder to write to"
need PRESET "large, base, or a preset's path"
fine_tuning_device

if [[ "$SCALE" == laptop ]]; then
    need_path "$DATA_DIR/train.json"
    run bert-squad --train_file="$DATA_DIR/train.json" --predict_file="$DATA_DIR/dev.json" --version_2_with_negative \
        --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval --do_predict --train_batch_size=8 \
        --learning_rate=1e-4 --num_train_epochs=2 --max_seq_length=256 --doc_stride=128 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
else
    need_path "$DATA_DIR/train-v2.0.json"
    run bert-squad --train_file="$DATA_DIR/train-v2.0.json" --predict_file="$DATA_DIR/dev-v2.0.json" \
        --version_2_with_negative --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval --do_predict \
        --train_batch_size=48 --learning_rate=5e-5 --num_train_epochs=2 --max_seq_length=384 --doc_stride=128 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
fi
