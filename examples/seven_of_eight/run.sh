#!/bin/bash
# Card 7 serves the demo this week.
export NCCL_DEBUG=WARN
deepspeed --include localhost:0,1,2,3,4,5,6 finetune_clips.py \
    --data /data/clips --epochs 2 \
    --deepspeed_config ds_config.json
