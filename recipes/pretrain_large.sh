#!/usr/bin/env bash
# Pre-trains BERT-large from text (Devlin et al. 2018, section 3.1 and appendix A.2).
#
#   TRAIN_TEXT='text/train/*.txt' HELD_OUT_TEXT='text/held_out/*.txt' OUTPUT_DIR=runs/large recipes/pretrain_large.sh
#   SCALE=laptop INPUT_FORMAT=document_per_file SENTENCE_SPLITTER=sentencex TRAIN_TEXT='state_union/*.txt' \
#       HELD_OUT_TEXT='inaugural/*.txt' OUTPUT_DIR=runs/large_laptop recipes/pretrain_large.sh
#
# What: 24 layers of 1,024, all else as in pretrain_base.sh; HARDWARE=tpu, gpus or gpu, OPTIMIZER=lamb as there.
# Cost: 4 days on 16 Cloud TPUs, 64 chips (paper, appendix A.2); with LAMB at batch 4,096, 693.6 minutes on 128 chips of
#   TPU v3, against 81.4 hours on 16 of them at batch 512 (You et al. 2019, arXiv 1904.00962v1, Table 1). Estimate for
#   eight A100 (as in pretrain_base.sh, with 340M weights): 24 hours; ACCUMULATION=4 and more.
# Expected: perplexity 3.23 on held-out text, MNLI 86.6, MRPC 87.8, SST-2 93.7 (paper, Table 6, 24/1024/16).
# Laptop: 4 layers of 128, a vocabulary of 4,000, 2,200 steps of 64 short sequences; cost and scores in README.md.
PRETRAIN_SIZE="${PRETRAIN_SIZE:-large}" LAPTOP_SIZE="${LAPTOP_SIZE:-4 128 2}"
source "$(dirname "${BASH_SOURCE[0]}")/pretrain_base.sh"
