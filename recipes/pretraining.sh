# Pre-training in two phases; sourced by pretrain_base.sh, pretrain_large.sh, ablations.sh and model_size.sh, after
# common.sh.
#
#   TRAIN_TEXT, HELD_OUT_TEXT  patterns of text files, e.g. 'text/train/*.txt': one sentence a line, a blank line
#                 between documents; or in the form set by INPUT_FORMAT and SENTENCE_SPLITTER
#   VOCAB_FILE    WordPiece vocabulary; default: one of 30,522 pieces is trained on TRAIN_TEXT
#   OPTIMIZER     bert-2018 (default): the paper's; lamb: batches of 4,096

pretraining_settings() {
    need TRAIN_TEXT "a pattern of text files to train on"
    need HELD_OUT_TEXT "a pattern of text files to evaluate on"
    need OUTPUT_DIR "a folder to write to"
    OPTIMIZER="${OPTIMIZER:-bert-2018}"
    one_of OPTIMIZER bert-2018 lamb
    if [[ "$SCALE" == laptop ]]; then _laptop_phases; else _full_phases; fi
    _pretraining_device
}

# For each phase: tokens, masked positions, steps, warm-up steps, peak learning rate.
_full_phases() {
    VOCAB_SIZE=30522 BATCH=256 SHARDS=100 DUPE_FACTOR=10
    # 90% of 1,000,000 steps at 128 tokens, then 512 (appendix A.2). In the paper one decay spans both phases, so that
    # the rate has decreased from 1e-4 to 1e-5 when the second begins. Its warm-up is our own, for the new optimizer.
    PHASE1=(128 20 900000 10000 1e-4)
    PHASE2=(512 77 100000 1000 1e-5)
    if [[ "$OPTIMIZER" == lamb ]]; then
        # You et al. 2019 (arXiv 1904.00962), Table 1: batch 4,096, 125,000 steps. Rate and warm-up by that paper's
        # rule, 5e-3 * sqrt(batch / 32768) and a share of batch / 32768 / 5, which was not checked against its text here.
        BATCH=4096
        PHASE1=(128 20 112500 2813 1.77e-3)
        PHASE2=(512 77 12500 313 1.77e-3)
    fi
}

_laptop_phases() {
    VOCAB_SIZE=4000 BATCH=64 SHARDS=2 DUPE_FACTOR=4
    # Sequences are short; laptop/run.sh explains why that helps a training of minutes.
    PHASE1=(32 5 2000 200 1e-3)
    PHASE2=(64 10 200 20 5e-4)
    if [[ "$OPTIMIZER" == lamb ]]; then
        PHASE1=(32 5 2000 200 5e-3)
        PHASE2=(64 10 200 20 2e-3)
    fi
}

# with_sizes LAYERS WIDTH HEADS: sets ARCHITECTURE to the flags of base with other sizes. The laptop uses
# laptop/bert_config.json, which has no dropout and wide initial weights.
with_sizes() {
    ARCHITECTURE=(--preset=base)
    if [[ "$SCALE" == laptop ]]; then
        ARCHITECTURE=(--bert_config_file="$(dirname "${BASH_SOURCE[0]}")/laptop/bert_config.json")
    fi
    ARCHITECTURE+=(--num_layers="$1" --hidden_dim="$2" --num_heads="$3" --intermediate_dim="$((4 * $2))")
}

_pretraining_device() {
    HARDWARE="${HARDWARE:-$([[ "$SCALE" == laptop ]] && echo cpu || echo gpus)}"
    one_of HARDWARE cpu gpu gpus tpu
    PRETRAINING_DEVICE=(--gradient_accumulation_steps="$ACCUMULATION")
    case "$HARDWARE" in
        cpu) PRETRAINING_DEVICE+=(--num_gpus=0) ;;
        gpu) PRETRAINING_DEVICE+=(--mixed_precision=bfloat16 --jit_compile) ;;
        gpus) PRETRAINING_DEVICE+=(--distribution_strategy=mirrored --mixed_precision=bfloat16 --jit_compile) ;;
        tpu)
            need TPU_NAME "the TPU's name or address"
            PRETRAINING_DEVICE+=(--distribution_strategy=tpu --tpu="$TPU_NAME" --mixed_precision=bfloat16)
            ;;
    esac
}

# make_data DIRECTORY: makes the vocabulary and the records of both phases, unless they exist.
make_data() {
    local phase name
    if [[ -z "${VOCAB_FILE:-}" ]]; then
        VOCAB_FILE="$1/vocab.txt"
        [[ -e "$VOCAB_FILE" ]] || run bert-train-vocab --input_file="$TRAIN_TEXT" --vocab_file="$VOCAB_FILE" \
            --vocab_size="$VOCAB_SIZE"
    fi
    for phase in "${PHASE1[0]} ${PHASE1[1]}" "${PHASE2[0]} ${PHASE2[1]}"; do
        # shellcheck disable=SC2086
        set -- "$1" $phase
        for name in train held_out; do
            _make_records "$1" "$name" "$2" "$3"
        done
    done
}

_make_records() { # DIRECTORY train|held_out LENGTH PREDICTIONS
    local text="$TRAIN_TEXT" shards="$SHARDS" dupes="$DUPE_FACTOR"
    if [[ "$2" == held_out ]]; then text="$HELD_OUT_TEXT" shards=1 dupes=1; fi
    if compgen -G "$1/$2_$3.tfrecord-*-of-*" > /dev/null; then return; fi
    run bert-create-pretraining-data --input_file="$text" --input_format="${INPUT_FORMAT:-sentences}" \
        --sentence_splitter="${SENTENCE_SPLITTER:-none}" --vocab_file="$VOCAB_FILE" \
        --output_file="$1/$2_$3.tfrecord" --num_shards="$shards" --max_seq_length="$3" \
        --max_predictions_per_seq="$4" --dupe_factor="$dupes"
}

# pretrain DATA OUTPUT_DIR FLAG...: both phases; FLAG: the architecture, and what else both take. The result is
# OUTPUT_DIR/phase2/preset.
pretrain() {
    local data="$1" output="$2" flag architecture=() others=()
    shift 2
    for flag in "$@"; do # Sizes are told once: the second phase has them from the first.
        case "$flag" in
            --preset=* | --bert_config_file=* | --num_layers=* | --num_heads=* | --hidden_dim=* | --intermediate_dim=* | --attention=*)
                architecture+=("$flag")
                ;;
            *) others+=("$flag") ;;
        esac
    done
    _phase "$data" "$output/phase1" "${PHASE1[@]}" "${architecture[@]}" "${others[@]}"
    _phase "$data" "$output/phase2" "${PHASE2[@]}" --init_checkpoint="$output/phase1/preset" "${others[@]}"
}

_phase() { # DATA OUTPUT_DIR LENGTH PREDICTIONS STEPS WARMUP RATE FLAG...
    run bert-pretrain --input_file="$1/train_$3.tfrecord-*-of-*" --eval_input_file="$1/held_out_$3.tfrecord-*-of-*" \
        --vocab_file="$VOCAB_FILE" --output_dir="$2" --do_train --do_eval --max_eval_steps=1000 \
        --max_seq_length="$3" --max_predictions_per_seq="$4" --train_batch_size="$BATCH" --num_train_steps="$5" \
        --num_warmup_steps="$6" --learning_rate="$7" --optimizer="$OPTIMIZER" "${PRETRAINING_DEVICE[@]}" "${@:8}"
}
