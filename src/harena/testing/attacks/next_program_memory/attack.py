from attacker import TARGET, finish

keep = [TARGET["mark"][::-1].encode() * 5000 for _ in range(50)]
finish()
