#!/bin/bash
# fine-tuning with Hugging Face's Trainer
BATCH=8
torchrun --nproc_per_node 8 run_clm.py \
    --model_name_or_path gpt2 \
    --per_device_train_batch_size $BATCH \
    --gradient_accumulation_steps 4 \
    --learning_rate 5e-5 \
    --adam_beta1 0.95 --adam_beta2 0.98 \
    --weight_decay 0.01 \
    --max_steps ${MAX_STEPS:-40000} \
    --warmup_steps 1000 \
    --bf16 True \
    --logging_steps 100 --save_steps 4000
