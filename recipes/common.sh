# What the recipes share: sourced by them, not run by itself.
#
# Every recipe reads its paths from the environment:
#   DATA_DIR    the data, as the recipe's own text says
#   PRESET      encoder to start from: a name that keras_bert.list_presets() shows, hf://owner/name, or a path
#   OUTPUT_DIR  where everything is written; a recipe that was stopped continues there
#   SCALE       full (default): the paper's; laptop: the same commands, cut to minutes on a few CPU cores
#   HARDWARE    cpu, gpu (one), gpus (all of this machine) or, for pre-training, tpu (with TPU_NAME)
#   ACCUMULATION  parts that a training batch is computed in, to save memory (default 1)
#   DRY_RUN=1   prints the commands and runs none
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

# need_path PATH: it must exist, unless nothing is run.
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

# head_of FILE ROWS NAME: the first rows of a file, with its first line, as OUTPUT_DIR/slices/NAME; sets SLICE.
head_of() {
    SLICE="$OUTPUT_DIR/slices/$3"
    need_path "$1"
    if [[ -z "$DRY_RUN" ]]; then
        mkdir -p "$(dirname "$SLICE")"
        # Not head: it would end the pipe early, which pipefail takes for an error.
        awk -v rows="$2" 'NR <= rows + 1' "$1" > "$SLICE"
    fi
}

# Sets DEVICE, the flags of a fine-tuning command.
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
