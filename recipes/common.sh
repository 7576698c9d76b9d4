# Functions and settings of all recipes, which source this file.
#
# Every recipe reads its paths from the environment:
#   DATA_DIR    the data, as described in the recipe
#   PRESET      encoder to start from: a name that keras_bert.list_presets() shows, hf://owner/name, or a path
#   OUTPUT_DIR  directory for all results; a stopped recipe continues there
#   SCALE       full (default): as in the paper; laptop: the same commands in minutes on a few CPU cores
#   HARDWARE    cpu, gpu (one), gpus (all of this machine) or, for pre-training, tpu (with TPU_NAME)
#   ACCUMULATION  number of parts in which a training batch is computed, to save memory (default 1)
#   DRY_RUN=1   prints the commands without running them
set -euo pipefail

SCALE="${SCALE:-full}"
DRY_RUN="${DRY_RUN:-}"
ACCUMULATION="${ACCUMULATION:-1}"

fail() {
    echo "$(basename "$0"): $1" >&2
    exit 2
}

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || fail "bash $BASH_VERSION is too old. Expected 4.4 or newer."

# need NAME "what it is": NAME must be set in the environment.
need() {
    [[ -n "${!1:-}" ]] || fail "the environment variable $1 is not set. Expected $2."
}

# need_path PATH: PATH must exist, unless DRY_RUN is set.
need_path() {
    [[ -n "$DRY_RUN" || -e "$1" ]] || fail "$1: no such file or directory. ${2:-Check DATA_DIR.}"
}

# one_of NAME VALUE...: the variable NAME must hold one of the values.
one_of() {
    local name="$1" value
    shift
    for value in "$@"; do
        [[ "${!name}" != "$value" ]] || return 0
    done
    fail "$name=${!name}: expected one of: $*."
}

run() {
    if [[ -n "$DRY_RUN" ]]; then
        printf '%q ' "$@"
        printf '\n'
    else
        echo "+ $*" >&2
        "$@"
    fi
}

# head_of FILE ROWS NAME: copies the header and the first rows of FILE to OUTPUT_DIR/slices/NAME, and sets SLICE.
head_of() {
    SLICE="$OUTPUT_DIR/slices/$3"
    need_path "$1"
    if [[ -z "$DRY_RUN" ]]; then
        mkdir -p "$(dirname "$SLICE")"
        # head would end the pipe early, which pipefail treats as an error.
        awk -v rows="$2" 'NR <= rows + 1' "$1" > "$SLICE"
    fi
}

# Sets DEVICE to the device flags of a fine-tuning command.
fine_tuning_device() {
    HARDWARE="${HARDWARE:-$([[ "$SCALE" == laptop ]] && echo cpu || echo gpu)}"
    one_of HARDWARE cpu gpu gpus
    DEVICE=(--gradient_accumulation_steps="$ACCUMULATION")
    case "$HARDWARE" in
        cpu) DEVICE+=(--num_gpus=0) ;;
        gpu) DEVICE+=(--mixed_precision=bfloat16) ;;
        gpus) DEVICE+=(--distribution_strategy=mirrored --mixed_precision=bfloat16) ;;
    esac
}

one_of SCALE full laptop
