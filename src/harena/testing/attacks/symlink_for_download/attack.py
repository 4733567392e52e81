import os

from attacker import TARGET, finish

os.makedirs("tree/inner")
os.symlink(TARGET["secret"], "tree/absolute")
os.symlink("../" * 20 + TARGET["secret"], "tree/relative")
os.symlink(TARGET["folder"], "tree/folder")
os.symlink("/", "tree/inner/root")
os.symlink("folder", "tree/twice")
finish()
