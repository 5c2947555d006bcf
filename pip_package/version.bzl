"""The version of the wheel; metadata.toml has the rest."""

VERSION = "0.1.0"
