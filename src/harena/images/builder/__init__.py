"""Parts of builds: `dockerfile` (text to instructions), `ignore` (patterns), `builder` (carries instructions out),
`pack` and `packer` (files become layers, in a jail), `tar_writer`, and `export` (images become archives)."""
