"""The version of the library, which records and checkpoints name, and where it comes from."""

VERSION = "0.1.0"
URL = "https://github.com/phalanx-fl/phalanx"
