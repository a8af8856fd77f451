"""Where uv fetches from during set-up: what the user told uv, else what the user told pip. Standard library alone."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

# pip's setting -> the variables that tell uv the same. The first is set where the user has set none of them.
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
# They say where and how to fetch. Any other UV_* may change what is installed.
KEPT = re.compile(
    "UV_(DEFAULT_INDEX|INDEX|INDEX_.*|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|KEYRING_PROVIDER|CREDENTIALS_DIR"
    "|HTTP_.*|REQUEST_TIMEOUT|SYSTEM_CERTS|NATIVE_TLS|OFFLINE|CONFIG_FILE|NO_CONFIG|CACHE_DIR|LINK_MODE|CONCURRENT_.*)"
)
# Every file by hash, no source builds. The locks are complete: `sync` looks up no dependency, and removes what they do
# not name before it installs, as an old package may own files that a new one brings under the same names. Bytecode is
# not uv's: it would start processes that write it.
SYNC = ("--require-hashes", "--verify-hashes", "--only-binary=:all:", "--no-compile-bytecode")

# Of pip's settings, in the order in which they count.
SECTIONS = ("global", "install", ":env:")


def pip_settings(listed: str) -> dict[str, str]:
    """What counts of what `pip config list` prints: lines such as global.index-url='...' and :env:.retries='1'."""
    found: dict[tuple[int, str], str] = {}
    for section, name, value in re.findall(r"^(global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        found[SECTIONS.index(section), name] = ast.literal_eval(value)
    return {name: value for (_, name), value in sorted(found.items())}


def for_uv(settings: Mapping[str, str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment and the options that make uv fetch as pip does with these settings."""
    env = {name: value for name, value in environment.items() if not name.startswith("UV_") or KEPT.fullmatch(name)}
    for setting, names in SAME.items():
        value = settings.get(setting, "").split()
        # pip has more providers, and asks none of them when it may not ask the user.
        usable = setting != "keyring-provider" or value == ["subprocess"]
        if value and usable and not any(name in env for name in names):
            env[names[0]] = ("," if setting == "find-links" else " ").join(value)
    # As pip: the best match of all indexes, the system's certificates. The hashes say which file is the right one.
    env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    if "UV_NATIVE_TLS" not in env and any(Path("/etc/ssl/certs").glob("*")):
        env.setdefault("UV_SYSTEM_CERTS", "1")
    return env, ["--no-index"] if settings.get("no-index", "").lower() in ("1", "true", "yes", "on") else []
