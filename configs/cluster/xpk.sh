#!/bin/bash
# Independent workers on slices of one host each, by xpk: bash configs/cluster/xpk.sh
# xpk makes a JobSet of 8 slices, each with its number in MEGASCALE_SLICE_ID. Without these variables
# a slice does not wait for the others.

COMMAND='K=$MEGASCALE_SLICE_ID; unset ${!MEGASCALE_*}
jaxscore score --model "$MODEL" --input "$INPUT" --output "$OUTPUT" --shard "$K/8"'

${XPK:-xpk} workload create --cluster "${CLUSTER:-CLUSTER}" --workload jaxscore \
  --tpu-type=v5litepod-4 --num-slices=8 --max-restarts=20 \
  --docker-image "${IMAGE:-REGION-docker.pkg.dev/PROJECT/jaxscore/jaxscore:latest}" \
  --env MODEL="${MODEL:-Qwen/Qwen2.5-0.5B}" \
  --env INPUT="${INPUT:-gs://BUCKET/data/}" \
  --env OUTPUT="${OUTPUT:-gs://BUCKET/run/}" \
  --command "$COMMAND"
