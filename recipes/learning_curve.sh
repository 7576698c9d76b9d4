#!/usr/bin/env bash
# What pre-training is worth: accuracy over the number of labelled rows, from pre-trained weights and from random ones.
#
#   DATA_DIR=glue_data/SST-2 PRESET=base OUTPUT_DIR=runs/curve recipes/learning_curve.sh
#   SCALE=laptop DATA_DIR=runs/quickstart/corpus PRESET=runs/quickstart/pretrained/preset OUTPUT_DIR=runs/curve \
#       recipes/learning_curve.sh
#
# DATA_DIR: train.tsv and dev.tsv with the columns sentence and label. `bert-quickstart --rows_per_label=250` writes such
#   files with 250 training rows of each label.
# What: for each number in SIZES the first rows of each label are taken, and fine-tuned from both starts with several
#   seeds: 3 epochs, and no less than 100 steps of 32, since random weights leave chance behind no earlier. Prints mean and
#   range over the seeds, and draws them to OUTPUT_DIR/learning_curve.png, for which matplotlib must be installed.
# Cost: minutes for each training on a GPU (estimate).
# Expected: no table of the paper; the gain is largest where rows are few.
# Laptop: 3 seeds of 64 tokens at 1e-3, for a small model. Its figures: README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

need DATA_DIR "the folder with train.tsv and dev.tsv"
need PRESET "the pre-trained encoder"
need OUTPUT_DIR "a folder to write to"
for part in train dev; do need_path "$DATA_DIR/$part.tsv"; done
fine_tuning_device
if [[ "$SCALE" == laptop ]]; then
    SIZES="${SIZES:-16 64 250}" SETTINGS=(--max_seq_length=64 --learning_rate=1e-3 --num_restarts=3)
else
    SIZES="${SIZES:-16 64 256 1024}" SETTINGS=(--max_seq_length=128 --learning_rate=2e-5 --num_restarts=5)
fi

# slice SIZE: copies the first SIZE rows of each label to OUTPUT_DIR/slices/train_SIZE.tsv, and sets EPOCHS.
slice() {
    local file="$OUTPUT_DIR/slices/train_$1.tsv" rows="$1"
    if [[ -z "$DRY_RUN" ]]; then
        mkdir -p "$OUTPUT_DIR/slices"
        awk -F '\t' -v size="$1" \
            'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "label") column = i; print; next } ++seen[$column] <= size' \
            "$DATA_DIR/train.tsv" > "$file"
        rows=$(($(wc -l < "$file") - 1))
    fi
    EPOCHS=$(((100 * 32 + rows - 1) / rows))
    ((EPOCHS >= 3)) || EPOCHS=3
}

for size in $SIZES; do
    slice "$size"
    for start in pretrained random; do
        weights=(--load_weights)
        [[ "$start" == pretrained ]] || weights=(--noload_weights)
        run bert-classify --train_file="$OUTPUT_DIR/slices/train_$size.tsv" --dev_file="$DATA_DIR/dev.tsv" \
            --text_column=sentence --label_column=label --preset="$PRESET" "${weights[@]}" --do_train --do_eval \
            --output_dir="$OUTPUT_DIR/$start/$size" --optimizer=adamw --train_batch_size=32 \
            --num_train_epochs="$EPOCHS" "${SETTINGS[@]}" "${DEVICE[@]}" "$@"
    done
done
# shellcheck disable=SC2086
[[ -n "$DRY_RUN" ]] || python - "$OUTPUT_DIR" $SIZES << 'PYTHON'
import json, os, statistics, sys

directory, *sizes = sys.argv[1:]
curves = {"pretrained": "from pre-training", "random": "from random weights"}
scores = {}
for start in curves:
    for size in sizes:
        with open(os.path.join(directory, start, size, "sweep", "sweep.json"), encoding="utf-8") as file:
            scores[start, size] = [100 * run["metrics"]["accuracy"] for run in json.load(file)["runs"]]

def spread(values, form):
    return f"{statistics.fmean(values):{form}} ({min(values):{form}} to {max(values):{form}})"

print("| rows of each label | from pre-training | from random weights | gain in points |\n| --- | --- | --- | --- |")
for size in sizes:
    starts = [scores[start, size] for start in curves]
    gains = [one - other for one, other in zip(*starts)]
    print(f"| {size} | {spread(starts[0], '.1f')} | {spread(starts[1], '.1f')} | {spread(gains, '+.1f')} |")

from matplotlib.figure import Figure

figure = Figure(figsize=(6.4, 4), dpi=120, layout="constrained")
axes, places = figure.add_subplot(), list(map(int, sizes))
for start, title in curves.items():
    rows = [scores[start, size] for size in sizes]
    (line,) = axes.plot(places, list(map(statistics.fmean, rows)), marker="o", label=title)
    axes.fill_between(places, list(map(min, rows)), list(map(max, rows)), color=line.get_color(), alpha=0.2)
axes.set(xlabel="training rows of each label", ylabel="dev accuracy (%)", xscale="log", ylim=(0, None))
axes.set_xticks(places, sizes)
axes.minorticks_off()
axes.grid(alpha=0.3)
axes.legend()
figure.savefig(os.path.join(directory, "learning_curve.png"))
PYTHON
