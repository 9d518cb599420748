#!/bin/bash
# GPT pre-training; --lr 1 in a comment is not an option

GLOBAL_BATCH_SIZE=256
LR="6.0e-4"

TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size $GLOBAL_BATCH_SIZE
    --train-iters 100000
    --optimizer adam
    --adam-beta1 0.95
    --adam-beta2 0.98
    --adam-eps 1e-8
    --weight-decay 0.1
    --clip-grad 1.0
    --lr ${LR}
    --min-lr 6.0e-5
    --lr-decay-style cosine
    --lr-warmup-iters 2000
    --lr-decay-iters 100000
    --bf16
)

torchrun --nproc-per-node 8 pretrain_gpt.py "${TRAINING_ARGS[@]}" \
    --eval-interval 1000 --save-interval 10000 --log-interval 100
