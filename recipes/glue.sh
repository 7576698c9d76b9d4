#!/usr/bin/env bash
# Table 1 of the paper (Devlin et al. 2018): GLUE, all nine tasks, and the file that gluebenchmark.com takes.
#
#   DATA_DIR=glue_data PRESET=base OUTPUT_DIR=runs/glue_base recipes/glue.sh
#   DATA_DIR=glue_data PRESET=large OUTPUT_DIR=runs/glue_large recipes/glue.sh
#   SCALE=laptop DATA_DIR=slices PRESET=path/to/minilm OUTPUT_DIR=runs/glue_laptop recipes/glue.sh
#
# DATA_DIR: GLUE's own folders (MNLI QQP QNLI SST-2 CoLA STS-B MRPC RTE WNLI, and diagnostic or AX); for the laptop
#   some of them, or sst2 cola rte stsb. TASKS="MRPC RTE" does some of the tasks only.
# What: batch 32, 3 epochs, the best of four learning rates on the dev set (section 4.1); BERT-large also five restarts
#   on the small sets, where single trainings fail. WNLI: the majority class, as the paper's submission.
# Cost: a training takes at most 1 hour on one Cloud TPU or a few hours on a GPU (google-research/bert, README), and
#   this makes four of each task. BERT-base fits into 12 GB at batch 32, length 128; BERT-large only at batch 6 (README,
#   "Out-of-memory issues"): ACCUMULATION=8 there. Estimate for one A100 (6 operations a weight and token, 950,000
#   rows x 3 epochs x 4 rates x 40 tokens, 30% of 312 TFLOPS): 1 h base, 3 h large without restarts, if batches fill it.
# Expected, test set (paper, Table 1; F1 for QQP and MRPC, Spearman for STS-B, Matthews for CoLA):
#            base         large
#   MNLI     84.6/83.4    86.7/85.9
#   QQP      71.2         72.1
#   QNLI     90.5         92.7
#   SST-2    93.5         94.9
#   CoLA     52.1         60.5
#   STS-B    85.8         86.5
#   MRPC     88.9         89.3
#   RTE      66.4         70.1
# Laptop: 8,000 rows of training at most (LAPTOP_ROWS), one rate of 5e-5, no test files; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/glue_tasks.sh"

need DATA_DIR "the folder with GLUE's folders"
need OUTPUT_DIR "a folder to write to"
need PRESET "base, large, or a preset's path"
fine_tuning_device

SMALL_TASKS=" cola stsb mrpc rte "

if [[ "$SCALE" == laptop ]]; then
    for task in ${TASKS:-sst2 cola rte stsb}; do
        glue_laptop "$DATA_DIR" "$task" "$PRESET" "$OUTPUT_DIR/$task" "${LAPTOP_ROWS:-8000}" "$@"
    done
    exit 0
fi

# restarts_of TASK: five seeds a rate for BERT-large on small sets, where the paper restarts too (section 4.1).
restarts_of() {
    if [[ "$PRESET" == *large* || "$PRESET" == *L-24* ]] && [[ "$SMALL_TASKS" == *" $1 "* ]]; then echo 5; else echo 1; fi
}

# predict_majority FILE: WNLI's dev set contradicts its training set; class 0 is the majority of training.
predict_majority() {
    need_path "$(glue_dir "$DATA_DIR" wnli)/test.tsv"
    [[ -n "$DRY_RUN" ]] && return
    mkdir -p "$(dirname "$1")"
    awk 'BEGIN { print "index\tprediction" } NR > 1 { print NR - 2 "\t0" }' "$(glue_dir "$DATA_DIR" wnli)/test.tsv" > "$1"
}

submission=()
for task in ${TASKS:-$ALL_GLUE_TASKS}; do
    output="$OUTPUT_DIR/$task"
    if [[ "$task" == wnli && -z "${TRAIN_WNLI:-}" ]]; then
        predict_majority "$output/WNLI.tsv"
    else
        glue_full "$DATA_DIR" "$task" "$PRESET" "$output" --num_restarts="$(restarts_of "$task")" --do_predict "$@"
    fi
    if [[ "$task" == mnli ]]; then
        diagnostic="$DATA_DIR/$([[ -d "$DATA_DIR/AX" ]] && echo AX || echo diagnostic)"
        run bert-classify --task_name=ax --data_dir="$diagnostic" --do_predict --output_dir="$output"
    fi
    submission+=("$output"/*.tsv)
done

if [[ -z "$DRY_RUN" ]]; then
    files=()
    for file in "${submission[@]}"; do
        case "$(basename "$file")" in
            AX.tsv | CoLA.tsv | MNLI-m.tsv | MNLI-mm.tsv | MRPC.tsv | QNLI.tsv | QQP.tsv | RTE.tsv | SST-2.tsv | STS-B.tsv | WNLI.tsv)
                files+=("$file")
                ;;
        esac
    done
    python -m zipfile -c "$OUTPUT_DIR/submission.zip" "${files[@]}"
    echo "$OUTPUT_DIR/submission.zip: ${#files[@]} files; GLUE takes 11."
fi
