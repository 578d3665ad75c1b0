"""The version of the library, which records and checkpoints name."""

VERSION = "0.1.0"
