import os
import stat

from attacker import ABSENT, attempt, escaped, finish, touch

HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
NAMES = (
    "sda vda nvme0n1 mem kvm fuse loop-control loop0 uinput input/event0 dri/card0 nvidia0 console tty0 tty1 vhost-net"
    " vhost-vsock vsock hwrng rtc0 btrfs-control mapper/control cpu/0/msr snapshot cuse net/tun"
)
for name in NAMES.split():
    attempt(name, touch, f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK, also=ABSENT)
for folder, _, files in os.walk("/dev"):
    for name in files:
        info = os.lstat(f"{folder}/{name}")
        number = os.major(info.st_rdev), os.minor(info.st_rdev)
        if stat.S_ISBLK(info.st_mode) or (stat.S_ISCHR(info.st_mode) and number not in HARMLESS and number[0] != 136):
            escaped(f"{folder}/{name} is device {number}")
finish()
