"""Where the arena keeps files: a folder or a bucket, by URL; which of them are still needed, and for how long."""
