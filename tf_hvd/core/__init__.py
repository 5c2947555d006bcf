"""What every part stands on: the native library, ranks, process sets, settings."""
