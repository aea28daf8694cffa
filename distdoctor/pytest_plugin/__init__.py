"""The pytest plugin: tests whose body runs on every rank, under watch."""
