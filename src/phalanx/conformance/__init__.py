"""Cases that any rule of robust aggregation can be held against: NaN, false sizes, ties, offsets, overflow and more.

`phalanx check --library byzfl` runs them, and `pytest -p phalanx.conformance.plugin --library byzfl` does as tests.  A
library takes part by a module with these names, such as `phalanx.conformance.byzfl_rules` or a file of your own:

- `PACKAGES`: the packages whose versions are said.
- `forms(rule, parameters, matrix, sizes)`: the ways to run a rule, by name, each a `RuleForm`; `{}` if there is no such
  rule.  `rule` and `parameters` are Phalanx's, `matrix` has a row for each client, and `sizes` their numbers of
  examples or None.
- `array(result)`: the result as an array, or None if there is none.

Whatever is imported here needs nothing but NumPy, so that it runs in the environment of any library.
"""

from phalanx.conformance.cases import CASES, Case, Judgement
from phalanx.conformance.libraries import LIBRARIES, Library, find
from phalanx.conformance.rule_form import RuleForm
from phalanx.conformance.suite import record, running

__all__ = ["CASES", "LIBRARIES", "Case", "Judgement", "Library", "RuleForm", "find", "record", "running"]
