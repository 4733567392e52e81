"""Credentials from Docker's configuration: auths, credHelpers and credsStore.

Guarantees: a helper is a program named docker-credential-NAME, started without a shell and ended after a timeout; no
credential appears in a message.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from harena.images.errors import RegistryError
from harena.images.reference import DOCKER_HUB

HUB_KEY = "https://index.docker.io/v1/"
MAX_CONFIG = 4 << 20
MAX_ANSWER = 64 << 10
HELPER_S = 20.0
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
NOT_FOUND = ("credentials not found", "not found in native keychain", "no credentials")


@dataclass(frozen=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    is_identity_token: bool = False
    """`password` is a refresh token of the registry's token server."""

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


def find(config: Path | None, registry: str, *, helper_s: float = HELPER_S) -> Credentials | None:
    """Return the credentials for a registry, or None. Raise RegistryError if the configuration is damaged."""
    fields = _read(config)
    key = HUB_KEY if registry == DOCKER_HUB else registry
    names = (key, registry, f"https://{registry}", f"https://{registry}/", f"https://{registry}/v1/")
    helpers = _mapping(fields.get("credHelpers"))
    helper = next((helpers[name] for name in names if name in helpers), None)
    store = fields.get("credsStore")
    for program in (helper, store):
        if program:
            found = _ask_helper(program, key, helper_s)
            if found is not None:
                return found
    auths = _mapping(fields.get("auths"))
    entry = next((_mapping(auths[name]) for name in names if name in auths), None)
    return None if entry is None else _from_entry(entry, registry)


def _read(config: Path | None) -> Mapping[str, Any]:
    if config is None:
        return {}
    try:
        with open(config, "rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise RegistryError(f"{config} cannot be read: {error.strerror}; set DOCKER_CONFIG to another folder") from None
    try:
        if len(data) > MAX_CONFIG:
            raise ValueError
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise RegistryError(f"{config} is not valid JSON: correct it, or set DOCKER_CONFIG to another folder") from None
    return _mapping(fields)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _from_entry(entry: Mapping[str, Any], registry: str) -> Credentials | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials("", _header_safe(token, registry), is_identity_token=True)
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode().rstrip("\0")
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        name, colon, password = text.partition(":")
        if not colon:
            raise RegistryError(f"the auth of {registry} in Docker's config.json is damaged: run `docker login` again")
        return Credentials(_header_safe(name, registry), _header_safe(password, registry))
    name, password = entry.get("username"), entry.get("password")
    if isinstance(name, str) and isinstance(password, str) and name:
        return Credentials(_header_safe(name, registry), _header_safe(password, registry))
    return None


def _ask_helper(program: object, key: str, helper_s: float) -> Credentials | None:
    if not isinstance(program, str) or not _HELPER.fullmatch(program):
        raise RegistryError("Docker's config.json names a credential helper that is not a plain name: correct it")
    name = f"docker-credential-{program}"
    try:
        done = subprocess.run([name, "get"], input=key.encode(), capture_output=True, timeout=helper_s, check=False)
    except FileNotFoundError:
        raise RegistryError(
            f"Docker's config.json names {name}, which is not installed: install it or correct it"
        ) from None
    except subprocess.TimeoutExpired:
        raise RegistryError(
            f"{name} did not answer within {helper_s:g} s: unlock it or correct Docker's config.json"
        ) from None
    except OSError as error:
        raise RegistryError(f"{name} cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip().lower()
        if any(words in said for words in NOT_FOUND):
            return None
        raise RegistryError(f"{name} failed with exit code {done.returncode}: run it by hand, or log in again")
    try:
        if len(done.stdout) > MAX_ANSWER:
            raise ValueError
        fields = _mapping(json.loads(done.stdout))
        username, secret = fields["Username"], fields["Secret"]
        if not isinstance(username, str) or not isinstance(secret, str):
            raise ValueError
    except (ValueError, KeyError, RecursionError):
        raise RegistryError(f"{name} gave an invalid answer: update it, or log in again") from None
    if not secret:
        return None
    return Credentials(_header_safe(username, key), _header_safe(secret, key), is_identity_token=username == "<token>")


def _header_safe(text: str, registry: str) -> str:
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text) or len(text) > MAX_ANSWER:
        raise RegistryError(f"the credentials of {registry} have control characters: log in again")
    return text
