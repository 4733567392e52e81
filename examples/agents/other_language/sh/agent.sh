# Rock, paper, scissors in plain sh: what would have beaten the other's last choice. Lines of JSON, see docs/agents.md.
while read -r line; do
    case $line in
        *'"type": "init"'*) echo '{"ready": true}' ;;
        *'"theirs": 0'*) echo '{"action": 1}' ;;
        *'"theirs": 1'*) echo '{"action": 2}' ;;
        *'"type": "act"'*) echo '{"action": 0}' ;;
        *'"type": "end"'*) break ;;
    esac
done
