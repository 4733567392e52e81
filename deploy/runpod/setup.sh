#!/usr/bin/env bash
# Prepares a rented GPU pod for `harena azr`: folders, links to the network volume, environment, installation.
# Idempotent. docs/gpu-pods.md explains each step.
#
#   WORKSPACE=/workspace     where runs and models are looked for
#   VOLUME=/runpod-volume    the network volume, which outlives the pod; without it everything stays in WORKSPACE
#   HARENA_SOURCE=…          what pip installs (the checkout that this script is in)
#   SKIP_INSTALL=1           folders and environment only
set -euo pipefail

workspace=${WORKSPACE:-/workspace}
volume=${VOLUME:-/runpod-volume}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source_dir=${HARENA_SOURCE:-$(cd "$here/../.." && pwd)}

mkdir -p "$workspace"
for name in runs models; do
    place=$workspace/$name
    if [ -d "$volume" ]; then
        mkdir -p "$volume/harena/$name"
        if [ -d "$place" ] && [ ! -L "$place" ]; then
            # What was made before the volume was there must not vanish behind a link.
            if [ -n "$(ls -A "$place")" ]; then
                echo "setup: $place holds files: move them to $volume/harena/$name, remove it, and run this again" >&2
                exit 1
            fi
            rmdir "$place"
        fi
        ln -sfn "$volume/harena/$name" "$place"
    else
        mkdir -p "$place"
    fi
done
[ -d "$volume" ] || echo "setup: no volume at $volume: runs end with the pod" >&2

environment=$workspace/harena.env
cat >"$environment" <<END
# Source this before \`harena azr\`.
export HF_HOME="$workspace/models"
# Pods usually deny user namespaces: "best" takes the full tier where it works and the restricted one elsewhere.
export HARENA_ISOLATION="\${HARENA_ISOLATION:-best}"
END

if [ -z "${SKIP_INSTALL:-}" ]; then
    python3 -m venv "$workspace/venv"
    "$workspace/venv/bin/pip" install --quiet "$source_dir[azr]"
    echo "export PATH=\"$workspace/venv/bin:\$PATH\"" >>"$environment"
    # shellcheck disable=SC1090
    . "$environment"
    harena azr eval --suite tiny --check --limit 12
fi

echo "ready: . $environment && harena azr train --profile brief --out $workspace/runs/first"
