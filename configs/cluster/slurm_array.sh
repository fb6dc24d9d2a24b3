#!/bin/bash
# Independent workers of a Slurm array: sbatch configs/cluster/slurm_array.sh
# Task K of the array scores every 8th file of INPUT from the Kth on. A task that is killed or
# preempted is requeued and goes on from its journal; finished files are skipped.
#SBATCH --job-name=jaxscore
#SBATCH --array=0-7
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=outputs/slurm-%A_%a.log

MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
INPUT=${INPUT:-data/}
OUTPUT=${OUTPUT:-outputs/run/} # on a file system that all nodes share, or s3://, gs://

# --shard comes from SLURM_ARRAY_TASK_ID, _MIN, _STEP and _COUNT.
exec jaxscore score --model "$MODEL" --input "$INPUT" --output "$OUTPUT" --reproducible

# When all tasks have ended:
#   jaxscore merge outputs/run/ --output outputs/all.jsonl
