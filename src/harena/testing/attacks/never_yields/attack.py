print(len(str(7 ** (10**9))))
