import os

os.closerange(0, 4096)
