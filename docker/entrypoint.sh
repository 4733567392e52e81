#!/bin/sh
# Starts harena with a secret of its own when none is given: there is no default that everybody knows.
set -eu
if [ -z "${SECRET_KEY:-}" ] && [ -n "${DATABASE_URL:-}" ]; then
    file="$HARENA_DATA/compose-secret.key"
    if [ ! -s "$file" ]; then
        (umask 077 && python -c 'import secrets; print(secrets.token_hex(32))' >"$file.part" && mv "$file.part" "$file")
    fi
    SECRET_KEY=$(cat "$file")
    export SECRET_KEY
fi
exec harena "$@"
