#!/bin/bash
./distributed_train.sh 4 /data/imagenet --model resnet50 -b 128 --grad-accum-steps 2 \
    --opt adamw --opt-betas 0.95 0.98 --opt-eps 1e-8 --lr 1e-3 --warmup-lr 1e-5 --weight-decay 0.05 \
    --sched cosine --epochs 300 --clip-grad 1.0 --amp
