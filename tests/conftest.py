"""What holds for every test: types and shapes are checked while it runs."""

import typechecking

typechecking.check("phalanx")
