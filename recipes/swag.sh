#!/usr/bin/env bash
# Table 4 of the paper (Devlin et al. 2018): SWAG, the most plausible of four continuations.
#
#   DATA_DIR=swag PRESET=base OUTPUT_DIR=runs/swag recipes/swag.sh
#   SCALE=laptop DATA_DIR=swag PRESET=path/to/minilm OUTPUT_DIR=runs/swag_laptop recipes/swag.sh
#
# DATA_DIR: SWAG's own train.csv and val.csv; test.csv too, if there is one.
# What: batch 16, 3 epochs, learning rate 2e-5 (section 4.4).
# Cost: at most 1 hour on one Cloud TPU, or a few hours on a GPU (google-research/bert, README, of all the paper's
#   fine-tunings). A row is four sequences: batch 16 needs the memory of 64 of them; ACCUMULATION=4 on 12 GB.
# Expected, dev set (paper, Table 4), accuracy:
#   base   81.6
#   large  86.6
# Laptop: the first 1,000 rows of training and 500 of val.csv (LAPTOP_ROWS, LAPTOP_DEV_ROWS); README.md. Where SWAG is not
#   at hand, benchmarks/swag_rows.py makes rows from text.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need DATA_DIR "the folder with SWAG's train.csv and val.csv"
need OUTPUT_DIR "a folder to write to"
need PRESET "base, large, or a preset's path"
fine_tuning_device

if [[ "$SCALE" == laptop ]]; then
    head_of "$DATA_DIR/train.csv" "${LAPTOP_ROWS:-1000}" train.csv
    train="$SLICE"
    head_of "$DATA_DIR/val.csv" "${LAPTOP_DEV_ROWS:-500}" val.csv
    dev="$SLICE"
    run bert-swag --train_file="$train" --dev_file="$dev" --preset="$PRESET" --output_dir="$OUTPUT_DIR" \
        --do_train --do_eval --train_batch_size=16 --learning_rate=5e-5 --num_train_epochs=3 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
else
    need_path "$DATA_DIR/train.csv"
    predict=()
    [[ -e "$DATA_DIR/test.csv" ]] && predict=(--do_predict)
    run bert-swag --data_dir="$DATA_DIR" --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval \
        "${predict[@]}" --train_batch_size=16 --learning_rate=2e-5 --num_train_epochs=3 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
fi
