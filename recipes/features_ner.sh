#!/usr/bin/env bash
# Table 7 of the paper (Devlin et al. 2018), other rows: CoNLL-2003 by a BiLSTM on features of a frozen encoder.
#
#   DATA_DIR=conll2003 OUTPUT_DIR=runs/features_ner recipes/features_ner.sh
#   SCALE=laptop DATA_DIR=slices/wnut17 PRESET=path/to/minilm OUTPUT_DIR=runs/features_laptop recipes/features_ner.sh
#
# DATA_DIR: as for ner.sh. ROWS="last concat_last_four" does some of the rows only.
# What: the cased BERT-base without any training, its layers into a two-layer BiLSTM of 768 units (section 5.3).
# Cost: no figure in the paper. Estimate: the encoder runs once over 300,000 words, minutes on any GPU, and the BiLSTM
#   some minutes a row; disk for the features, in float32: 3 KB a word and layer, 11 GB for all twelve.
# Expected, dev set (paper, Table 7), entity F1:
#   embeddings                91.0
#   second_to_last            95.6
#   last                      94.9
#   weighted_sum_last_four    95.9
#   concat_last_four          96.1
#   weighted_sum_all          95.5
# Laptop: WNUT-17, a BiLSTM of 128 units; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/ner_files.sh"

need DATA_DIR "the folder with eng.train, eng.testa, eng.testb"
need OUTPUT_DIR "a folder to write to"
fine_tuning_device
find_conll "$DATA_DIR"

# layers_of ROW: sets LAYERS, the flags of a row of the table.
layers_of() {
    case "$1" in
        embeddings) LAYERS=(--layers=embeddings) ;;
        second_to_last) LAYERS=(--layers=-2) ;;
        last) LAYERS=(--layers=-1) ;;
        weighted_sum_last_four) LAYERS=(--layers=-1,-2,-3,-4 --combine=weighted_sum) ;;
        concat_last_four) LAYERS=(--layers=-1,-2,-3,-4 --combine=concatenate) ;;
        weighted_sum_all) LAYERS=(--layers=all --combine=weighted_sum) ;;
        *) fail "ROWS: no row of Table 7 is called $1." ;;
    esac
}

settings=(--document_context=document --max_seq_length=512 --lstm_units=768 --lstm_layers=2)
rows="embeddings second_to_last last weighted_sum_last_four concat_last_four weighted_sum_all"
if [[ "$SCALE" == laptop ]]; then
    need PRESET "a small preset's path or name"
    settings=(--max_seq_length=128 --lstm_units=128 --lstm_layers=2)
    rows="embeddings last concat_last_four"
fi
files=(--train_file="$TRAIN" --dev_file="$DEV")
[[ -n "$TEST" ]] && files+=(--test_file="$TEST" --do_predict)

for row in ${ROWS:-$rows}; do
    layers_of "$row"
    run bert-ner --encoder=frozen --preset="${PRESET:-cased_L-12_H-768_A-12}" "${files[@]}" "${LAYERS[@]}" \
        --output_dir="$OUTPUT_DIR/$row" --do_train --do_eval "${settings[@]}" --train_batch_size=32 \
        --num_train_epochs=10 "${DEVICE[@]}" "$@"
done
[[ -n "$DRY_RUN" ]] || grep -H '"f1":' "$OUTPUT_DIR"/*/metrics.json
