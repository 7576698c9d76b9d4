#!/usr/bin/env bash
# Pre-trains a small BERT, 4 layers of 256, in two hours on 2 cores with AVX-512, on text that is at hand.
#
#   CORPUS_DIR=corpus OUTPUT_DIR=runs/laptop recipes/laptop/run.sh
#   CORPUS_DIR=corpus DOCUMENTS="/usr/share/doc /usr/share/man documents" TESTS="data/sst2 data/rte" \
#       OUTPUT_DIR=runs/laptop recipes/laptop/run.sh
#
# What: NUM_STEPS steps (default: 36,000) of 32 sequences of 64 tokens with the quickstart's recipe: Muon, heads that
#   begin by attending to neighbors, a fifth of the tokens masked. The same command continues a stopped run, also days
#   later: SIGTERM saves a checkpoint, and at most 500 steps are lost without it. A number of steps, unlike
#   --time_budget_minutes, gives the same model on a machine that does other work too.
#   CORPUS_DIR holds wikitext2-valid.txt (the validation part of WikiText-2, 60 articles) and the folders inaugural and
#   state_union (the presidents' addresses, a file each, as in NLTK's corpora of these names); the docstrings of all
#   installed packages are added. Held out are the articles whose number ends in 5, the addresses of years that end in 5,
#   and a tenth of the modules and of the files below DOCUMENTS.
#   DOCUMENTS are folders with HTML, XML, POD, man pages or plain text (prose.py), such as those of Debian's packages:
#       apt-get download anarchism cmake-doc crawl-common debian-faq debian-handbook debian-history debian-policy \
#           debian-reference-en developers-reference dict-foldoc dict-gcide dict-jargon fortunes gimp-help-en git-doc \
#           gnome-user-docs installation-guide-amd64 libboost1.74-doc lilypond-doc-html linux-doc-6.1 llvm-14-doc \
#           manpages manpages-dev octave-doc openjdk-17-doc perl-doc postgresql-doc-15 python3.11-doc r-doc-html \
#           rust-doc vim-doc
#       for package in *.deb; do dpkg-deb --extract "$package" documents; done
#   TESTS are folders with texts that the model is to be tested on: sentences of the docstrings and documents that share
#   eight words in a row with them are left out.
# Cost and scores, also of fine-tunings from it: README.md of recipes/, "A longer run". benchmarks/five_tasks.py
#   fine-tunes from it.
# Why these settings: docs/benchmarks.md, "A small pre-training". Kernels start at a deviation of 1 / sqrt(256). Two
#   hours of 2 cores are 74 million tokens, some 20 for each of the 3.4 million weights outside the token table
#   (Hoffmann et al. 2022); twice the cores or hours pay for 6 layers.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

need CORPUS_DIR "a folder with wikitext2-valid.txt, inaugural/ and state_union/"
need OUTPUT_DIR "a folder to write to"
RANDOM_SEED="${RANDOM_SEED:-12345}" NUM_STEPS="${NUM_STEPS:-36000}"
for part in wikitext2-valid.txt inaugural state_union; do need_path "$CORPUS_DIR/$part" "Check CORPUS_DIR."; done
TEXT="$OUTPUT_DIR/text" DATA="$OUTPUT_DIR/data"

# Articles begin with a line " = Title = "; the file of an address begins with its year.
write_text() {
    rm -rf "$TEXT"
    mkdir -p "$TEXT/train" "$TEXT/held_out"
    awk -v train="$TEXT/train_articles.txt" -v held_out="$TEXT/held_out_articles.txt" \
        '/^ = [^=].* = *$/ { number++ } { print > (number % 10 == 5 ? held_out : train) }' \
        "$CORPUS_DIR/wikitext2-valid.txt"
    for file in "$CORPUS_DIR"/inaugural/*.txt "$CORPUS_DIR"/state_union/*.txt; do
        name="$(basename "$file")"
        part=train
        [[ "${name:3:1}" != 5 ]] || part=held_out
        cp "$file" "$TEXT/$part/$(basename "$(dirname "$file")")-$name"
    done
    local folder options=()
    for folder in ${DOCUMENTS:-}; do options+=(--documents="$folder"); done
    for folder in ${TESTS:-}; do options+=(--tests="$folder"); done
    python "$(dirname "${BASH_SOURCE[0]}")/prose.py" "$TEXT" "${options[@]}"
    touch "$TEXT/finished"
}

LENGTHS=(--max_seq_length=64 --max_predictions_per_seq=13)

make_records() { # train|held_out DUPE_FACTOR
    local name settings=(--vocab_file="$DATA/vocab.txt" --dupe_factor="$2" --random_seed="$RANDOM_SEED" "${LENGTHS[@]}")
    for name in docstrings ${DOCUMENTS:+manuals}; do
        unless_made "$DATA/$1_$name.tfrecord.report.json" bert-create-pretraining-data \
            --input_file="$TEXT/$1_$name.txt" --output_file="$DATA/$1_$name.tfrecord" "${settings[@]}"
    done
    settings+=(--sentence_splitter=sentencex)
    unless_made "$DATA/$1_articles.tfrecord.report.json" bert-create-pretraining-data \
        --input_file="$TEXT/$1_articles.txt" --input_format=wikitext \
        --output_file="$DATA/$1_articles.tfrecord" "${settings[@]}"
    unless_made "$DATA/$1_addresses.tfrecord.report.json" bert-create-pretraining-data \
        --input_file="$TEXT/$1/*.txt" --input_format=document_per_file \
        --output_file="$DATA/$1_addresses.tfrecord" "${settings[@]}"
}

# unless_made FILE COMMAND...: runs the command that makes FILE last, unless an earlier call has.
unless_made() {
    local made="$1"
    shift
    [[ -z "$DRY_RUN" && -e "$made" ]] || run "$@"
}

[[ -n "$DRY_RUN" || -e "$TEXT/finished" ]] || write_text
unless_made "$DATA/vocab.txt" bert-train-vocab --input_file="$TEXT/train_*.txt,$TEXT/train/*.txt" \
    --vocab_file="$DATA/vocab.txt" --vocab_size=8000
make_records train 2
make_records held_out 1
run bert-pretrain --input_file="$DATA/train_*.tfrecord" --eval_input_file="$DATA/held_out_*.tfrecord" \
    --vocab_file="$DATA/vocab.txt" --bert_config_file="$(dirname "${BASH_SOURCE[0]}")/bert_config.json" \
    --output_dir="$OUTPUT_DIR/pretrained" --do_train --do_eval "${LENGTHS[@]}" --train_batch_size=32 \
    --eval_batch_size=64 --max_eval_steps=100 --optimizer=muon --learning_rate=3e-3 --adam_lr_ratio=0.75 \
    --initial_attention=neighbors --next_sentence_weight=0.3 --dynamic_masking --masked_lm_prob=0.2 \
    --num_train_steps="$NUM_STEPS" --num_warmup_steps="$((NUM_STEPS / 10))" --save_checkpoints_steps=500 \
    --random_seed="$RANDOM_SEED" "$@"
