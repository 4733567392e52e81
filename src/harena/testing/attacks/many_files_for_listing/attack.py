from attacker import finish

try:
    for number in range(20_000):
        open(f"{number:0200}", "w").close()
except OSError:
    pass
finish()
