import glob
import os
import stat
import subprocess

from attacker import escaped, finish, status

if status("NoNewPrivs") != "1":
    escaped("no_new_privs is off")
programs = [path for path in glob.glob("/usr/*bin/*") if os.lstat(path).st_mode & stat.S_ISUID]
commands = [["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["pkexec", "id", "-u"]]
commands += [[path, "--help"] for path in programs]
null = subprocess.DEVNULL
for command in commands:
    try:
        child = subprocess.Popen(command, stdin=null, stdout=subprocess.PIPE, stderr=null)
    except OSError:
        continue
    # Popen returns after the exec, and a process that has ended keeps its ids until it is waited for.
    try:
        with open(f"/proc/{child.pid}/status") as file:
            ids = next(line.split()[1:] for line in file if line.startswith("Uid:"))
    except PermissionError:
        ids = [str(os.getuid())]  # it may not be looked at: what it prints decides
    try:
        if child.communicate(timeout=2)[0].strip() == b"0" or set(ids) != {str(os.getuid())}:
            escaped(f"{command} ran as {ids}")
    except subprocess.TimeoutExpired:
        child.kill()
finish()
