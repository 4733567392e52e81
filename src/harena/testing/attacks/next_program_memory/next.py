from attacker import TARGET, escaped, finish

needle = TARGET["mark"][::-1].encode() * 3
with open("/proc/self/maps") as file:
    ranges = [line.split()[0].split("-") for line in file if "rw-p" in line and "[v" not in line]
found = 0
with open("/proc/self/mem", "rb", buffering=0) as memory:
    for start, end in ranges:
        memory.seek(int(start, 16))
        try:
            found += memory.read(int(end, 16) - int(start, 16)).count(needle)
        except OSError:
            continue
if found > 100:
    escaped(f"{found} copies of the last program's secret")
finish()
