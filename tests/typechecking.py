"""The run-time checker of types and shapes, with an integer allowed where a float is."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
