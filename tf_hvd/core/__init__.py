"""The foundations of the package: the native library, ranks, process sets and settings."""
