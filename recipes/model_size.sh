#!/usr/bin/env bash
# Table 6 of the paper (Devlin et al. 2018): what the encoder's size is worth.
#
#   TRAIN_TEXT=... HELD_OUT_TEXT=... GLUE_DIR=glue_data OUTPUT_DIR=runs/model_size recipes/model_size.sh
#   SCALE=laptop TRAIN_TEXT=... HELD_OUT_TEXT=... GLUE_DIR=slices OUTPUT_DIR=runs/size_laptop recipes/model_size.sh
#
# What: encoders of six sizes, pre-trained as in pretrain_base.sh (which see for the text) and fine-tuned on MNLI, MRPC
#   and SST-2 from five seeds (section 5.2). SIZES="3:768:12" does some of them only: layers:width:heads.
# Cost: six pre-trainings; the fourth is pretrain_base.sh, the sixth pretrain_large.sh: 4 days each on 16 and 64 TPU
#   chips (paper, appendix A.2). Estimate for the others, by their numbers of weights: 0.4, 0.6, 0.6 and 1.7 times base.
# Expected: perplexity of masked tokens on held-out text (in phase2/metrics.json), dev accuracy (paper, Table 6):
#   L   H     A    perplexity  MNLI-m  MRPC  SST-2
#   3   768   12   5.84        77.9    79.8  88.4
#   6   768   3    5.24        80.6    82.2  90.7
#   6   768   12   4.68        81.9    84.8  91.3
#   12  768   12   3.99        84.4    86.7  92.9
#   12  1024  16   3.54        85.7    86.9  93.3
#   24  1024  16   3.23        86.6    87.8  93.7
# Laptop: three small sizes, 2,200 steps, 2,000 rows of SST-2; README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pretraining.sh"
source "$(dirname "${BASH_SOURCE[0]}")/glue_tasks.sh"

pretraining_settings
need GLUE_DIR "the folder with GLUE's folders"
size_hardware="$HARDWARE"
make_data "$OUTPUT_DIR/data"

sizes="3:768:12 6:768:3 6:768:12 12:768:12 12:1024:16 24:1024:16" tasks="mnli mrpc sst2"
if [[ "$SCALE" == laptop ]]; then sizes="2:64:2 2:128:2 4:128:2" tasks=sst2; fi

for size in ${SIZES:-$sizes}; do
    IFS=: read -r layers width heads <<< "$size"
    output="$OUTPUT_DIR/$layers-$width-$heads"
    HARDWARE="$size_hardware"
    with_sizes "$layers" "$width" "$heads"
    pretrain "$OUTPUT_DIR/data" "$output" "${ARCHITECTURE[@]}" "$@"
    if [[ "$HARDWARE" == tpu ]]; then HARDWARE=gpu; fi # Fine-tuning runs on GPUs.
    fine_tuning_device
    for task in ${TASKS:-$tasks}; do
        if [[ "$SCALE" == laptop ]]; then
            glue_laptop "$GLUE_DIR" "$task" "$output/phase2/preset" "$output/$task" "${LAPTOP_ROWS:-2000}"
        else
            glue_full "$GLUE_DIR" "$task" "$output/phase2/preset" "$output/$task" --num_restarts=5
        fi
    done
done
