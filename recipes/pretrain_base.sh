#!/usr/bin/env bash
# Pre-trains BERT-base from text (Devlin et al. 2018, section 3.1 and appendix A.2).
#
#   TRAIN_TEXT='text/train/*.txt' HELD_OUT_TEXT='text/held_out/*.txt' OUTPUT_DIR=runs/base recipes/pretrain_base.sh
#   HARDWARE=tpu TPU_NAME=my-tpu OPTIMIZER=lamb TRAIN_TEXT=... HELD_OUT_TEXT=... OUTPUT_DIR=... recipes/pretrain_base.sh
#   SCALE=laptop INPUT_FORMAT=document_per_file SENTENCE_SPLITTER=sentencex TRAIN_TEXT='state_union/*.txt' \
#       HELD_OUT_TEXT='inaugural/*.txt' OUTPUT_DIR=runs/base_laptop recipes/pretrain_base.sh
#
# What: 12 layers of 768; 1,000,000 steps of 256 sequences, 90% of them at 128 tokens and the rest at 512; learning rate
#   1e-4, 10,000 steps of warm-up. The paper's text: English Wikipedia (2,500M words) and BooksCorpus (800M words).
#   PRETRAIN_SIZE names another preset's sizes, LAPTOP_SIZE layers, width and heads of the laptop's. See pretraining.sh
#   for what else the environment may say.
# Cost: 4 days on 4 Cloud TPUs in a pod, 16 chips (paper, appendix A.2); about 2 weeks and 500 USD on one preemptible
#   Cloud TPU v2 with a smaller batch (google-research/bert, README, October 2018). Estimate for eight A100 (6 operations
#   a weight and token, 110M weights, 43 billion tokens, 40% of 312 TFLOPS each): 8 hours.
# Expected: perplexity 3.99 on held-out text, MNLI 84.4, MRPC 86.7, SST-2 92.9 (paper, Table 6, 12/768/12). On several
#   machines start the same bert-pretrain command on each (DRY_RUN=1 prints it), as its --help says.
# Laptop: 2 layers of 128, a vocabulary of 4,000, 2,200 steps of 64 short sequences; cost and scores in README.md.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
source "$(dirname "${BASH_SOURCE[0]}")/pretraining.sh"

pretraining_settings
make_data "$OUTPUT_DIR/data"
ARCHITECTURE=(--preset="${PRETRAIN_SIZE:-base}")
if [[ "$SCALE" == laptop ]]; then
    # shellcheck disable=SC2086
    with_sizes ${LAPTOP_SIZE:-2 128 2}
fi
pretrain "$OUTPUT_DIR/data" "$OUTPUT_DIR" "${ARCHITECTURE[@]}" "$@"
