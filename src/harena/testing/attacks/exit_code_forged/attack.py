import os

os.write(1, b'{"verdict": "ok", "exit_code": 0}\n')
os._exit(7)
