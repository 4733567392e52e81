"""System calls that a guest may make: `seccomp` (the list), `bpf` (its compiler), `syscalls` (numbers), `callpage`."""
