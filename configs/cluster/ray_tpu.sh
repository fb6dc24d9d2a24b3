#!/bin/bash
# --engine ray on the hosts of a TPU slice: the first host starts Ray and the command, the others
# join:
#   gcloud compute tpus tpu-vm scp configs/cluster/ray_tpu.sh NAME: --worker=all
#   gcloud compute tpus tpu-vm ssh NAME --worker=all --command='bash ray_tpu.sh'
# Each actor holds the whole model on a chip of its own, which Ray gives it. After a loss the same
# two lines skip finished files. The hosts have jaxscore with the extras gcs, ray and tpu.

MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
INPUT=${INPUT:-gs://BUCKET/data/}
OUTPUT=${OUTPUT:-gs://BUCKET/run/}
HOSTS=${HOSTS:-4}
CHIPS=${CHIPS:-4} # of a host: 4 on v4 and v5e

# The number of this host in the slice, and the address of the first one.
METADATA=http://metadata.google.internal/computeMetadata/v1/instance/attributes
WORKER=${WORKER:-$(curl -s -H 'Metadata-Flavor: Google' $METADATA/agent-worker-number)}
# worker-network-endpoints has NAME:PORT:IP of each host, with commas between them.
HEAD=${HEAD:-$(curl -s -H 'Metadata-Flavor: Google' $METADATA/worker-network-endpoints |
  cut -d , -f 1 | cut -d : -f 3)}

ray stop --force # of an earlier run
if [ "$WORKER" != 0 ]; then
  # Wait for the first host, 10 to 20 minutes; the pause lets an earlier run's Ray stop. Join once:
  # --block also fails when that host is done, whose exit code counts.
  for _ in {1..120}; do
    sleep 5
    timeout 5 bash -c "</dev/tcp/$HEAD/6379" 2>/dev/null && break
  done
  ray start --address="$HEAD:6379" --resources="{\"TPU\": $CHIPS}" --block || true
  exit
fi
ray start --head --port=6379 --resources="{\"TPU\": $CHIPS}"
trap 'ray stop --force' EXIT
export RAY_ADDRESS="$HEAD:6379"
# --actors starts one per chip of the slice, those of hosts that have not joined yet too.
jaxscore score --model "$MODEL" --input "$INPUT" --output "$OUTPUT" --reproducible \
  --engine ray --actors "$((HOSTS * CHIPS))"
