#!/usr/bin/env bash
# Table 7 of the paper (Devlin et al. 2018), first rows: CoNLL-2003 named entities, the encoder fine-tuned.
#
#   DATA_DIR=conll2003 OUTPUT_DIR=runs/ner recipes/ner.sh
#   SCALE=laptop DATA_DIR=slices/wnut17 PRESET=path/to/minilm OUTPUT_DIR=runs/ner_laptop recipes/ner.sh
#
# DATA_DIR: eng.train, eng.testa, eng.testb as distributed (IOB1 is read); or train.conll, dev.conll, test.conll.
# What: the cased BERT-base, as much of the document around each sentence as fits (section 5.3), the best learning rate
#   on the dev set of those in appendix A.3 (RATES="5e-5 3e-5"). The paper averages five seeds: RESTARTS=5 trains each
#   rate so often, and metrics.json has the means. Without the documents users report 90 to 91.
# Cost: at most 1 hour on one Cloud TPU, or a few hours on a GPU (google-research/bert, README, of all the paper's
#   fine-tunings), for each rate. 12 GB hold batch 6 at length 512 (README): ACCUMULATION=8.
# Expected, dev set (paper, Table 7), entity F1:
#   base, fine-tuned  96.4
# Laptop: WNUT-17, sentence by sentence, 3 epochs; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/ner_files.sh"

need DATA_DIR "the folder with eng.train, eng.testa, eng.testb"
need OUTPUT_DIR "a folder to write to"
fine_tuning_device
find_conll "$DATA_DIR"
files=(--train_file="$TRAIN" --dev_file="$DEV")
[[ -n "$TEST" ]] && files+=(--test_file="$TEST" --do_predict)

if [[ "$SCALE" == laptop ]]; then
    need PRESET "a small preset's path or name"
    run bert-ner "${files[@]}" --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval \
        --train_batch_size=16 --learning_rate=5e-5 --num_train_epochs=3 --max_seq_length=128 \
        --optimizer=bert-2018 "${DEVICE[@]}" "$@"
    exit 0
fi

PRESET="${PRESET:-cased_L-12_H-768_A-12}"
rates="${RATES:-5e-5 3e-5 2e-5}"
run bert-ner "${files[@]}" --preset="$PRESET" --output_dir="$OUTPUT_DIR" --do_train --do_eval \
    --document_context=document --max_seq_length=512 --train_batch_size=32 --learning_rate="${rates// /,}" \
    --num_restarts="${RESTARTS:-1}" --num_train_epochs=4 --optimizer=bert-2018 "${DEVICE[@]}" "$@"
