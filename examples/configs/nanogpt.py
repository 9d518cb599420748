# a small GPT on characters; python train.py examples/configs/nanogpt.py
out_dir = "out-small"
eval_interval = 240  # keep frequent
eval_iters = 200

dataset = "characters"
gradient_accumulation_steps = 8  # over all GPUs
batch_size = 16
block_size = 256

learning_rate = 1e-3
max_iters = 5000
lr_decay_iters = 5000
min_lr = 1e-4
beta1 = 0.95
beta2 = 0.98
weight_decay = 1e-1
grad_clip = 1.0
warmup_iters = 100
