"""What every rule, attack, algorithm, weighting, partition, model and task has to obey, checked on one of them.

`phalanx check my_file.py:MyRule` does the same as `breaches(MyRule)`, for the library's classes and for a user's own.
In a test: `assert breaches(MyRule) == []`.
"""

from phalanx.contracts.breach import Breach
from phalanx.contracts.subject import breaches

__all__ = ["Breach", "breaches"]
