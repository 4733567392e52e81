for command in "unshare -r id" "unshare -n id" "nsenter -t 1 -a id" "mount -t tmpfs x /tmp" "chroot / id"; do
    if $command >/dev/null 2>&1; then echo "ESCAPED: $command"; exit 0; fi
done
echo denied
