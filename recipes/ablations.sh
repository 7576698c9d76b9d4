#!/usr/bin/env bash
# Table 5 of the paper (Devlin et al. 2018): the effects of next-sentence prediction and of bidirectionality.
#
#   TRAIN_TEXT=... HELD_OUT_TEXT=... GLUE_DIR=glue_data SQUAD_DIR=squad OUTPUT_DIR=runs/ablations recipes/ablations.sh
#   SCALE=laptop TRAIN_TEXT=... HELD_OUT_TEXT=... GLUE_DIR=slices SQUAD_DIR=slices/squad2 OUTPUT_DIR=... \
#       recipes/ablations.sh
#
# What: BERT-base pre-trained three times as in pretrain_base.sh (which describes the text): unchanged, without the
#   next-sentence task, and without it from left to right. Each is fine-tuned on four tasks of GLUE and SQuAD 1.1.
#   VARIANTS="no_nsp" runs only some of them.
# Differs from the paper in two points. For left to right the paper trains a plain language model. Here it is the masked
#   one, whose tokens attend only to their left; its classifiers pool the last token, which has seen the whole text,
#   instead of [CLS]. The row "+ BiLSTM" is missing.
# Cost: three times pretrain_base.sh's 4 days on 16 TPU chips (paper, appendix A.2), and the fine-tunings of glue.sh.
# Expected, dev sets (paper, Table 5):
#                     MNLI-m  QNLI  MRPC  SST-2  SQuAD F1
#   base              84.4    88.4  86.7  92.7   88.5
#   No NSP            83.9    84.9  86.5  92.6   87.9
#   LTR & No NSP      82.1    84.3  77.5  92.1   77.8
#   + BiLSTM          82.1    84.1  75.7  91.6   84.9
# Laptop: 2 layers of 128, 2,000 rows of SST-2, and SQuAD from SQUAD_DIR if it is set; README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pretraining.sh"
source "$(dirname "${BASH_SOURCE[0]}")/glue_tasks.sh"

pretraining_settings
need GLUE_DIR "the folder with GLUE's folders"
[[ "$SCALE" == laptop ]] || need SQUAD_DIR "the folder with train-v1.1.json and dev-v1.1.json"
ablation_hardware="$HARDWARE"
make_data "$OUTPUT_DIR/data"

# flags_of VARIANT: sets FLAGS to the flags of its pre-training.
flags_of() {
    case "$1" in
        base) FLAGS=() ;;
        no_nsp) FLAGS=(--nouse_next_sentence) ;;
        ltr_no_nsp) FLAGS=(--nouse_next_sentence --attention=left_to_right) ;;
        *) fail "VARIANTS: no variant is called $1. Expected some of: base no_nsp ltr_no_nsp." ;;
    esac
}

# fine_tune VARIANT: fine-tunes the pre-trained encoder in OUTPUT_DIR/VARIANT.
fine_tune() {
    local encoder="$OUTPUT_DIR/$1/phase2/preset" task
    if [[ "$HARDWARE" == tpu ]]; then HARDWARE=gpu; fi # Fine-tuning runs on GPUs.
    fine_tuning_device
    for task in ${TASKS:-$([[ "$SCALE" == laptop ]] && echo sst2 || echo mnli qnli mrpc sst2)}; do
        if [[ "$SCALE" == laptop ]]; then
            glue_laptop "$GLUE_DIR" "$task" "$encoder" "$OUTPUT_DIR/$1/$task" "${LAPTOP_ROWS:-2000}"
        else
            glue_full "$GLUE_DIR" "$task" "$encoder" "$OUTPUT_DIR/$1/$task"
        fi
    done
    if [[ -n "${SQUAD_DIR:-}" ]]; then
        DATA_DIR="$SQUAD_DIR" PRESET="$encoder" OUTPUT_DIR="$OUTPUT_DIR/$1/squad" HARDWARE="$HARDWARE" \
            SCALE="$SCALE" DRY_RUN="$DRY_RUN" bash "$(dirname "${BASH_SOURCE[0]}")/squad_1.1.sh" "${SQUAD_FLAGS[@]}"
    fi
    HARDWARE="$ablation_hardware"
}

ARCHITECTURE=(--preset=base) SQUAD_FLAGS=()
if [[ "$SCALE" == laptop ]]; then
    with_sizes 2 128 2
    # The laptop's encoder was trained on at most 64 tokens.
    SQUAD_FLAGS=(--max_seq_length=64 --doc_stride=32)
fi
for variant in ${VARIANTS:-base no_nsp ltr_no_nsp}; do
    flags_of "$variant"
    pretrain "$OUTPUT_DIR/data" "$OUTPUT_DIR/$variant" "${ARCHITECTURE[@]}" "${FLAGS[@]}" "$@"
    fine_tune "$variant"
done
