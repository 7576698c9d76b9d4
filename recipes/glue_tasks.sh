# Fine-tuning one task of GLUE; sourced by glue.sh, ablations.sh and model_size.sh, after common.sh.

ALL_GLUE_TASKS="mnli qqp qnli sst2 cola stsb mrpc rte wnli"

# GLUE's own spellings, such as TASKS="SST-2 CoLA", become those above.
TASKS="$(tr -d '_-' <<< "${TASKS:-}" | tr '[:upper:]' '[:lower:]')"

# glue_dir ROOT TASK: the task's folder, GLUE's own name or the short one (as prepared slices have it).
glue_dir() {
    local official
    case "$2" in
        mnli | mnlim | mnlimm) official=MNLI ;; qqp) official=QQP ;; qnli) official=QNLI ;; sst2) official=SST-2 ;;
        cola) official=CoLA ;; stsb) official=STS-B ;; mrpc) official=MRPC ;; rte) official=RTE ;; wnli) official=WNLI ;;
        *) fail "$2: no task of GLUE. Expected some of: $ALL_GLUE_TASKS." ;;
    esac
    if [[ -d "$1/$2" && ! -d "$1/$official" ]]; then echo "$1/$2"; else echo "$1/$official"; fi
}

# glue_full ROOT TASK PRESET OUTPUT_DIR [FLAG...]: the paper's search over learning rates, best of the dev set.
glue_full() {
    local folder
    folder="$(glue_dir "$1" "$2")"
    need_path "$folder" "Expected GLUE's folders in $1."
    run bert-classify --task_name="$2" --data_dir="$folder" --preset="$3" --output_dir="$4" \
        --do_train --do_eval --train_batch_size=32 --learning_rate=5e-5,4e-5,3e-5,2e-5 --num_train_epochs=3 \
        --max_seq_length=128 --optimizer=bert-2018 "${DEVICE[@]}" "${@:5}"
}

# glue_laptop ROOT TASK PRESET OUTPUT_DIR ROWS [FLAG...]: one rate, the first ROWS rows of training.
glue_laptop() {
    local folder columns=(--task_name="$2") split=tsv
    folder="$(glue_dir "$1" "$2")"
    if [[ "$2" == stsb && -e "$folder/train.csv" ]]; then
        # The STS benchmark's three columns without a header, as the slices beside this project have them.
        split=csv
        columns=(--task_name=table --regression --column_names=sentence1,sentence2,score --text_column=sentence1
            --text_pair_column=sentence2 --label_column=score)
    fi
    head_of "$folder/train.$split" "$5" "$2/train.$split"
    run bert-classify "${columns[@]}" --train_file="$SLICE" --dev_file="$folder/dev.$split" --preset="$3" \
        --output_dir="$4" --do_train --do_eval --train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=3 \
        --max_seq_length=128 --optimizer=bert-2018 "${DEVICE[@]}" "${@:6}"
}
