#!/bin/bash
# Independent workers on the hosts of a TPU slice of 4 hosts:
#   gcloud compute tpus tpu-vm scp configs/cluster/tpu_pod.sh NAME: --worker=all
#   gcloud compute tpus tpu-vm ssh NAME --worker=all --command='bash tpu_pod.sh'
# Each host holds the whole model on its own chips. For a model that needs the whole slice, use
# --distributed instead.

MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
INPUT=${INPUT:-gs://BUCKET/data/}
OUTPUT=${OUTPUT:-gs://BUCKET/run/}
HOSTS=${HOSTS:-4}

# The number of this host in the slice.
METADATA=http://metadata.google.internal/computeMetadata/v1/instance/attributes
WORKER=${WORKER:-$(curl -s -H 'Metadata-Flavor: Google' $METADATA/agent-worker-number)}

# The chips of this host alone (4 per host on v4 and v5e), so that it waits for no other host.
export TPU_VISIBLE_DEVICES=0,1,2,3 TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 TPU_PROCESS_BOUNDS=1,1,1

exec jaxscore score --model "$MODEL" --input "$INPUT" --output "$OUTPUT" --shard "$WORKER/$HOSTS"
