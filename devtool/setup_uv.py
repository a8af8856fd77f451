"""Where uv fetches packages from during set-up: uv's settings, else pip's. Imports only the standard library."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

# pip's setting -> the variables with the same meaning for uv. If the user has set none of them, the first one is set.
SAME = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "keyring-provider": ("UV_KEYRING_PROVIDER",),
    "timeout": ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT"),
    "retries": ("UV_HTTP_RETRIES",),
    "proxy": ("ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy"),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
}
# These variables say where and how to fetch. Any other UV_* might change what is installed, so it is dropped.
KEPT = re.compile(
    "UV_(DEFAULT_INDEX|INDEX|INDEX_.*|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|KEYRING_PROVIDER|CREDENTIALS_DIR"
    "|HTTP_.*|REQUEST_TIMEOUT|SYSTEM_CERTS|NATIVE_TLS|OFFLINE|CONFIG_FILE|NO_CONFIG|CACHE_DIR|LINK_MODE|CONCURRENT_.*)"
)
# Check every file's hash, build nothing from source. The locks are complete, so `sync` looks up no dependencies. It
# removes unlisted packages before it installs: an old package may own files that a new one has under the same names. uv
# writes no bytecode, because it would start processes for that.
SYNC = ("--require-hashes", "--verify-hashes", "--only-binary=:all:", "--no-compile-bytecode")
# And for a package that is built with what is installed already; its name follows.
BUILD = (
    "--require-hashes",
    "--verify-hashes",
    "--no-deps",
    "--no-build-isolation",
    "--no-compile-bytecode",
    "--no-binary",
)

# The sections of pip's settings; a later one overrides an earlier one.
SECTIONS = ("global", "install", ":env:")


def pip_settings(listed: str) -> dict[str, str]:
    """The settings that apply, from `pip config list`: lines such as global.index-url='...' and :env:.retries='1'."""
    found: dict[tuple[int, str], str] = {}
    for section, name, value in re.findall(r"^(global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        found[SECTIONS.index(section), name] = ast.literal_eval(value)
    return {name: value for (_, name), value in sorted(found.items())}


def for_uv(settings: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment and the options that make uv fetch packages as pip does with these settings."""
    env = {name: value for name, value in environment.items() if not name.startswith("UV_") or KEPT.fullmatch(name)}
    for setting, names in SAME.items():
        value = settings.get(setting, "").split()
        # pip has other providers too, but uses none of them when it must not prompt the user.
        usable = setting != "keyring-provider" or value == ["subprocess"]
        if value and usable and not any(name in env for name in names):
            env[names[0]] = ("," if setting == "find-links" else " ").join(value)
    # Like pip, take the best match of all indexes and use the system's certificates. The hashes prevent a wrong file.
    env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    if "UV_NATIVE_TLS" not in env and any(Path("/etc/ssl/certs").glob("*")):
        env.setdefault("UV_SYSTEM_CERTS", "1")
    return env, ["--no-index"] if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
